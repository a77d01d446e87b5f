"""``python -m ebbtide_serve.vllm_versions.collect``: write the facts of the vLLM that is installed here.

Facts are names: of engine and front-end arguments, of the fields of requests, of classes that moved. Rules about a
version are made from its file, so a version needs no installation to be looked at.
"""

import contextlib
import dataclasses
import importlib
import json
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import vllm
import vllm.entrypoints
from pydantic import BaseModel
from vllm.engine.arg_utils import AsyncEngineArgs

from ebbtide_serve.vllm_versions import compat
from ebbtide_serve.vllm_versions.facts import FOLDER, file_of

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
    return {
        "version": vllm.__version__,
        "paths": {name: f"{found.__module__}:{found.__qualname__}" for name, found in _moved()},
        "engine_args": _fields(AsyncEngineArgs),
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


def _fields(kind: Any) -> dict[str, str]:
    """Name -> type, of a dataclass."""
    return {field.name: _shown(field.type) for field in sorted(dataclasses.fields(kind), key=lambda one: one.name)}


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


def _shown(kind: object) -> str:
    """A type as short text, the same in each process: classes without their modules, long unions by their beginning."""
    text = kind if isinstance(kind, str) else kind.__name__ if isinstance(kind, type) else repr(kind)
    short = re.sub(r"(\w+\.)+(?=\w)", "", re.sub(r" at 0x[0-9a-f]+", "", text))
    return short if len(short) <= LONGEST_TYPE else short[:LONGEST_TYPE] + "..."


@click.command()
@click.option("--to", "folder", type=click.Path(path_type=Path), default=FOLDER, show_default=True)
@click.option("--check", is_flag=True, help="Write nothing; fail where the file differs from what is installed.")
def main(folder: Path, check: bool) -> None:
    """Write the facts of the vLLM that is installed here."""
    text = json.dumps(collect_facts(), indent=1) + "\n"
    path = file_of(compat.VERSION, folder)
    if check:
        if not path.exists() or path.read_text() != text:
            sys.exit(f"{path} is not of vLLM {vllm.__version__}: python -m ebbtide_serve.vllm_versions.collect")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    click.echo(f"{path}: vLLM {vllm.__version__}")


if __name__ == "__main__":
    main()
