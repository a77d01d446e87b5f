"""Allocation logs: what occupants say of themselves, and how two on one slot would show."""

import os
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from ebbtide.agent.slot_locks import allocation_log
from ebbtide.agent.slot_locks.allocation_log import Occupancy, double_occupancy_s, read_occupancies
from ebbtide.agent.slot_locks.slot_lock import SlotLock
from ebbtide.client.messages import SlotRef
from tests.platform.agent.conftest import WAIT_S, StartHolder, ask, wait_until


def boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def test_a_released_slot_has_an_exact_interval(tmp_path: Path) -> None:
    slot = SlotRef("0123456789abcdef", 1)
    lock = SlotLock(tmp_path / "l", slot, workload="mine", epoch=7, log_dir=tmp_path / "o")
    spans = []
    for _ in range(2):
        begin_s = boot_s()
        lock.acquire(0.0)
        spans.append((begin_s, boot_s()))
        lock.release()
        spans[-1] = (*spans[-1], boot_s())  # type: ignore[assignment]
    found = read_occupancies(tmp_path / "o")
    assert [(one.slot, one.workload, one.epoch, one.pid, one.released) for one in found] == [
        ("0123456789abcdef:1", "mine", 7, os.getpid(), True)
    ] * 2
    for one, (before_s, _, after_s) in zip(found, spans, strict=True):  # type: ignore[misc]
        assert before_s <= one.begin_s <= one.end_s <= after_s
    (path,) = (tmp_path / "o").iterdir()
    assert path.name.startswith(f"01234567-{os.getpid()}-")
    assert double_occupancy_s(found) == 0.0


def test_the_end_of_a_killed_occupant_is_known_to_a_tenth_of_a_second(
    tmp_path: Path, start_holder: StartHolder
) -> None:
    log_dir = tmp_path / "o"
    holder = start_holder(tmp_path / "l", 0, "victim", 3, log_dir)
    held_s = boot_s()
    wait_until(lambda: bool(read_occupancies(log_dir)) and read_occupancies(log_dir)[0].end_s > held_s + 0.25)
    killed_s = boot_s()
    holder.kill()
    holder.wait()
    successor = start_holder(tmp_path / "l", 0, "successor", 4, log_dir)
    assert ask(successor, "release") == "released"
    first, second = read_occupancies(log_dir)
    assert (first.workload, first.released) == ("victim", False)
    assert killed_s - 1.0 < first.end_s <= boot_s()
    assert (second.workload, second.released) == ("successor", True)
    assert second.begin_s >= first.end_s
    assert double_occupancy_s([first, second]) == 0.0


def test_a_hanging_or_failing_log_directory_never_holds_up_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    slot = SlotRef("n", 0)
    with SlotLock(tmp_path, slot, workload="w", epoch=1, log_dir=tmp_path / "file" / "o") as lock:
        assert lock.held

    hang = threading.Event()
    monkeypatch.setattr(os, "makedirs", lambda *_a, **_k: hang.wait(WAIT_S))
    monkeypatch.setattr(allocation_log, "_CLOSE_PATIENCE_S", 0.05)
    hanging = SlotLock(tmp_path, slot, workload="w", epoch=1, log_dir=tmp_path / "o")
    monkeypatch.setattr("ebbtide.agent.slot_locks.slot_lock._make_directory", lambda _d: None)
    begin_s = time.monotonic()
    hanging.acquire(0.0)
    hanging.release()
    assert time.monotonic() - begin_s < 20.0
    hang.set()


def is_held_at(log_dir: Path, at_s: float, times: int) -> bool:
    found = read_occupancies(log_dir)
    return len(found) == times and found[-1].end_s > at_s


def test_the_log_of_a_slot_that_is_held_for_long_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation_log, "HOLDING_EVERY_S", 0.002)
    slot = SlotRef("0123456789abcdef", 1)
    for turn in (1, 2):
        one = allocation_log.AllocationLog(tmp_path, slot, workload="mine", epoch=turn)
        wait_until(partial(is_held_at, tmp_path, boot_s() + 0.3, turn))
        (path,) = tmp_path.iterdir()
        assert len(path.read_bytes().splitlines()) <= 2 * turn
        one.note_released()
        one.close()
        assert [found.released for found in read_occupancies(tmp_path)] == [True] * turn


def test_half_a_line_and_strange_lines_are_left_out(tmp_path: Path) -> None:
    good = '{"t": %s, "slot": "n:0", "workload": "w", "epoch": 1, "pid": 9, "event": "%s"}\n'
    text = good % (1.0, "acquired") + "nonsense\n[]\n" + good % (1.1, "holding") + '{"t": 1.2, "slot": "n:'
    (tmp_path / "n-9-1.jsonl").write_text(text)
    assert read_occupancies(tmp_path) == [Occupancy("n:0", "w", 1, 9, 1.0, 1.1, False)]


def test_overlaps_are_counted_per_slot_and_touching_is_none() -> None:
    def held(slot: str, begin_s: float, end_s: float) -> Occupancy:
        return Occupancy(slot, "w", 1, 1, begin_s, end_s, True)

    assert double_occupancy_s([]) == 0.0
    assert double_occupancy_s([held("a", 0, 2), held("a", 2, 3), held("b", 1, 2), held("a", 3, 3)]) == 0.0
    assert double_occupancy_s([held("a", 0, 2), held("a", 1.5, 3), held("b", 0, 9)]) == pytest.approx(0.5)
    assert double_occupancy_s([held("a", 0, 4), held("a", 1, 2), held("a", 1, 3)]) == pytest.approx(2.0)
