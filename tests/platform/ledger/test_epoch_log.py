"""The writing end: group commit, and a directory that is full, read-only, failing or hanging."""

import errno
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from ebbtide.ledger.epoch_log import MAX_PENDING_BYTES, EpochLog
from ebbtide.ledger.errors import LedgerBroken, LedgerUnusable, RecordRefused
from ebbtide.ledger.reader import epoch_path, list_epochs, replay
from ebbtide.ledger.record import JSON

WAIT_S = 60.0


def numbers(directory: Path) -> list[object]:
    return [record.payload["n"] for record in replay(directory)]


@pytest.mark.proves("the ledger's directory is its owner's only")
def test_records_are_numbered_and_read_back_in_order(tmp_path: Path) -> None:
    log = EpochLog.open(tmp_path / "a" / "ledger", writer="w")
    assert log.epoch == 1
    futures = [log.append([{"n": 2 * n}, {"n": 2 * n + 1}]) for n in range(50)]
    assert [future.result(WAIT_S) for future in futures] == list(range(2, 102, 2))
    log.close()
    assert numbers(log.directory) == list(range(100))
    assert [record.id for record in replay(log.directory)][:2] == ["1-1", "1-2"]
    assert log.directory.stat().st_mode & 0o777 == 0o700
    assert epoch_path(log.directory, 1).stat().st_mode & 0o777 == 0o600


@pytest.mark.proves("an epoch's first record is synced", "the name of an epoch's file is synced")
def test_all_that_is_queued_shares_one_write_and_one_fsync(tmp_path: Path) -> None:
    entered, go = threading.Event(), threading.Event()
    calls: list[str] = []

    def fsync(fd: int) -> None:
        calls.append("fsync")
        if len(calls) > 3:  # the opening's are over
            entered.set()
            assert go.wait(WAIT_S)
        os.fsync(fd)

    def write(fd: int, data: bytes) -> int:
        calls.append("write")
        return os.write(fd, data)

    log = EpochLog.open(tmp_path, writer="w", fsync=fsync, write=write)
    assert calls == ["fsync", "write", "fsync"]
    futures = [log.append([{"n": 0}])]
    assert entered.wait(WAIT_S)
    futures += [log.append([{"n": n}]) for n in range(1, 100)]
    assert not any(future.done() for future in futures), "nothing may be acknowledged before its fsync"
    go.set()
    assert [future.result(WAIT_S) for future in futures] == list(range(1, 101))
    assert calls[3:] == ["write", "fsync"] * 2
    log.close()


@pytest.mark.proves("a short write is finished")
def test_a_short_write_is_finished(tmp_path: Path) -> None:
    log = EpochLog.open(tmp_path, writer="w", write=lambda fd, data: os.write(fd, data[:7]))
    log.append([{"n": n} for n in range(20)]).result(WAIT_S)
    log.close()
    assert numbers(tmp_path) == list(range(20))


@pytest.mark.proves("every append is synced")
def test_after_a_failed_fsync_the_log_is_broken_for_good(tmp_path: Path) -> None:
    failing = False

    def fsync(fd: int) -> None:
        if failing:
            raise OSError(errno.EIO, "Input/output error")
        os.fsync(fd)

    log = EpochLog.open(tmp_path, writer="w", fsync=fsync)
    log.append([{"n": 1}]).result(WAIT_S)
    failing = True
    with pytest.raises(LedgerBroken, match=r"epoch-00000001\.log: \[errno 5\]"):
        log.append([{"n": 2}]).result(WAIT_S)
    failing = False
    size = epoch_path(tmp_path, 1).stat().st_size
    late = log.append([{"n": 3}])
    assert late.done() and isinstance(late.exception(), LedgerBroken)
    assert "errno 5" in log.health().broken
    log.close()
    assert epoch_path(tmp_path, 1).stat().st_size == size
    with EpochLogs(tmp_path) as after:
        after.append([{"n": 4}]).result(WAIT_S)
    assert numbers(tmp_path)[0] == 1 and numbers(tmp_path)[-1] == 4


