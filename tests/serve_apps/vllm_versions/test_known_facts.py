"""Facts are those of the vLLM that is here, whether they are on file, in the cache, or yet to be collected."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebbtide_serve.vllm_versions import known_facts
from ebbtide_serve.vllm_versions.facts import FOLDER, facts_of, file_of
from ebbtide_serve.vllm_versions.known_facts import all_facts, cache_folder, default_facts, facts_here

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ebbtide" / "vllm_facts"


def installed(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    monkeypatch.setattr(known_facts, "installed_version", lambda: version)


@pytest.fixture
def none_on_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """0.30 is installed, and there is no file of it."""
    installed(monkeypatch, "0.30.0")
    monkeypatch.setattr(known_facts, "FOLDER", tmp_path / "none")


class Collector:
    """In the place of the process that imports vLLM."""

    def __init__(self, content: str | None, returncode: int = 0) -> None:
        self.calls, self._content, self._code = 0, content, returncode

    def __call__(self, command: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        self.calls += 1
        if self._content is not None:
            file_of((0, 30), Path(command[-1])).write_text(self._content)
        return subprocess.CompletedProcess(command, self._code, "", "Traceback\nImportError: no libcuda.so")


def test_each_installed_version_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("0.26.0", "0.29.3", "0.32.0+cpu"):
        installed(monkeypatch, version)
        found = facts_here(pytest.fail)
        assert found is not None and found.version.startswith(version[:4])


def test_without_any_vllm_the_default_is_meant_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    notes: list[str] = []
    assert facts_here(notes.append) == default_facts()
    assert notes == ["no vLLM is installed on this machine: engine arguments are checked against vLLM 0.29.0"]


def test_of_a_version_that_no_engine_is_made_of_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "0.99.0")
    assert facts_here(pytest.fail) is None


@pytest.mark.usefixtures("none_on_file")
def test_a_version_without_facts_is_collected_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector(file_of((0, 30)).read_text())
    monkeypatch.setattr(subprocess, "run", collector)
    notes: list[str] = []
    first, second = facts_here(notes.append), facts_here(notes.append)
    assert first == second == facts_of((0, 30), FOLDER)
    assert notes == ["collecting the engine arguments of vLLM 0.30.0, once (about 10 s)"] and collector.calls == 1
    assert [file.name for file in (cache / "0.30.0").iterdir()] == ["0.30.json"]
    installed(monkeypatch, "0.30.1")  # another patch may have other arguments
    assert facts_here(notes.append) is not None and collector.calls == 2


@pytest.mark.usefixtures("none_on_file")
@pytest.mark.parametrize("broken", ["", "{", "[]", "3", json.dumps({"version": "0.30.0"})])
def test_a_broken_cache_is_made_again(cache: Path, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_of((0, 30), cache_folder("0.30.0"))
    file.parent.mkdir(parents=True)
    file.write_text(broken)
    collector = Collector(file_of((0, 30)).read_text())
    monkeypatch.setattr(subprocess, "run", collector)
    assert facts_here(lambda note: None) == facts_of((0, 30), FOLDER) and collector.calls == 1
    assert facts_of((0, 30), file.parent) == facts_of((0, 30), FOLDER)


@pytest.mark.usefixtures("none_on_file", "cache")
@pytest.mark.parametrize("collector", [Collector(None), Collector("{}", 0), Collector(None, 1)])
def test_what_cannot_be_collected_is_left_to_vllm(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", collector)
    notes: list[str] = []
    assert facts_here(notes.append) is None
    assert len(notes) == 2 and notes[1].startswith("engine arguments are not checked, for those of vLLM 0.30.0")
    assert not cache_folder("0.30.0").exists()


@pytest.mark.usefixtures("none_on_file", "cache")
def test_a_collector_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, 240.0)

    monkeypatch.setattr(subprocess, "run", hang)
    notes: list[str] = []
    assert facts_here(notes.append) is None
    assert "timed out after 240.0 seconds" in notes[1]


@pytest.mark.usefixtures("none_on_file")
def test_without_room_for_the_cache_they_are_used_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(subprocess, "run", Collector(file_of((0, 30)).read_text()))
    notes: list[str] = []
    assert facts_here(notes.append) == facts_of((0, 30), FOLDER)
    assert "they are not kept" in notes[1]


def test_the_cache_is_where_the_user_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/x")
    assert cache_folder("1") == Path("/home/x/.cache/ebbtide/vllm_facts/1")
    assert [facts.version[:4] for facts in all_facts()] == sorted(facts.version[:4] for facts in all_facts())
    assert os.path.isabs(cache_folder("1"))
