"""Several openers and stale writers: what was acknowledged counts, what is fenced off changes nothing."""

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ebbtide.ledger import epoch_file, ledger_files
from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.ledger.errors import LedgerFenced
from ebbtide.ledger.reader import Follower, epoch_path, replay, survey
from ebbtide.ledger.record import JSON, encode_payload, frame
from ebbtide.ledger.sqlite_index import LedgerIndex

WAIT_S = 60.0

STALE_WRITER = """
import os, signal, sys, threading
from pathlib import Path
from ebbtide.ledger.errors import LedgerFenced
from ebbtide.ledger.epoch_log import EpochLog

stop_at = int(sys.argv[2])
writes = 0

def write(fd, data):
    global writes
    writes += 1
    if writes == stop_at:
        print("stopping", flush=True)
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this thread stops right here
    return os.write(fd, data)

try:
    log = EpochLog.open(Path(sys.argv[1]), writer="stale", write=write)
    print("opened", flush=True)
    for n in range(1, 6):
        log.append([{"who": "stale", "n": n}]).result(20)
        print("acked", n, flush=True)
except LedgerFenced:
    print("fenced", flush=True)
"""


def names(directory: Path) -> list[tuple[object, object]]:
    return [(record.payload["who"], record.payload["n"]) for record in replay(directory)]


def put(log: EpochLog, who: str, *numbers: int) -> None:
    log.append([{"who": who, "n": n} for n in numbers]).result(WAIT_S)


@pytest.mark.parametrize("stop_at", [1, 2, 4], ids=["while opening", "first append", "third append"])
@pytest.mark.proves(
    "a newer file fences off who is just opening",
    "a newer file fences the older writer off",
    "a newer file is looked for after every fsync",
)
def test_a_paused_writer_that_wakes_up_changes_nothing_for_any_reader(tmp_path: Path, stop_at: int) -> None:
    ledger = tmp_path / "ledger"
    first = EpochLog.open(ledger, writer="first")
    put(first, "first", 1, 2)
    first.close()
    stale = subprocess.Popen(
        [sys.executable, "-c", STALE_WRITER, str(ledger), str(stop_at)], stdout=subprocess.PIPE, text=True
    )
    assert stale.stdout is not None
    try:
        while stale.stdout.readline() != "stopping\n":
            assert stale.poll() is None
        os.waitpid(stale.pid, os.WUNTRACED)
        index = LedgerIndex(ledger, tmp_path / "index.sqlite")
        index.update()
        follower = Follower(ledger)
        follower.poll()

        log = EpochLog.open(ledger, writer="new")
        put(log, "new", 1)
        before, size = list(replay(ledger)), epoch_path(ledger, 2).stat().st_size
        os.kill(stale.pid, signal.SIGCONT)
        rest = stale.stdout.read()
        assert stale.wait(WAIT_S) == 0
    finally:
        stale.kill()
        stale.wait()
        stale.stdout.close()
    assert rest == "fenced\n"
    assert epoch_path(ledger, 2).stat().st_size > size, "the stale writer was meant to write"

    assert list(replay(ledger)) == before
    expected = [("first", 1), ("first", 2), *[("stale", n) for n in range(1, stop_at - 1)], ("new", 1)]
    assert names(ledger) == expected
    assert [record.payload["who"] for record in follower.poll().records] == ["new"]
    index.update()
    assert len(index.events(types=("",))) == len(expected)
    index.close()
    put(log, "new", 2)
    assert names(ledger) == [*expected, ("new", 2)]
    log.close()


def test_a_live_writer_is_refused_once_a_newer_epoch_exists(tmp_path: Path) -> None:
    old = EpochLog.open(tmp_path, writer="old")
    put(old, "old", 1)
    new = EpochLog.open(tmp_path, writer="new")
    with pytest.raises(LedgerFenced, match=r"epoch-00000002\.log exists"):
        put(old, "old", 2)
    put(new, "new", 1)
    assert names(tmp_path) == [("old", 1), ("new", 1)]
    assert "another arbiter took over" in old.health().broken
    old.close()
    new.close()


def test_what_is_acknowledged_until_the_new_file_exists_is_read_by_its_opener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = EpochLog.open(tmp_path, writer="old")
    create = ledger_files.create_epoch

    def create_late(directory: Path) -> tuple[int, int]:
        put(old, "old", 1)
        return create(directory)

    monkeypatch.setattr(epoch_file, "create_epoch", create_late)
    new = EpochLog.open(tmp_path, writer="new")
    assert names(tmp_path) == [("old", 1)]
    old.close()
    new.close()


