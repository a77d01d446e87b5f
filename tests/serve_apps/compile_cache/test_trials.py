"""Which restored caches a start of this node did not come through with."""

import os
from pathlib import Path

import pytest

from ebbtide.storage.names import ObjectId
from ebbtide.system.process import started_ticks
from ebbtide_serve.compile_cache import trials
from ebbtide_serve.compile_cache.cache_dir import own_directory

ONE, OTHER = ObjectId("ab" * 32), ObjectId("cd" * 32)
DEAD = 2**22 + 1  # above the largest process id


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    started = started_ticks(os.getpid())
    assert started is not None
    return own_directory(tmp_path, os.getpid(), started)


def test_a_start_under_way_makes_nothing_suspect(tmp_path: Path, mine: Path) -> None:
    assert trials.suspects(tmp_path / "nothing there") == frozenset()
    trials.begin(mine, ONE)
    assert trials.suspects(tmp_path) == frozenset()
    trials.mark_passed(mine)
    assert list(tmp_path.iterdir()) == []
    trials.mark_passed(mine)


def test_a_start_that_failed_makes_its_caches_suspect_at_once(tmp_path: Path, mine: Path) -> None:
    trials.mark_failed(mine)
    assert trials.suspects(tmp_path) == frozenset()
    trials.begin(mine, ONE)
    trials.mark_failed(mine)
    trials.mark_passed(mine)
    assert trials.suspects(tmp_path) == {ONE}


def test_so_does_one_whose_process_is_dead(tmp_path: Path, mine: Path) -> None:
    trials.begin(own_directory(tmp_path, DEAD, 7), ONE)
    trials.begin(mine, OTHER)
    assert trials.suspects(tmp_path) == {ONE}


def test_what_was_dealt_with_is_forgotten(tmp_path: Path) -> None:
    for _ in range(2):
        trials.begin(own_directory(tmp_path, DEAD, 7), ONE)
    trials.begin(own_directory(tmp_path, DEAD, 7), OTHER)
    trials.forget(tmp_path, ONE)
    assert trials.suspects(tmp_path) == {OTHER}


def test_old_suspicions_and_nonsense_do_not_count(tmp_path: Path) -> None:
    old = own_directory(tmp_path, DEAD, 7)
    trials.begin(old, ONE)
    [note] = tmp_path.iterdir()
    os.utime(note, (1, 1))
    own_directory(tmp_path, DEAD, 8).with_suffix(".trial").write_bytes(b"\xff no id")
    (tmp_path / "other.trial").write_text(ONE)
    assert trials.suspects(tmp_path) == frozenset()
    assert not note.exists()