def test_a_full_filesystem_breaks_the_log_and_keeps_what_was_acknowledged(small_tmpfs: Path) -> None:
    log = EpochLog.open(small_tmpfs / "ledger", writer="w")
    acked = 0
    with pytest.raises(LedgerBroken, match=r"errno 28"):
        while True:
            log.append([{"n": acked, "pad": "x" * 999}]).result(WAIT_S)
            acked += 1
    log.close()
    assert acked > 20
    assert numbers(small_tmpfs / "ledger") == list(range(acked))
    (small_tmpfs / "fill").write_bytes(b"")  # inodes are left, pages are not
    with pytest.raises(LedgerUnusable, match=r"errno 28.*has space"):
        EpochLog.open(small_tmpfs / "ledger", writer="again")
    assert numbers(small_tmpfs / "ledger") == list(range(acked))


def test_a_read_only_filesystem_is_refused_with_its_name_and_changes_nothing(small_tmpfs: Path) -> None:
    log = EpochLog.open(small_tmpfs / "ledger", writer="w")
    log.append([{"n": 1}]).result(WAIT_S)
    log.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_tmpfs)], check=True, timeout=WAIT_S)
    with pytest.raises(LedgerUnusable, match=rf"{small_tmpfs}/ledger.*errno 30"):
        EpochLog.open(small_tmpfs / "ledger", writer="again")
    assert [path.name for path in (small_tmpfs / "ledger").iterdir()] == ["epoch-00000001.log"]
    assert numbers(small_tmpfs / "ledger") == [1]