@pytest.mark.proves("who loses the race for an epoch takes the next one")
def test_openers_that_race_get_different_epochs_and_only_the_last_goes_on(tmp_path: Path) -> None:
    for turn in range(10):
        ledger = tmp_path / str(turn)
        start = threading.Barrier(6)

        def race(who: int, ledger: Path = ledger, start: threading.Barrier = start) -> tuple[int, list[int]]:
            start.wait()
            acked = []
            try:
                log = EpochLog.open(ledger, writer=str(who))
                for n in range(20):
                    log.append([{"who": who, "n": n}]).result(WAIT_S)
                    acked.append(n)
                log.close()
            except LedgerFenced:
                pass
            return who, acked

        with ThreadPoolExecutor(6) as pool:
            told = dict(pool.map(race, range(6)))
        counting = names(ledger)
        for who, acked in told.items():
            assert {(who, n) for n in acked} <= set(counting)
        assert any(len(acked) == 20 for acked in told.values())
        assert len(set(counting)) == len(counting)


@pytest.mark.proves("a file without a valid first record fences no writer off")
def test_an_epoch_file_without_a_valid_first_record_fences_nothing(tmp_path: Path) -> None:
    log = EpochLog.open(tmp_path, writer="first")
    put(log, "first", 1)
    log.close()
    epoch_path(tmp_path, 2).touch()
    epoch_path(tmp_path, 3).write_bytes(b"EBBT\x00half a header")
    no_opening = frame(4, 0, encode_payload({"type": "event", "counts": {}}))
    epoch_path(tmp_path, 4).write_bytes(no_opening)
    assert names(tmp_path) == [("first", 1)]
    assert survey(tmp_path).top == 1

    new = EpochLog.open(tmp_path, writer="new")
    assert new.epoch == 5
    put(new, "new", 1)
    new.close()
    assert names(tmp_path) == [("first", 1), ("new", 1)]
    late = frame(2, 0, encode_payload({"type": "epoch_opened", "writer": "late", "counts": {}}))
    epoch_path(tmp_path, 2).write_bytes(late + frame(2, 1, encode_payload({"who": "late", "n": 1})))
    assert names(tmp_path) == [("first", 1), ("new", 1)]


@pytest.mark.proves("an older epoch counts up to its limit")
def test_what_an_epoch_took_over_stays_what_it_is_for_all_later_ones(tmp_path: Path) -> None:
    for epoch in range(1, 6):
        log = EpochLog.open(tmp_path, writer="w")
        assert log.epoch == epoch
        put(log, "w", epoch)
        log.close()
        if epoch > 1:
            with epoch_path(tmp_path, epoch - 1).open("ab") as old:
                old.write(frame(epoch - 1, 2, encode_payload({"who": "stale", "n": epoch})))
    assert names(tmp_path) == [("w", epoch) for epoch in range(1, 6)]
    first = json.loads(epoch_path(tmp_path, 5).read_bytes()[36:].split(b"}EBBT")[0] + b"}")
    assert set(first["counts"]) == {"1", "2", "3", "4"}
    as_epoch_3_saw_it = [record.payload for record in replay(tmp_path, up_to=3) if record.epoch < 3]
    assert as_epoch_3_saw_it == [{"who": "w", "n": 1}, {"who": "w", "n": 2}]


@pytest.mark.proves("what turned out not to count is taken back")
def test_a_reader_takes_back_what_an_overtaken_opener_made_it_believe(tmp_path: Path) -> None:
    """Epoch 2 was made and paused; epoch 3 took over with more of epoch 1; then 2 wrote, and was read too early."""
    ledger = tmp_path / "ledger"
    one = EpochLog.open(ledger, writer="one")
    put(one, "one", 1)
    early = epoch_path(ledger, 1).stat().st_size
    put(one, "one", 2)
    one.close()
    late = epoch_path(ledger, 1).stat().st_size
    opening: dict[str, JSON] = {"type": "epoch_opened", "writer": "two", "counts": {"1": early}}
    epoch_path(ledger, 2).write_bytes(
        frame(2, 0, encode_payload(opening)) + frame(2, 1, encode_payload({"who": "two", "n": 1}))
    )
    with LedgerIndex(ledger, tmp_path / "i.sqlite") as index:
        index.update()
        assert [r.payload["who"] for r in index.events(types=("",))] == ["one", "two"]
        epoch_path(ledger, 3).write_bytes(
            frame(3, 0, encode_payload({"type": "epoch_opened", "writer": "three", "counts": {"1": late}}))
        )
        index.update()
        assert [(r.payload["who"], r.payload["n"]) for r in index.events(types=("",))] == [("one", 1), ("one", 2)]
        assert names(ledger) == [("one", 1), ("one", 2)]
