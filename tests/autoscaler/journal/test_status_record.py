"""A record of the status counts only while its writer lives, on this machine, for the cluster that is meant."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ebbtide_autoscaler.journal import status_record
from ebbtide_autoscaler.journal.status_record import (
    StatusRecorder,
    read_record,
    record_file,
    subject_of,
    write_record,
)

MINE = subject_of("p", "/shared", "127.0.0.1:6379")
STATUS = {"pool": "p", "arbiter": {"epoch": 3}}


def now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def leave(folder: Path, *, ago_s: float = 0.0, **other: object) -> None:
    """A record of this process; ``other``: what stands in it instead."""
    write_record(folder, MINE, STATUS, since_boot_s=now_s() - ago_s)
    told = json.loads(record_file(folder).read_text())
    record_file(folder).write_text(json.dumps(told | other))


def test_what_was_written_is_read_with_its_age(tmp_path: Path) -> None:
    leave(tmp_path, ago_s=1.5)
    found = read_record(tmp_path, MINE)
    assert found is not None and found.status == STATUS and 1.5 <= found.age_s < 3.0
    assert record_file(tmp_path).stat().st_mode & 0o077 == 0, "no other user may read it"
    assert [one.name for one in tmp_path.iterdir()] == ["status.json"]


def test_a_host_may_be_written_in_two_ways(tmp_path: Path) -> None:
    leave(tmp_path)
    assert read_record(tmp_path, subject_of("p", "/shared", "head.example:6379")) is not None


@pytest.mark.parametrize(
    "other",
    [replace(MINE, pool="q"), replace(MINE, shared_dir="/elsewhere"), replace(MINE, port="6380")],
    ids=["pool", "directory", "cluster"],
)
@pytest.mark.proves("a record of another pool, cluster or boot does not count")
def test_a_record_of_another_pool_or_cluster_does_not_count(tmp_path: Path, other: status_record.RecordSubject) -> None:
    leave(tmp_path)
    assert read_record(tmp_path, other) is None


@pytest.mark.proves("a record of another pool, cluster or boot does not count")
def test_a_record_of_another_boot_does_not_count(tmp_path: Path) -> None:
    leave(tmp_path, boot="6a1d1a3e-0000-4000-8000-000000000000")
    assert read_record(tmp_path, MINE) is None


@pytest.mark.proves("a record of a dead arbiter does not count")
def test_a_record_of_a_dead_arbiter_does_not_count(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
    leave(tmp_path, pid=child.pid, started=started)
    assert read_record(tmp_path, MINE) is not None
    child.kill()
    child.communicate()
    assert read_record(tmp_path, MINE) is None


@pytest.mark.proves("a record of a dead arbiter does not count")
def test_a_pid_that_came_to_mean_another_process_does_not_count(tmp_path: Path) -> None:
    leave(tmp_path, started=1)
    assert read_record(tmp_path, MINE) is None


@pytest.mark.proves("a record of another user does not count")
def test_a_record_of_another_user_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    assert read_record(tmp_path, MINE) is None


def test_a_time_of_day_that_jumps_makes_no_record_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(tmp_path, ago_s=10.0)
    for jump_s in (-3600.0, 3600.0, -20.0):
        monkeypatch.setattr(time, "time", lambda jump_s=jump_s: jump_s)
        found = read_record(tmp_path, MINE)
        assert found is not None and 10.0 <= found.age_s < 15.0


def test_a_record_from_the_future_does_not_count(tmp_path: Path) -> None:
    leave(tmp_path, ago_s=-60.0)
    assert read_record(tmp_path, MINE) is None


def test_a_record_of_another_format_does_not_count(tmp_path: Path) -> None:
    leave(tmp_path, format=2)
    assert read_record(tmp_path, MINE) is None


@pytest.mark.parametrize("status", [None, [], "x", 3])
def test_a_status_that_is_none_does_not_count(tmp_path: Path, status: object) -> None:
    leave(tmp_path, status=status)
    assert read_record(tmp_path, MINE) is None


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, 400), st.binary(max_size=20))
def test_half_a_file_is_as_none(tmp_path: Path, end: int, tail: bytes) -> None:
    leave(tmp_path)
    whole = record_file(tmp_path).read_bytes()
    record_file(tmp_path).write_bytes(whole[: min(end, len(whole) - 1)] + tail)
    found = read_record(tmp_path, MINE)
    assert found is None or found.status == STATUS  # what was cut off and put there again


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b"3", b'{"format": 1}', b"\xff\xfe", b"[" * 100_000])
def test_a_file_of_something_else_is_as_none(tmp_path: Path, raw: bytes) -> None:
    record_file(tmp_path).write_bytes(raw)
    assert read_record(tmp_path, MINE) is None


def test_no_file_and_no_folder_are_as_none(tmp_path: Path) -> None:
    assert read_record(tmp_path, MINE) is None
    assert read_record(tmp_path / "none", MINE) is None
    record_file(tmp_path).mkdir()
    assert read_record(tmp_path, MINE) is None


def recorder(folder: Path, status: Callable[[], dict[str, Any]], version: Callable[[], object]) -> StatusRecorder:
    return StatusRecorder(folder, MINE, status, version)


def until(holds: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.01)


def told(folder: Path) -> dict[str, Any]:
    found = read_record(folder, MINE)
    return {} if found is None else found.status


def test_a_change_is_in_the_record_long_before_its_second_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_record, "EVERY_S", 60.0)
    state = [object()]
    recorder(tmp_path, lambda: {"state": id(state[0])}, lambda: state[0]).start()
    until(lambda: told(tmp_path) == {"state": id(state[0])})
    state[0] = object()
    until(lambda: told(tmp_path) == {"state": id(state[0])})


def test_it_is_written_anew_without_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_record, "EVERY_S", 0.2)
    count = iter(range(1_000))
    recorder(tmp_path, lambda: {"n": next(count)}, lambda: None).start()
    until(lambda: told(tmp_path).get("n", 0) >= 3)


def test_a_status_that_fails_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_record, "EVERY_S", 0.1)
    failing = [True]

    def status() -> dict[str, Any]:
        if failing[0]:
            raise RuntimeError("of the tests")
        return STATUS

    kept = recorder(tmp_path, status, lambda: None)
    kept.start()
    kept.write()
    assert told(tmp_path) == {}
    failing[0] = False
    until(lambda: told(tmp_path) == STATUS)


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    kept = recorder(tmp_path / "none", lambda: STATUS, lambda: None)
    kept.write()
    (tmp_path / "none").mkdir()
    kept.write()
    assert told(tmp_path / "none") == STATUS


@pytest.mark.proves("a record that was made later is never replaced by an earlier one")
def test_a_person_s_wish_is_not_overwritten_by_what_was_so_before(tmp_path: Path) -> None:
    frozen, inside, go = [False], threading.Event(), threading.Event()

    def status() -> dict[str, Any]:
        now = {"frozen": frozen[0]}
        if threading.current_thread() is slow:
            inside.set()
            go.wait(5)
        return now

    kept = recorder(tmp_path, status, lambda: None)
    slow = threading.Thread(target=kept.write)
    slow.start()  # the writer of each second, in the middle of it
    inside.wait(5)
    frozen[0] = True
    answered = threading.Thread(target=kept.write)  # of the call that froze the pool
    answered.start()
    answered.join(0.2)
    go.set()
    slow.join(5)
    answered.join(5)
    assert told(tmp_path) == {"frozen": True}


def test_drafts_of_killed_arbiters_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".status.12345").write_text("{")
    recorder(tmp_path, lambda: STATUS, lambda: None).start()
    until(lambda: told(tmp_path) == STATUS)
    assert not (tmp_path / ".status.12345").exists()


def test_a_status_that_costs_much_is_written_seldom() -> None:
    assert status_record.pause_s(0.0) == status_record.pause_s(0.0005) == 0.1, "a small pool's"
    assert status_record.pause_s(0.05) == pytest.approx(5.0), "1 % of a core"


def test_a_status_that_takes_too_long_to_make_is_left_no_more(tmp_path: Path) -> None:
    made = []

    def status() -> dict[str, Any]:
        made.append(1)
        end_s = time.thread_time() + status_record.DEAR_S + 0.01
        while time.thread_time() < end_s:
            pass
        return STATUS

    kept = recorder(tmp_path, status, lambda: None)
    kept.start()
    until(lambda: bool(made) and not record_file(tmp_path).exists() and not list(tmp_path.glob(".status.*")))
    kept.write()
    assert len(made) == 1 and told(tmp_path) == {}