def test_a_quota_breaks_the_log_in_mid_record_and_no_half_of_it_counts(tmp_path: Path) -> None:
    program = (
        "import resource, sys; from pathlib import Path; from ebbtide.ledger.epoch_log import EpochLog\n"
        "log = EpochLog.open(Path(sys.argv[1]), writer='w')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "for n in range(100): log.append([{'n': n, 'pad': 'x' * 300}]).result(20); print(n, flush=True)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    acked = [int(line) for line in ran.stdout.split()]
    assert f"errno {errno.EFBIG}" in ran.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 10_000
    assert epoch_path(tmp_path, 1).stat().st_size == 10_000
    assert numbers(tmp_path) == acked == list(range(len(acked)))


@pytest.mark.proves("after a failed write no more is written to the file")
def test_what_was_queued_behind_a_failed_append_is_not_written_either(tmp_path: Path) -> None:
    """Not by the same thread in the same round: a snapshot behind it would say what is not in the ledger."""
    hung, released = threading.Event(), threading.Event()
    calls = 0

    def fsync(fd: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:  # the opening's are over
            hung.set()
            assert released.wait(WAIT_S)
        if calls == 4:
            raise OSError(errno.EIO, "Input/output error")
        os.fsync(fd)

    log = EpochLog.open(tmp_path, writer="w", fsync=fsync)
    first = log.append([{"n": 0}])
    assert hung.wait(WAIT_S)
    behind = [log.append([{"n": 1}]), log.roll([{"about": "all"}]), log.append([{"n": 2}])]
    released.set()
    assert first.result(WAIT_S) == 1
    assert all(isinstance(one.exception(WAIT_S), LedgerBroken) for one in behind)
    log.close()
    assert list_epochs(tmp_path) == [1] and calls == 4
    assert 2 not in numbers(tmp_path)


@pytest.mark.proves("a write that takes nothing fails")
def test_a_write_that_takes_nothing_is_a_failure_and_not_tried_for_ever(tmp_path: Path) -> None:
    tries = count()

    def takes_nothing(fd: int, data: bytes) -> int:
        assert next(tries) < 9
        return 0

    with pytest.raises(LedgerUnusable, match="write took nothing"):
        EpochLog.open(tmp_path, writer="w", write=takes_nothing)


@pytest.mark.proves("a closed log says so", "after a failed write no more is taken")
def test_a_log_that_was_closed_takes_nothing_more_though_its_filesystem_hangs(tmp_path: Path) -> None:
    hung, released = threading.Event(), threading.Event()
    opened = False

    def fsync(fd: int) -> None:
        if opened:
            hung.set()
            assert released.wait(WAIT_S)
        os.fsync(fd)

    log = EpochLog.open(tmp_path, writer="w", fsync=fsync)
    opened = True
    before = log.append([{"n": 0}])
    assert not before.done() and hung.wait(WAIT_S)
    log.close(timeout_s=0.05)
    late = log.append([{"n": 1}])
    assert late.done() and "closed" in str(late.exception())
    released.set()
    assert before.result(WAIT_S) == 1
    assert numbers(tmp_path) == [0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.proves("no caller waits for ever")
def test_nobody_waits_for_ever_for_a_writer_that_ended_by_a_bug(tmp_path: Path) -> None:
    opened = False

    def write(fd: int, data: bytes) -> int:
        if opened:
            raise RuntimeError("a bug")
        return os.write(fd, data)

    log = EpochLog.open(tmp_path, writer="w", write=write)
    opened = True
    assert isinstance(log.append([{"n": 1}]).exception(WAIT_S / 4), LedgerBroken)
    assert isinstance(log.append([{"n": 2}]).exception(WAIT_S / 4), LedgerBroken)
    log.close()  # when its thread is gone, its last words have been heard, and count for no other test


def test_a_hanging_filesystem_blocks_nobody_who_appends(tmp_path: Path) -> None:
    hung, released = threading.Event(), threading.Event()
    opened = False

    def fsync(fd: int) -> None:
        if opened:
            hung.set()
            assert released.wait(WAIT_S)
        os.fsync(fd)

    log = EpochLog.open(tmp_path, writer="w", fsync=fsync)
    opened = True
    futures = [log.append([{"n": 0}])]
    assert hung.wait(WAIT_S)
    begin_s = time.monotonic()
    futures += [log.append([{"n": n}]) for n in range(1, 500)]
    with pytest.raises(TimeoutError):
        futures[0].result(0.05)
    assert not futures[0].cancel(), "what is being written cannot be taken back"
    health = log.health()
    assert time.monotonic() - begin_s < 30.0
    assert health.pending == 500 and health.oldest_pending_s >= 0.05 and health.broken == ""
    log.close(timeout_s=0.05)
    released.set()
    assert [future.result(WAIT_S) for future in futures] == list(range(1, 501))
    assert numbers(tmp_path) == list(range(500))


@pytest.mark.proves("what waits for a hung filesystem has a bound")
def test_a_filesystem_that_hangs_too_long_breaks_the_log_instead_of_eating_memory(tmp_path: Path) -> None:
    released = threading.Event()
    opened = False

    def write(fd: int, data: bytes) -> int:
        if opened:
            assert released.wait(WAIT_S)
        return os.write(fd, data)

    log = EpochLog.open(tmp_path, writer="w", write=write)
    opened = True
    log.append([{"n": 0}])
    big: dict[str, JSON] = {"n": 1, "pad": "x" * (8 << 20)}
    futures = [log.append([big]) for _ in range(MAX_PENDING_BYTES // (8 << 20) + 3)]
    assert isinstance(futures[-1].exception(0), LedgerBroken) and not futures[0].done()
    assert "hangs" in log.health().broken
    released.set()
    log.close()


@pytest.mark.proves("no record is above the limit")
def test_a_refused_payload_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    refused: list[JSON] = [float("nan"), "x" * (17 << 20)]
    with EpochLogs(tmp_path) as log:
        for one in refused:
            with pytest.raises(RecordRefused):
                log.append([{"n": 1}, {"n": one}])
        assert log.append([{"n": 2}]).result(WAIT_S) == 1
    assert numbers(tmp_path) == [2]


def test_a_closed_log_says_so(tmp_path: Path) -> None:
    log = EpochLog.open(tmp_path, writer="w")
    log.close()
    log.close()
    assert "closed" in str(log.append([{"n": 1}]).exception(WAIT_S))


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(LedgerUnusable, match=rf"{tmp_path}/file/ledger"):
        EpochLog.open(tmp_path / "file" / "ledger", writer="w")


class EpochLogs:
    """A log that is closed at the end of a ``with``."""

    def __init__(self, directory: Path, open_log: Callable[..., EpochLog] = EpochLog.open) -> None:
        self.log = open_log(directory, writer="w")

    def __enter__(self) -> EpochLog:
        return self.log

    def __exit__(self, *_: object) -> None:
        self.log.close()


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 64 KiB."""
    where = tmp_path / "small"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "ebbtide-test", str(where)]
    if subprocess.run(mount, capture_output=True, timeout=WAIT_S, check=False).returncode != 0:
        pytest.skip("mounting is not permitted here")
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True, timeout=WAIT_S)
