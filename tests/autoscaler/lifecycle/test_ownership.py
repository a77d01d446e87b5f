"""Whose a shared directory is: read before anything is started, also when nobody can be asked."""

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ebbtide.config.pool_file import PoolFile
from ebbtide.system.process import boot_id, started_ticks
from ebbtide_autoscaler.journal.heartbeat import Heartbeat, beat_file
from ebbtide_autoscaler.lifecycle.ownership import (
    Ownership,
    Taken,
    check_directory,
    claim_of,
    mark_directory,
    release_directory,
    unmark_directory,
)

ME = (os.getpid(), started_ticks(os.getpid()) or 0)


def a_file(shared: Path, name: str = "p") -> PoolFile:
    return PoolFile.model_validate_json(json.dumps({"pool": {"name": name, "shared_dir": str(shared)}}))


def a_claim(shared: Path, **fields: object) -> Ownership:
    blank = Ownership("c1", "p", str(shared), "h:1", "h", boot_id(), ((1 << 22, 1),))
    return replace(blank, **fields)  # type: ignore[arg-type]


def beat(shared: Path, **fields: object) -> None:
    one = Heartbeat("p", 1, "far", "another boot", 1, 1, time.time())
    beat_file(shared).write_text(json.dumps(asdict(replace(one, **fields))))  # type: ignore[arg-type]


def test_a_new_directory_is_nobody_s(tmp_path: Path) -> None:
    assert check_directory(a_file(tmp_path), known_id="") is None
    assert list(tmp_path.iterdir()) == []


def test_a_mark_survives_and_goes(tmp_path: Path) -> None:
    claim = a_claim(tmp_path)
    mark_directory(claim)
    assert claim_of(tmp_path) == claim
    assert (tmp_path / "pool.json").stat().st_mode & 0o077 == 0
    unmark_directory(tmp_path)
    assert claim_of(tmp_path) is None


@pytest.mark.proves("another pool's directory is refused")
def test_another_pool_s_directory_is_refused_although_nothing_of_it_runs(tmp_path: Path) -> None:
    mark_directory(a_claim(tmp_path))
    with pytest.raises(Taken, match="belongs to the pool p, and the file names the pool q"):
        check_directory(a_file(tmp_path, "q"), known_id="")


@pytest.mark.proves("a directory whose pool has processes here is refused")
def test_the_same_pool_is_refused_while_its_processes_live_here_under_another_record(tmp_path: Path) -> None:
    mark_directory(a_claim(tmp_path, pids=(ME,)))
    with pytest.raises(Taken, match="runs already on h"):
        check_directory(a_file(tmp_path), known_id="")
    assert check_directory(a_file(tmp_path), known_id="c1") is not None, "by its own record it may be used"


@pytest.mark.proves("a directory whose arbiter gives signs of life elsewhere is refused")
def test_the_same_pool_is_refused_while_an_arbiter_elsewhere_gives_signs_of_life(tmp_path: Path) -> None:
    mark_directory(a_claim(tmp_path, boot="another boot"))
    beat(tmp_path)
    with pytest.raises(Taken, match="last sign of life 0 s ago"):
        check_directory(a_file(tmp_path), known_id="")
    beat(tmp_path, at_s=time.time() - 60)
    assert check_directory(a_file(tmp_path), known_id="") is not None, "a lost cluster's pool is taken up again"


@pytest.mark.proves("here a process is looked at, and not the clock")
def test_here_a_process_is_looked_at_and_not_the_clock(tmp_path: Path) -> None:
    mark_directory(a_claim(tmp_path))
    beat(tmp_path, boot=boot_id(), pid=1 << 22, started=1)
    assert check_directory(a_file(tmp_path), known_id="") is not None, "its last beat is fresh, and it is dead"
    beat(tmp_path, boot=boot_id(), pid=ME[0], started=ME[1], at_s=0.0)
    with pytest.raises(Taken):
        check_directory(a_file(tmp_path), known_id="")


def test_a_mark_that_cannot_be_read_refuses(tmp_path: Path) -> None:
    (tmp_path / "pool.json").write_text("{")
    with pytest.raises(Taken, match="cannot be read"):
        check_directory(a_file(tmp_path), known_id="")


@pytest.mark.proves("the mark of another cluster stays")
def test_a_directory_that_is_released_is_free_at_once_and_another_s_stays_marked(tmp_path: Path) -> None:
    """An `up` that was ended a moment ago leaves no sign of life that keeps the next one out."""
    mark_directory(a_claim(tmp_path, pids=(ME,)))
    beat(tmp_path)
    release_directory(tmp_path, "another claim")
    with pytest.raises(Taken, match="runs already"):
        check_directory(a_file(tmp_path), known_id="")
    release_directory(tmp_path, "c1")
    assert check_directory(a_file(tmp_path), known_id="") is None
    assert not beat_file(tmp_path).exists()
    release_directory(tmp_path, "c1")
