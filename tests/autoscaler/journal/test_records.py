"""The arbiter's ledger: what is written comes back, also across snapshots, and a replay stays short."""

import os
import threading
import time
from pathlib import Path

import pytest

from ebbtide.ledger import epoch_file
from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.ledger.history_bounds import HistoryBounds
from ebbtide.ledger.reader import replay
from ebbtide.ledger.sqlite_index import LedgerIndex
from ebbtide.pool.events import Event, JobDurable, NodeFound, SlotForeign, SlotFound, SlotFreed, SlotUnfenced
from ebbtide.pool.ids import JobName, NodeId, RecordId, SlotId
from ebbtide_autoscaler.journal.records import (
    SNAPSHOT_FILES,
    SNAPSHOT_RETRY_S,
    Journal,
    Recovered,
    decode_event,
    encode_event,
    fence_record,
    recover,
)
from tests.platform.pool.builder import NODE, S0, a_slot

WAIT_S = 60.0


def churn(rounds: int, *, first: int = 0, epoch: int = 1) -> list[Event]:
    """A slot that is lost to strangers and freed again, with causes."""
    events = []
    for number in range(first, first + rounds):
        body = (SlotUnfenced(S0), SlotFreed(S0))[number % 2]
        cause = RecordId(f"{epoch}.{number - 1}") if number else None
        events.append(Event(RecordId(f"{epoch}.{number}"), float(number), cause, body))
    return events


BEGIN = [
    Event(RecordId("0.1"), 0.0, None, NodeFound(NODE, 10)),
    Event(RecordId("0.2"), 0.0, None, SlotFound(a_slot(S0))),
    Event(RecordId("0.3"), 0.0, None, SlotFreed(S0)),
]


def opened(ledger: Path, *, snapshot_bytes: int = 20_000, history: HistoryBounds | None = None) -> Journal:
    log = EpochLog.open(ledger, writer="w", history=history)
    return Journal(log, recover(ledger, up_to=log.epoch), snapshot_bytes=snapshot_bytes)


def keep_short(journal: Journal) -> bool:
    rolling = journal.keep_short()
    if rolling is not None:
        rolling.result(WAIT_S)
    return rolling is not None


