"""Keeping parameters: how much memory it may take, and what a rank tells about it."""

from pathlib import Path

import psutil
import pytest

from ebbtide_serve.loading.flat import capture
from ebbtide_serve.loading.flat import capture_state as held_module
from ebbtide_serve.loading.flat.capture_state import CaptureState
from tests.builders.rank_load import Rank
from tests.serve_apps.loading.small_model import publish_small, reach


class Memory:
    available = 100_000


@pytest.mark.parametrize(
    ("limit", "current", "stat", "wanted"),
    [
        (None, None, None, 25_000),
        ("max", "5", None, 25_000),
        ("60000", "20000", None, 10_000),
        ("10", "20", None, 0),
        ("60000", "50000", "anon 1\nfile 40000\ninactive_file 30000\nactive_file 10000", 10_000),
        ("60000", "50000", "inactive_file 70000", 15_000),
        ("60000", "20000", "inactive_file a lot", 10_000),
    ],
)
def test_a_quarter_of_what_is_free_here_or_in_the_container(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str | None,
    current: str | None,
    stat: str | None,
    wanted: int,
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    monkeypatch.setattr(capture, "_CGROUP", tmp_path)
    for name, text in (("memory.max", limit), ("memory.current", current), ("memory.stat", stat)):
        if text is not None:
            (tmp_path / name).write_text(text + "\n")
    assert capture.memory_for_capture(1) == wanted
    assert capture.memory_for_capture(4) == wanted // 4


def test_what_is_dropped_cannot_be_written(tmp_path: Path) -> None:
    store = reach(tmp_path / "store")
    one = Rank(store, publish_small(store.store)).load()
    one.held.drop("not wanted")
    one.held.begin("flat-x-1")
    assert one.held.state() == {"phase": "none", "why": "not wanted", "entry": None}


def test_a_rank_that_holds_nothing_says_why() -> None:
    held = CaptureState()
    assert held.state()["why"]
    held.nothing("because")
    assert held.state() == {"phase": "none", "why": "because", "entry": None}


def test_writing_where_no_publication_is_fails_and_gives_the_memory_back(tmp_path: Path) -> None:
    store = reach(tmp_path / "store")
    one = Rank(store, publish_small(store.store)).load()
    kept = one.held._capture
    assert kept is not None
    one.held._phase = one.held._phase.STAGING
    one.held._stage("flat-nobody-1")
    assert one.held.state()["phase"] == "failed"
    assert "there is no work directory" in str(one.held.state()["why"])
    assert not kept.memory


def test_what_is_dropped_while_it_is_written_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = reach(tmp_path / "store")
    one = Rank(store, publish_small(store.store)).load()
    monkeypatch.setattr(held_module, "stage", lambda *_: one.held.drop("not wanted"))
    one.held._phase = one.held._phase.STAGING
    one.held._stage("flat-x-1")
    assert one.held.state() == {"phase": "none", "why": "not wanted", "entry": None}


def test_what_is_held_stays_held_whatever_becomes_of_another_model(tmp_path: Path) -> None:
    store = reach(tmp_path / "store")
    one = Rank(store, publish_small(store.store)).load()
    one.held.nothing("a draft model has no flat form")
    assert (one.held.state()["phase"], one.held.state()["why"]) == ("held", "")
