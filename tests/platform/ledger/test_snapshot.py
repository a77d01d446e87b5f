"""Snapshots: replay starts with the newest whole one, the past is bounded, and nothing acknowledged is lost."""

import errno
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from ebbtide.ledger import epoch_file, ledger_files
from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.ledger.errors import (
    LedgerBroken,
    LedgerCorrupt,
    LedgerFenced,
    LedgerUnusable,
    RecordRefused,
    SnapshotDeclined,
)
from ebbtide.ledger.history_bounds import HistoryBounds, remove_history
from ebbtide.ledger.reader import Follower, epoch_path, list_epochs, replay, survey
from ebbtide.ledger.record import JSON, encode_payload, frame
from ebbtide.ledger.sqlite_index import LedgerIndex

WAIT_S = 60.0
ALL = HistoryBounds()
NONE = HistoryBounds(max_bytes=0)


def put(log: EpochLog, *numbers: int) -> None:
    log.append([{"type": "event", "id": str(n), "job": "lm", "n": n} for n in numbers]).result(WAIT_S)


def roll(log: EpochLog, *sums: int) -> None:
    log.roll([{"sum": value} for value in sums]).result(WAIT_S)


def folded(directory: Path, *, up_to: int | None = None) -> list[int]:
    """What a replay knows: numbers since the newest whole snapshot, which says all numbers until then."""
    known: list[int] = []
    parts: list[int] = []
    for record in replay(directory, up_to=up_to, from_snapshot=True):
        if record.payload["type"] != "snapshot":
            known.append(int(str(record.payload["n"])))
            continue
        parts = parts if record.payload["part"] != 1 else []
        parts.append(int(str(record.payload["sum"])))
        if record.payload["part"] == record.payload["of"]:
            known = parts
    return known


def history(directory: Path) -> list[object]:
    return [record.payload["n"] for record in replay(directory)]


@pytest.mark.proves("only a whole snapshot is a base")
def test_replay_starts_with_the_snapshot_and_history_shows_all_but_it(tmp_path: Path) -> None:
    log = EpochLog.open(tmp_path, writer="w")
    put(log, 1, 2)
    roll(log, 1, 2)
    assert log.epoch == 2
    put(log, 3)
    cost = log.replay_cost()
    log.close()
    assert [r.epoch for r in replay(tmp_path, from_snapshot=True)] == [2, 2, 2]
    assert folded(tmp_path) == [1, 2, 3]
    assert history(tmp_path) == [1, 2, 3]
    assert cost.files == 1
    assert cost.snapshot_bytes + cost.record_bytes == epoch_path(tmp_path, 2).stat().st_size
    again = EpochLog.open(tmp_path, writer="w")
    assert again.replay_cost().record_bytes == cost.record_bytes + epoch_path(tmp_path, 3).stat().st_size
    assert again.ledger == log.ledger
    put(again, 4)
    again.close()
    assert folded(tmp_path, up_to=1) == [1, 2]
    assert folded(tmp_path) == [1, 2, 3, 4] == history(tmp_path)


@pytest.mark.proves("a snapshot says what was queued before it")
def test_what_is_queued_around_a_snapshot_lies_before_and_behind_it(tmp_path: Path) -> None:
    entered, go = threading.Event(), threading.Event()
    held = False

    def fsync(fd: int) -> None:
        if held:
            entered.set()
            assert go.wait(WAIT_S)
        os.fsync(fd)

    log = EpochLog.open(tmp_path, writer="w", fsync=fsync)
    held = True
    first = log.append([{"type": "event", "n": 1}])
    assert entered.wait(WAIT_S)
    before = log.append([{"type": "event", "n": 2}])
    snapshot = log.roll([{"sum": 1}, {"sum": 2}])
    after = [log.append([{"type": "event", "n": n}]) for n in (3, 4)]
    assert not snapshot.done()
    go.set()
    assert [one.result(WAIT_S) for one in (first, before, snapshot, *after)] == [1, 2, 2, 3, 4]
    log.close()
    assert [record.payload["n"] for record in replay(tmp_path, up_to=1)] == [1, 2]
    assert folded(tmp_path) == [1, 2, 3, 4]


