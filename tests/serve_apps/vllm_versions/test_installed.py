"""The vLLM of this environment is as its file of facts says, and ours of it stands on what is there."""

import asyncio
import dataclasses
import functools
import subprocess
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from pydantic import TypeAdapter, ValidationError

from ebbtide.config.sections.endpoint_section import RESERVED_ENGINE_KEYS
from ebbtide_serve.vllm_versions.argument_types import named
from ebbtide_serve.vllm_versions.engine_arguments import BECOMES, argument_findings
from ebbtide_serve.vllm_versions.known_facts import all_facts
from ebbtide_serve.vllm_versions.supported import installed_version

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


def test_the_facts_of_the_installed_version_are_those_on_file() -> None:
    command = [sys.executable, "-m", "ebbtide_serve.vllm_versions.collect", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]


def test_an_engine_that_has_no_checkpoint_calls_gets_some(monkeypatch: pytest.MonkeyPatch) -> None:
    compat = pytest.importorskip("ebbtide_serve.vllm_versions.compat")
    llm = SimpleNamespace(sleep=AsyncMock(), wake_up=AsyncMock(), collective_rpc=AsyncMock())
    monkeypatch.setattr(compat, "VERSION", (0, 26))
    sleepy = compat.sleepy(llm)
    for name in ("sleep", "wake_up", "collective_rpc", "checkpoint_prepare", "checkpoint_restore"):
        asyncio.run(getattr(sleepy, name)())
    llm.sleep.assert_awaited_once()
    monkeypatch.setattr(compat, "VERSION", (0, 27))
    assert compat.sleepy(llm) is llm


def test_unfinished_requests_are_counted_by_every_version(monkeypatch: pytest.MonkeyPatch) -> None:
    compat = pytest.importorskip("ebbtide_serve.vllm_versions.compat")
    newer = SimpleNamespace(get_num_unfinished_requests=lambda: 3)
    for version, llm in (((0, 28), SimpleNamespace(output_processor=newer)), ((0, 29), newer)):
        monkeypatch.setattr(compat, "VERSION", version)
        assert compat.unfinished_requests(llm) == 3


SAMPLES: tuple[object, ...] = (True, 1, -1, 0, 8.0, 1.5, "1", "x", "auto", "8k", "true", [], [1], ["a"], {}, {"a": 1})


adapter = functools.cache(TypeAdapter)


def refusals(kind: Any, field: str, value: object) -> bool:
    """Whether vLLM's own class refuses the value of one field."""
    try:
        adapter(kind).validate_python({field: value})
    except ValidationError as error:
        return any(one["loc"][:1] == (field,) for one in error.errors())
    except Exception:  # noqa: BLE001 - a validator of the whole that wants other fields too
        return False
    return False


def test_what_is_refused_before_a_start_is_refused_by_vllm_itself() -> None:
    """Each argument that ends in a field of one of its configuration classes, and the fields of these."""
    vllm_config = pytest.importorskip("vllm.config")
    facts = next(facts for facts in all_facts() if facts.version == installed_version())
    classes: dict[str, Any] = {name: kind for name, kind in vars(vllm_config).items() if dataclasses.is_dataclass(kind)}
    wrong = []
    homes: dict[str, list[Any]] = {}
    for name, kind in classes.items():
        for one in dataclasses.fields(kind) if name not in BECOMES.values() else ():
            homes.setdefault(one.name, []).append(kind)
    checked = 0
    for name in facts.engine_args.keys() & homes.keys() - RESERVED_ENGINE_KEYS.keys():
        for value in SAMPLES:
            if any(argument_findings(facts, {name: value}, ())):
                checked += 1
                if not any(refusals(kind, name, value) for kind in homes[name]):
                    wrong.append((name, value))
    given_as = {kind: argument for argument, kind in BECOMES.items()}
    for name, fields in facts.config_classes.items():
        named_by = (one for one, text in facts.engine_args.items() if name in named(text))
        argument = given_as.get(name) or next(named_by)
        for field in fields:
            for value in SAMPLES:
                if any(argument_findings(facts, {argument: {field: value}}, ())):
                    checked += 1
                    if not refusals(classes[name], field, value):
                        wrong.append((f"{name}.{field}", value))
    assert checked > 500
    assert not wrong, str(wrong)
