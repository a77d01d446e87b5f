"""``python -m ebbtide_serve.vllm_versions.collect``: write the facts of the vLLM that is installed here.

Facts are names: of engine and front-end arguments, of the fields of requests, of classes that moved; of engine
arguments also the types and bounds. Rules about a version are made from its file, so a version needs no installation to
be looked at.
"""

import contextlib
import dataclasses
import importlib
import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import vllm
import vllm.config
import vllm.entrypoints
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from vllm.engine.arg_utils import AsyncEngineArgs

from ebbtide_serve.vllm_versions import compat
from ebbtide_serve.vllm_versions.engine_arguments import BECOMES, BOUNDS
from ebbtide_serve.vllm_versions.facts import CUT, FOLDER, file_of
from ebbtide_serve.vllm_versions.supported import DEFAULT, minor

MOVED = {
    "FrontendArgs": compat.FrontendArgs,
    "create_error_response": compat.create_error_response,
    "init_app_state": compat.init_app_state,
}
LONGEST_TYPE = 60  # of some unions the end depends on the version of another package, openai's
APPLICATIONS = ("vllm.entrypoints.launchers.app", "vllm.entrypoints.openai.api_server")  # the newer place first


def collect_facts() -> dict[str, Any]:
    """The facts of this environment's vLLM, as plain JSON types."""
    requests, unread = _requests()
    engine_args = _fields(AsyncEngineArgs, longest=None)
    return {
        "version": vllm.__version__,
        "paths": {name: f"{found.__module__}:{found.__qualname__}" for name, found in _moved()},
        "engine_args": engine_args,
        "none_by_default": _none_by_default(),
        "bounds": _bounds(engine_args),
        "config_classes": _config_classes(engine_args.values()),
        "frontend_args": _fields(compat.FrontendArgs),
        "requests": requests,
        "unread": unread,
    }


def _moved() -> Iterator[tuple[str, Any]]:
    yield from sorted(MOVED.items())
    for place in APPLICATIONS:
        with contextlib.suppress(ImportError, AttributeError):
            yield "build_app", importlib.import_module(place).build_app
            return


def _fields(kind: Any, longest: int | None = LONGEST_TYPE) -> dict[str, str]:
    """Name -> type, of a dataclass."""
    fields = sorted(dataclasses.fields(kind), key=lambda one: one.name)
    return {field.name: _shown(field.type, longest) for field in fields}


def _none_by_default() -> list[str]:
    """Arguments that are None unless they are set: some of these are not typed so."""
    return sorted(field.name for field in dataclasses.fields(AsyncEngineArgs) if field.default is None)


def _classes() -> Iterator[tuple[str, Any]]:
    """vLLM's configuration classes by name."""
    for name, kind in sorted(vars(vllm.config).items()):
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield name, kind


def _bounds(arguments: Iterable[str]) -> dict[str, dict[str, float]]:
    """Name of an argument -> kind of bound -> number, from the configuration class in which it ends up."""
    found: dict[str, dict[str, float]] = {}
    names = frozenset(arguments)
    for kind_name, kind in _classes():
        if kind_name in BECOMES.values():  # its fields are in a mapping of their own
            continue
        for field in dataclasses.fields(kind):
            told = field.default.metadata if isinstance(field.default, FieldInfo) else ()
            bounds = {kind: getattr(one, kind) for one in told for kind in BOUNDS if hasattr(one, kind)}
            if bounds and field.name in names:
                found[field.name] = bounds
    return dict(sorted(found.items()))


def _config_classes(types: Iterable[str]) -> dict[str, dict[str, str]]:
    """Class -> name -> type of the fields that it can be made with, of those that arguments are typed as."""
    named = {name for text in types for name in re.findall(r"\w+", text)} | set(BECOMES.values())
    return {
        name: {
            field: _shown(parameter.annotation, None)
            for field, parameter in sorted(inspect.signature(kind).parameters.items())
        }
        for name, kind in _classes()
        if name in named
    }


def _requests() -> tuple[dict[str, dict[str, str]], list[str]]:
    """Of each class of requests its fields with their types; and the modules that do not import here."""
    found: dict[str, dict[str, str]] = {}
    unread: list[str] = []
    for module in pkgutil.walk_packages(vllm.entrypoints.__path__, "vllm.entrypoints.", onerror=unread.append):
        if not module.name.rpartition(".")[2].startswith("protocol"):
            continue
        try:
            names = vars(importlib.import_module(module.name))
        except (ImportError, AttributeError, RuntimeError, OSError):  # of another platform, or of a package not there
            unread.append(module.name)
            continue
        for name, kind in names.items():
            here = getattr(kind, "__module__", "") == module.name
            if name.endswith("Request") and here and isinstance(kind, type) and issubclass(kind, BaseModel):
                fields = {field: _shown(info.annotation) for field, info in sorted(kind.model_fields.items())}
                found[f"{module.name}:{name}"] = fields
    return dict(sorted(found.items())), sorted(unread)


def _shown(kind: object, longest: int | None = LONGEST_TYPE) -> str:
    """A type as text, the same in each process: classes without their modules, long unions by their beginning."""
    is_class = isinstance(kind, type) and not getattr(kind, "__args__", ())  # list[int] is a type too
    text = kind if isinstance(kind, str) else getattr(kind, "__name__", "") if is_class else repr(kind)
    plain = re.sub(r" at 0x[0-9a-f]+", "", text)
    short = re.sub(r"'[^']*'|(\w+\.)+(?=\w)", lambda found: found[0] if found[0][0] == "'" else "", plain)
    return short if longest is None or len(short) <= longest else short[:longest] + CUT


def agrees(kept: object, now: object) -> bool:
    """Whether a file of any form says what is so: some have no bounds, and types that are cut short."""
    if isinstance(kept, dict) and isinstance(now, dict):
        return all(name in now and agrees(value, now[name]) for name, value in kept.items())
    if isinstance(kept, str) and isinstance(now, str) and kept.endswith(CUT):
        return now.startswith(kept.removesuffix(CUT))
    return kept == now


def _differs(path: Path, text: str) -> bool:
    """Of the default version the whole form is asked for."""
    if not path.exists():
        return True
    if minor(DEFAULT) == compat.VERSION:
        return path.read_text() != text
    kept, now = json.loads(path.read_text()), json.loads(text)
    # Names that are new must show, kinds of facts need not.
    same_names = all(kept[kind].keys() == now[kind].keys() for kind in ("engine_args", "frontend_args", "requests"))
    return not (same_names and agrees(kept, now))


@click.command()
@click.option("--to", "folder", type=click.Path(path_type=Path), default=FOLDER, show_default=True)
@click.option("--check", is_flag=True, help="Write nothing; fail where the file differs from what is installed.")
def main(folder: Path, check: bool) -> None:
    """Write the facts of the vLLM that is installed here."""
    text = json.dumps(collect_facts(), indent=1) + "\n"
    path = file_of(compat.VERSION, folder)
    if check:
        if _differs(path, text):
            sys.exit(f"{path} is not of vLLM {vllm.__version__}: python -m ebbtide_serve.vllm_versions.collect")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    click.echo(f"{path}: vLLM {vllm.__version__}")


if __name__ == "__main__":
    main()