@pytest.mark.proves("history is bounded in bytes", "history is bounded in files")
def test_history_is_bounded_by_bytes_and_files_and_needs_no_removed_file(tmp_path: Path) -> None:
    log = EpochLog.open(tmp_path, writer="w", history=HistoryBounds(max_bytes=1 << 20, max_files=2))
    for n in range(1, 8):
        put(log, n)
        roll(log, *range(1, n + 1))
    put(log, 8)
    log.close()
    assert list_epochs(tmp_path) == [6, 7, 8]
    assert folded(tmp_path) == list(range(1, 9))
    assert history(tmp_path) == [6, 7, 8]
    assert set(survey(tmp_path).limits) <= {5, 6, 7}, "openings must not grow with what is long gone"
    again = EpochLog.open(tmp_path, writer="w", history=NONE)
    assert again.epoch == 9 and again.ledger == log.ledger
    put(again, 9)
    assert folded(tmp_path) == list(range(1, 10))
    roll(again, *range(1, 10))
    again.close()
    assert list_epochs(tmp_path) == [10]
    assert folded(tmp_path) == list(range(1, 10)) and history(tmp_path) == []


@pytest.mark.proves("only what lies before the base is removed")
def test_only_what_lies_before_the_base_is_ever_removed(tmp_path: Path) -> None:
    for n in range(1, 5):
        log = EpochLog.open(tmp_path, writer="w")
        put(log, n)
        log.close()
    assert remove_history(tmp_path, base=3, bounds=NONE) == [1, 2]
    assert list_epochs(tmp_path) == [3, 4]


@pytest.mark.proves("a missing file that a replay needs is damage")
def test_a_missing_file_that_replay_needs_is_damage(tmp_path: Path) -> None:
    log = EpochLog.open(tmp_path, writer="w")
    put(log, 1)
    roll(log, 1)
    put(log, 2)
    log.close()
    EpochLog.open(tmp_path, writer="w").close()
    epoch_path(tmp_path, 1).unlink()
    assert folded(tmp_path) == [1, 2] and history(tmp_path) == [2]
    epoch_path(tmp_path, 2).unlink()
    with pytest.raises(LedgerCorrupt, match=r"epoch-00000002\.log is damaged"):
        list(replay(tmp_path))
    with pytest.raises(LedgerCorrupt):
        folded(tmp_path)


@pytest.mark.parametrize("cut", [1, 60, 150])
def test_a_snapshot_that_is_not_whole_changes_nothing(tmp_path: Path, cut: int) -> None:
    log = EpochLog.open(tmp_path, writer="w")
    put(log, 1, 2)
    roll(log, 1, 2)
    log.close()
    path = epoch_path(tmp_path, 2)
    os.truncate(path, path.stat().st_size - cut)
    assert folded(tmp_path) == [1, 2] == history(tmp_path)
    again = EpochLog.open(tmp_path, writer="w")
    put(again, 3)
    again.close()
    assert survey(tmp_path).base == 0
    assert folded(tmp_path) == [1, 2, 3] == history(tmp_path)


def test_a_reader_whose_file_is_removed_under_it_goes_on_with_the_snapshot(tmp_path: Path) -> None:
    log = EpochLog.open(tmp_path, writer="w", history=NONE)
    put(log, *range(10))
    starts_over, follows = Follower(tmp_path, batch=4, from_snapshot=True), Follower(tmp_path, batch=4)
    assert [r.payload["n"] for r in starts_over.poll().records] == [0, 1, 2, 3]
    assert [r.payload["n"] for r in follows.poll().records] == [0, 1, 2, 3]
    roll(log, *range(10))
    put(log, 10)
    log.close()
    assert not epoch_path(tmp_path, 1).exists()
    found = [record for _ in range(3) for record in starts_over.poll().records]
    assert [r.payload["type"] for r in found] == ["snapshot"] * 10 + ["event"]
    polled = follows.poll()
    assert [r.payload["n"] for r in polled.records] == [10] and polled.dropped == ()
    assert follows.poll().records == ()


