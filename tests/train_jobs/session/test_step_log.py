"""The step log: bounded, and never a reason to fail."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from ebbtide_train.session import step_log as step_log_module
from ebbtide_train.session.step_log import (
    GangLine,
    StepLine,
    StepLog,
    finished_by_last_gang,
    gang_lines,
    note_gang,
    step_lines,
)


def test_the_step_log_stays_within_its_bounds_and_keeps_the_newest(tmp_path: Path) -> None:
    def line(step: int) -> StepLine:
        return StepLine(step, 0, 1, "0x1p0", tuple(range(20)), float(step), 0.1)

    for epoch in range(1, 8):
        note_gang(tmp_path, GangLine(epoch, 1, 0, 0, 0.0), kept_bytes=3000, gangs_bytes=150)
        log = StepLog(tmp_path, rank=0, lease_epoch=epoch, segment_bytes=1000)
        for step in range(100):
            log.append(line(step))
        log.close()
        sizes = [path.stat().st_size for path in (tmp_path / "steps").iterdir()]
        assert sum(sizes) <= 3000 + 2 * 1200 and log.missed == 0
    assert max(found.step for found in step_lines(tmp_path)) == 99
    assert finished_by_last_gang(tmp_path) == 100
    assert (tmp_path / "gangs.jsonl").stat().st_size <= 150 + 100
    assert gang_lines(tmp_path)[-1].lease_epoch == 7


def test_a_log_that_cannot_be_written_costs_lines_and_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(fd: int, raw: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(step_log_module, "_AGAIN_S", 0.0)
    monkeypatch.setattr(step_log_module, "_PATIENCE_S", 30.0)  # each line is tried before the next step of the test
    log = StepLog(tmp_path, rank=0, lease_epoch=1)
    line = StepLine(0, 0, 1, "0x1p0", (1,), 0.0, 0.1)
    log.append(line)
    with monkeypatch.context() as full:
        full.setattr(os, "write", no_space)
        log.append(line)
        links = [one for one in Path("/proc/self/fd").iterdir() if one.exists()]
        assert not any(str(tmp_path) in str(one.resolve()) for one in links), "it might have to be unmounted"
    with monkeypatch.context() as nearly_full:  # half a line fits
        write = os.write
        nearly_full.setattr(os, "write", lambda fd, raw: write(fd, raw[: len(raw) // 2]))
        log.append(line)
    log.append(line)
    log.close()
    assert log.missed == 2
    assert len(step_lines(tmp_path)) == 2, "the torn line spoils no other"
    (tmp_path / "file").write_text("")
    StepLog(tmp_path / "file", rank=0, lease_epoch=1).append(line)  # no folder can be made there
    note_gang(tmp_path / "file", GangLine(1, 1, 0, 0, 0.0))


def test_a_log_that_hangs_holds_up_no_step_and_has_every_line_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_log_module, "_PATIENCE_S", 0.2)
    log = StepLog(tmp_path, rank=0, lease_epoch=1)
    lines = [StepLine(step, 0, 1, "0x1p0", (step,), 0.0, 0.1) for step in range(200)]
    log.append(lines[0])
    back = threading.Event()
    write = os.write
    with monkeypatch.context() as hung:
        hung.setattr(os, "write", lambda fd, raw: (back.wait(60), write(fd, raw))[1])
        began_s = time.monotonic()
        for line in lines[1:]:
            log.append(line)
        assert time.monotonic() - began_s < 10.0, "one step waits for its patience, and no other"
        assert len(step_lines(tmp_path)) == 1
        back.set()
        monkeypatch.setattr(step_log_module, "_PATIENCE_S", 30.0)
        log.close()
    assert sorted(line.step for line in step_lines(tmp_path)) == list(range(200)) and log.missed == 0


def test_lines_that_wait_for_a_log_that_hangs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_log_module, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(step_log_module, "_MOST_WAITING", 5)
    log = StepLog(tmp_path, rank=0, lease_epoch=1)
    back = threading.Event()
    write = os.write
    with monkeypatch.context() as hung:
        hung.setattr(os, "write", lambda fd, raw: (back.wait(60), write(fd, raw))[1])
        for step in range(20):
            log.append(StepLine(step, 0, 1, "0x1p0", (1,), 0.0, 0.1))
        assert log.missed == 15
        back.set()
        monkeypatch.setattr(step_log_module, "_PATIENCE_S", 30.0)
        log.close()
    assert sorted(line.step for line in step_lines(tmp_path)) == [0, 1, 2, 3, 4]
    log.append(StepLine(20, 0, 1, "0x1p0", (1,), 0.0, 0.1))
    assert log.missed == 16, "nobody writes any more"


def test_a_step_waits_for_its_line_so_that_a_kill_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_log_module, "_PATIENCE_S", 30.0)
    log = StepLog(tmp_path, rank=0, lease_epoch=1)
    write = os.write

    def slowly(fd: int, raw: bytes) -> int:
        time.sleep(0.02)
        return write(fd, raw)

    with monkeypatch.context() as slow:
        slow.setattr(os, "write", slowly)
        for step in range(5):
            log.append(StepLine(step, 0, 1, "0x1p0", (1,), 0.0, 0.1))
            assert len(step_lines(tmp_path)) == step + 1
    log.close()