@pytest.mark.proves("what is written is folded in")
def test_a_snapshot_comes_when_the_records_are_too_many_and_changes_nothing_that_is_known(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.write(BEGIN, extra=[fence_record(S0, "f")]).result(WAIT_S)
    assert not keep_short(journal)
    journal.write(churn(400)).result(WAIT_S)
    before = recover(tmp_path)
    assert keep_short(journal) and journal.epoch == 2
    assert not keep_short(journal)
    assert recover(tmp_path) == before
    assert len(list(replay(tmp_path, from_snapshot=True))) < 30
    journal.write(churn(2, first=400), extra=[fence_record(S0, "")]).result(WAIT_S)
    journal.close()
    after = recover(tmp_path)
    assert after.fences == {} and after.state.slots[S0].since_s == 401.0
    again = opened(tmp_path)
    assert again.epoch == 3 and recover(tmp_path) == after
    again.close()


def test_a_snapshot_says_what_was_queued_before_it_and_no_more(tmp_path: Path) -> None:
    journal = opened(tmp_path, snapshot_bytes=0)
    journal.write(BEGIN).result(WAIT_S)
    journal.write(churn(3))
    rolling = journal.keep_short()
    late = journal.write(churn(1, first=3), extra=[fence_record(S0, "f")])
    assert rolling is not None
    rolling.result(WAIT_S)
    late.result(WAIT_S)
    journal.close()
    types = [record.payload["type"] for record in replay(tmp_path, from_snapshot=True)]
    assert types[-2:] == ["event", "fence"] and set(types[:-2]) == {"snapshot"}
    whole = Recovered()
    for record in replay(tmp_path):
        whole.take(record.payload)
    assert recover(tmp_path) == whole


def test_causes_are_found_across_snapshots_also_when_their_file_is_gone(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    journal = opened(ledger, snapshot_bytes=0, history=HistoryBounds(max_bytes=0))
    journal.write([*BEGIN, *churn(3)]).result(WAIT_S)
    with LedgerIndex(ledger, tmp_path / "i.sqlite") as index:
        index.update()
    assert keep_short(journal)
    journal.write(churn(2, first=3)).result(WAIT_S)
    journal.close()
    with LedgerIndex(ledger, tmp_path / "i.sqlite") as index:
        index.update()
        assert [one.id for one in index.chain("1.4")] == ["1.4", "1.3", "1.2", "1.1", "1.0"]
        assert {one.type for one in index.events(types=("event", "snapshot", "waits"))} == {"event"}


@pytest.mark.proves("a pause before the next snapshot when there was no room")
def test_without_room_for_a_snapshot_the_ledger_goes_on_and_it_is_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    log = EpochLog.open(tmp_path, writer="w")
    journal = Journal(log, Recovered(), snapshot_bytes=0, clock=lambda: now_s)
    journal.write(BEGIN).result(WAIT_S)
    with monkeypatch.context() as full:
        full.setattr(epoch_file, "free_bytes", lambda _: 0)
        declined = journal.keep_short()
        assert declined is not None and declined.exception(WAIT_S) is not None
    assert not keep_short(journal)
    now_s = SNAPSHOT_RETRY_S - 1
    assert not keep_short(journal)
    now_s = SNAPSHOT_RETRY_S
    assert keep_short(journal)
    journal.close()


@pytest.mark.proves("one snapshot at a time")
def test_while_a_snapshot_hangs_none_is_added_and_nobody_waits_for_it(tmp_path: Path) -> None:
    hung, released = threading.Event(), threading.Event()
    hangs = False

    def fsync(fd: int) -> None:
        if hangs:
            hung.set()
            assert released.wait(WAIT_S)
        os.fsync(fd)

    journal = Journal(EpochLog.open(tmp_path, writer="w", fsync=fsync), Recovered(), snapshot_bytes=0)
    journal.write(BEGIN).result(WAIT_S)
    hangs = True
    rolling = journal.keep_short()
    assert rolling is not None and hung.wait(WAIT_S)
    asked: list[object] = []
    asking = threading.Thread(target=lambda: asked.append(journal.keep_short()), daemon=True)
    asking.start()
    asking.join(2.0)
    assert asked == [None]
    released.set()
    rolling.result(WAIT_S)
    assert journal.epoch == 2
    journal.close()


@pytest.mark.proves("many small files make a snapshot")
def test_an_arbiter_that_restarts_again_and_again_makes_a_snapshot_of_its_many_small_files(tmp_path: Path) -> None:
    for number in range(SNAPSHOT_FILES + 1):
        journal = opened(tmp_path, snapshot_bytes=1 << 20)
        if not number:
            journal.write(BEGIN).result(WAIT_S)
        assert keep_short(journal) == (number == SNAPSHOT_FILES)
        journal.close()
    assert recover(tmp_path).state.slots[S0].slot.node == NODE


def test_a_refused_record_is_not_folded_in(tmp_path: Path) -> None:
    journal = opened(tmp_path, snapshot_bytes=0)
    with pytest.raises(ValueError, match="JSON"):
        journal.write(BEGIN, extra=[{"type": "config", "config": float("nan")}])
    journal.write([], extra=[{"type": "waits"}]).result(WAIT_S)
    assert keep_short(journal)
    journal.close()
    assert recover(tmp_path) == Recovered()


def test_replay_of_four_times_as_many_events_takes_four_times_as_long(tmp_path: Path) -> None:
    """A quadratic replay would take 16 times as long; the best of two tries, since others use the machine too."""

    def took_s(rounds: int) -> float:
        ledger = tmp_path / str(rounds)
        log = EpochLog.open(ledger, writer="w")
        journal = Journal(log, Recovered())
        journal.write([*BEGIN, *churn(rounds)]).result(60)
        journal.close()
        tries = []
        for _ in range(2):
            began_s = time.process_time()
            assert recover(ledger).state.slots[S0].since_s == rounds - 1
            tries.append(time.process_time() - began_s)
        return min(tries)

    small_s, large_s = took_s(5_000), took_s(20_000)
    assert large_s < 8 * small_s, f"{small_s:.2f} s, then {large_s:.2f} s"


def test_unknown_records_change_nothing() -> None:
    found = Recovered()
    for kind in ("would", "waits", "of tomorrow"):
        found.take({"type": kind})
    assert found == Recovered()


def test_events_of_every_body_come_back() -> None:
    for body in (SlotForeign(SlotId("n:1"), "who"), JobDurable(JobName("j"), 3), NodeFound(NodeId("m"), 1)):
        event = Event(RecordId("1.1"), 2.0, None, body)
        assert decode_event(encode_event(event)) == event