@pytest.mark.proves("a snapshot takes the very next number")
def test_two_writers_that_race_for_a_snapshot_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old writer was about to go over when a new one opened: its snapshot lacks what the new one wrote."""
    old = EpochLog.open(tmp_path, writer="old", history=NONE)
    put(old, 1)
    create = ledger_files.create
    others: list[EpochLog] = []

    def create_late(path: Path) -> int:
        if not others:
            monkeypatch.setattr(epoch_file, "create", create)
            others.append(EpochLog.open(tmp_path, writer="new"))
            put(others[0], 2)
        return create(path)

    monkeypatch.setattr(epoch_file, "create", create_late)
    with pytest.raises(LedgerFenced, match=r"epoch-00000002\.log exists"):
        roll(old, 1)
    put(others[0], 3)
    assert folded(tmp_path) == [1, 2, 3]
    assert list_epochs(tmp_path) == [1, 2]
    old.close()
    others[0].close()


@pytest.mark.parametrize("paused_at", ["write", "fsync"])
@pytest.mark.proves("a log that is broken removes no file", "a newer file is looked for after every snapshot")
def test_a_writer_paused_over_its_snapshot_is_fenced_and_removes_nothing(tmp_path: Path, paused_at: str) -> None:
    rolling, go = threading.Event(), threading.Event()
    armed = False
    syncs = 0

    def pause() -> None:
        rolling.set()
        assert go.wait(WAIT_S)

    def write(fd: int, data: bytes) -> int:
        if armed and paused_at == "write":
            pause()
        return os.write(fd, data)

    def fsync(fd: int) -> None:
        nonlocal syncs
        syncs += armed
        os.fsync(fd)
        if syncs == 2 and paused_at == "fsync":  # the first is the directory's
            pause()

    old = EpochLog.open(tmp_path, writer="old", write=write, fsync=fsync, history=NONE)
    put(old, 1)
    armed = True
    snapshot = old.roll([{"sum": 1}])
    assert rolling.wait(WAIT_S)
    new = EpochLog.open(tmp_path, writer="new")
    put(new, 2)
    assert new.epoch == 3
    go.set()
    with pytest.raises(LedgerFenced):
        snapshot.result(WAIT_S)
    old.close()
    assert list_epochs(tmp_path) == [1, 2, 3]
    assert folded(tmp_path) == [1, 2] == history(tmp_path)
    roll(new, 1, 2)
    put(new, 3)
    new.close()
    assert folded(tmp_path) == [1, 2, 3]


@pytest.mark.proves("no snapshot is made without room for it")
def test_a_snapshot_for_which_there_is_no_room_is_declined_and_the_log_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EpochLog.open(tmp_path, writer="w")
    put(log, 1)
    monkeypatch.setattr(epoch_file, "free_bytes", lambda _: 100)
    with pytest.raises(SnapshotDeclined, match="would nearly fill"):
        roll(log, 1, 2, 3, 4)
    assert log.epoch == 1 and log.health().broken == ""
    put(log, 2)
    monkeypatch.undo()
    roll(log, 1, 2)
    log.close()
    assert folded(tmp_path) == [1, 2] == history(tmp_path)


@pytest.mark.parametrize("fails_at", ["directory", "write", "short", "fsync"])
@pytest.mark.proves("a snapshot is synced", "the name of a snapshot's file is synced")
def test_a_snapshot_that_fails_on_the_way_breaks_the_log_and_loses_nothing(tmp_path: Path, fails_at: str) -> None:
    armed, syncs = False, 0

    def write(fd: int, data: bytes) -> int:
        if armed and fails_at == "short" and len(data) > 200:
            return os.write(fd, data[:200])
        if armed and fails_at in ("write", "short"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(fd, data)

    def fsync(fd: int) -> None:
        nonlocal syncs
        syncs += armed
        if (syncs, fails_at) in ((1, "directory"), (2, "fsync")):
            raise OSError(errno.EIO, "Input/output error")
        os.fsync(fd)

    log = EpochLog.open(tmp_path, writer="w", write=write, fsync=fsync, history=NONE)
    put(log, 1)
    armed = True
    snapshot, late = log.roll([{"sum": 1}]), log.append([{"type": "event", "n": 2}])
    assert isinstance(snapshot.exception(WAIT_S), LedgerBroken)
    assert isinstance(late.exception(WAIT_S), LedgerBroken)
    log.close()
    assert epoch_path(tmp_path, 1).exists()
    again = EpochLog.open(tmp_path, writer="w")
    assert folded(tmp_path, up_to=again.epoch) == [1]
    put(again, 3)
    roll(again, 1, 3)
    again.close()
    assert folded(tmp_path) == [1, 3]
    assert history(tmp_path) == [1, 3]


def test_an_index_keeps_what_it_knows_of_removed_files(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    log = EpochLog.open(ledger, writer="w", history=NONE)
    put(log, 1, 2)
    with LedgerIndex(ledger, tmp_path / "i.sqlite") as index:
        assert index.update() == 2
    put(log, 3)
    roll(log, 1, 2, 3)
    put(log, 4)
    with LedgerIndex(ledger, tmp_path / "i.sqlite") as index:
        assert index.update() == 1
        assert [one.id for one in index.events()] == ["1", "2", "4"]
    roll(log, 1, 2, 3, 4)
    put(log, 5)
    log.close()
    with LedgerIndex(ledger, tmp_path / "i.sqlite") as index:
        index.update()
        assert [one.id for one in index.events()] == ["1", "2", "4", "5"]
        assert [one.type for one in index.events(types=("snapshot",))] == []


@pytest.mark.proves("the index is bounded")
def test_an_index_keeps_no_more_than_its_bound(tmp_path: Path) -> None:
    log = EpochLog.open(tmp_path / "ledger", writer="w")
    put(log, *range(50))
    with LedgerIndex(tmp_path / "ledger", tmp_path / "i.sqlite", keep=20) as index:
        assert index.update() == 50
        assert [one.id for one in index.events()] == [str(n) for n in range(30, 50)]
        roll(log, 0)
        put(log, *range(50, 60))
        index.update()
        assert [one.id for one in index.events()] == [str(n) for n in range(40, 60)]
        assert index.update() == 0
    log.close()
    with sqlite3.connect(tmp_path / "i.sqlite") as db:
        assert db.execute("SELECT count(*) FROM record").fetchone() == (20,)
        assert db.execute("SELECT count(*) FROM subject").fetchone() == (20,)
    db.close()


@pytest.mark.proves(
    "a file that is gone acknowledges nothing", "another file in the place of ours acknowledges nothing"
)
def test_a_file_that_disappears_or_is_replaced_acknowledges_nothing_more(tmp_path: Path) -> None:
    for replaced in (False, True):
        ledger = tmp_path / str(replaced)
        log = EpochLog.open(ledger, writer="w")
        put(log, 1)
        epoch_path(ledger, 1).rename(ledger / "elsewhere")
        if replaced:
            epoch_path(ledger, 1).write_bytes((ledger / "elsewhere").read_bytes())
        with pytest.raises(LedgerBroken, match="in the place" if replaced else "disappeared"):
            put(log, 2)
        log.close()


@pytest.mark.proves("a ledger that is not the expected one is refused")
def test_an_expected_ledger_that_is_not_there_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    log = EpochLog.open(tmp_path / "ledger", writer="w")
    put(log, 1)
    log.close()
    (tmp_path / "ledger").rename(tmp_path / "away")
    with pytest.raises(LedgerUnusable, match=r"holds no ledger.*mounted"):
        EpochLog.open(tmp_path / "ledger", writer="w", expects=log.ledger)
    assert not (tmp_path / "ledger").exists()
    EpochLog.open(tmp_path / "ledger", writer="stranger").close()
    with pytest.raises(LedgerUnusable, match="holds another ledger"):
        EpochLog.open(tmp_path / "ledger", writer="w", expects=log.ledger)
    assert list_epochs(tmp_path / "ledger") == [1]
    again = EpochLog.open(tmp_path / "away", writer="w", expects=log.ledger)
    assert again.epoch == 2
    again.close()


def test_a_ledger_of_before_snapshots_replays_and_goes_on(tmp_path: Path) -> None:
    opening: dict[str, JSON] = {"type": "epoch_opened", "writer": "old", "made_ns": 1, "counts": {}}
    epoch_path(tmp_path, 1).write_bytes(
        frame(1, 0, encode_payload(opening)) + frame(1, 1, encode_payload({"type": "event", "n": 1}))
    )
    assert folded(tmp_path) == [1]
    log = EpochLog.open(tmp_path, writer="w")
    put(log, 2)
    roll(log, 1, 2)
    put(log, 3)
    log.close()
    assert folded(tmp_path) == [1, 2, 3] == history(tmp_path)
    again = EpochLog.open(tmp_path, writer="w", expects=log.ledger)
    assert again.ledger == log.ledger != ""
    again.close()


@pytest.mark.proves("the log's own types cannot be appended")
def test_the_logs_own_types_cannot_be_appended(tmp_path: Path) -> None:
    log = EpochLog.open(tmp_path, writer="w")
    for kind in ("snapshot", "epoch_opened"):
        with pytest.raises(RecordRefused, match="by the log itself"):
            log.append([{"type": kind}])
    put(log, 1)
    log.close()
    assert history(tmp_path) == [1]
