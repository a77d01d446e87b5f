"""The vLLM of this environment is as its file of facts says, and ours of it stands on what is there."""

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

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
