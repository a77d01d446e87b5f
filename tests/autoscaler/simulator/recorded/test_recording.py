"""A ledger is read as what happened: every slot-second has one use; what is no ledger is refused in one sentence."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.ledger.history_bounds import HistoryBounds
from ebbtide.ledger.reader import epoch_path
from ebbtide.pool.events import Body, EndpointDeclared, EndpointRemoved, Event, NodeFound, SlotFound, SlotFreed
from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.ids import RecordId
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState, SlotState
from ebbtide_autoscaler.core.demand.demand_watch import Closed
from ebbtide_autoscaler.core.forecast.demand_bins import Bin
from ebbtide_autoscaler.journal.demand_records import demand_record
from ebbtide_autoscaler.journal.records import recover
from ebbtide_simulator.model.meter import Use
from ebbtide_simulator.recorded.happened import Uses, use_of_slot
from ebbtide_simulator.recorded.recording import Recording, Stretch, known_bins, read_recording
from ebbtide_simulator.traffic.trace_files import BadTrace
from tests.autoscaler.chaos import Chaos
from tests.autoscaler.closed_loop import an_endpoint
from tests.autoscaler.simulator.ledgers import CHAT, Life, an_event, nothing, pool_file, pool_of, tide, written
from tests.examples import examples
from tests.platform.pool.builder import NODE, S0, a_slot


@pytest.fixture(scope="module")
def life() -> Life:
    return tide()


@pytest.fixture
def ledger(life: Life, tmp_path: Path) -> Path:
    return written(tmp_path / "shared" / "ledger", life.events, [pool_file(tmp_path), *life.records()])


def slots_over_time_s(events: tuple[Event, ...], ends_s: float) -> float:
    """The seconds of all slots, counted event by event."""
    state, last_s, found = PoolState(), 0.0, 0.0
    for event in events:
        found += len(state.slots) * (max(event.at_s, last_s) - last_s)
        state, last_s = apply(state, event), max(event.at_s, last_s)
    return found + len(state.slots) * (ends_s - last_s)


def test_what_happened_is_in_it(life: Life, ledger: Path) -> None:
    one = read_recording(ledger)
    assert sum(one.slot_s.values()) == pytest.approx(3 * one.span_s)
    [job] = one.jobs
    assert one.slot_s[Use.TRAINING] == pytest.approx(job.trained_s) and job.trained_s > 600.0
    assert (job.preempted, job.finished, job.end_s) == (1, False, None)
    assert one.counts == {"replica starts": 1} and list(one.endpoints) == [CHAT]
    assert one.slot_s[Use.READY] > 60.0 and one.slot_s[Use.STARTING] > 0.0 and one.slot_s[Use.DRAINING] > 0.0
    assert one.config is not None and one.config.policy.restart_cost_s == 10
    assert one.nodes.shape() == (1, 3) and one.nodes.absences(one.begins_s, one.ends_s, 1) == ()
    assert one.left_out == 0
    assert {number: bin is not None and round(bin.mean, 3) for number, bin in one.demand[CHAT].items()} == {
        number: bin is not None and round(bin.mean, 3) for number, bin in enumerate(life.demand.bins, life.demand.first)
    }


def test_the_shared_directory_will_do_as_well_as_the_ledger_in_it(ledger: Path) -> None:
    assert read_recording(ledger.parent) == replace(read_recording(ledger), folder=ledger.parent)


def test_slots_by_use_over_time_add_up_at_every_moment(ledger: Path) -> None:
    one = read_recording(ledger)
    lengths = {len(counts) for counts in one.course.values()}
    assert len(lengths) == 1 and all(sum(counts) == 3 for counts in zip(*one.course.values(), strict=True))
    for use, counts in one.course.items():
        assert one.course_s * sum(counts) == pytest.approx(one.slot_s[use], abs=3 * 10 * one.course_s), use


@pytest.mark.parametrize("seed", range(4))
def test_slot_seconds_of_all_uses_are_the_seconds_of_all_slots_whatever_happened(seed: int, tmp_path: Path) -> None:
    """Nodes that die and come, jobs that crash, replicas that fail, arbiters that are killed."""
    chaos = Chaos(seed)
    chaos.run()
    events = tuple(chaos.loop.events)
    one = read_recording(written(tmp_path, events))
    first_s = next(event.at_s for event in events if isinstance(event.body, SlotFound))
    assert one.begins_s == first_s
    assert sum(one.slot_s.values()) == pytest.approx(slots_over_time_s(events, one.ends_s))
    assert all(slot_s >= 0.0 for slot_s in one.slot_s.values())
    assert one.slot_s[Use.TRAINING] + one.slot_s[Use.LOST] == pytest.approx(sum(job.trained_s for job in one.jobs))


@settings(max_examples=examples(25), deadline=None, database=None, derandomize=True)
@given(cut=st.floats(0.0, 1.0), seed=st.integers(0, 3))
def test_two_stretches_of_a_ledger_are_together_the_whole(
    life: Life, tmp_path_factory: pytest.TempPathFactory, cut: float, seed: int
) -> None:
    folder = written(tmp_path_factory.mktemp("ledger"), life.events)
    whole = read_recording(folder)
    at_s = whole.begins_s + 1.0 + round(cut * (whole.span_s - 4.0))
    before, after = read_recording(folder, Stretch(ends_s=at_s)), read_recording(folder, Stretch(begins_s=at_s))
    assert before.ends_s == after.begins_s == at_s
    for use in Use:
        assert before.slot_s[use] + after.slot_s[use] == pytest.approx(whole.slot_s[use]), use
    trained = sum(job.trained_s for one in (before, after) for job in one.jobs)
    assert trained == pytest.approx(sum(job.trained_s for job in whole.jobs))
    assert after.durations.told() == whole.durations.told(), "how long moves take is learnt from all of it"


@pytest.mark.parametrize("kept", [True, False])
def test_snapshots_change_nothing_and_stand_for_what_is_gone(life: Life, tmp_path: Path, kept: bool) -> None:
    cut = len(life.events) * 2 // 3
    folder = written(tmp_path / "ledger", life.events, snapshot_after=cut)
    whole = read_recording(written(tmp_path / "other", life.events))
    if kept:
        assert replace(read_recording(folder), folder=whole.folder) == whole
        return
    epoch_path(folder, 1).unlink()
    rest = read_recording(folder)
    asked = Stretch(begins_s=rest.begins_s)
    assert whole.begins_s < rest.begins_s <= life.events[cut].at_s
    assert rest.slot_s == pytest.approx(read_recording(tmp_path / "other", asked).slot_s)


def test_a_torn_end_is_left_out_and_told_of(ledger: Path) -> None:
    whole = read_recording(ledger)
    with epoch_path(ledger, 1).open("ab") as file:
        file.write(b"EBBT torn")
    torn = read_recording(ledger)
    assert torn.left_out == 9 and torn.slot_s == whole.slot_s


def test_times_that_go_back_take_nothing_away(life: Life, tmp_path: Path) -> None:
    events = [replace(one, at_s=one.at_s - 30.0 * (number % 7 == 3)) for number, one in enumerate(life.events)]
    one = read_recording(written(tmp_path, events))
    assert sum(one.slot_s.values()) == pytest.approx(3 * one.span_s)


# ---- where a recording begins and ends


@settings(max_examples=examples(30), deadline=None, database=None, derandomize=True)
@given(
    declared_s=st.integers(1, 500),
    gone_s=st.integers(501, 998),
    again_s=st.integers(999, 2000) | st.none(),
    begins_s=st.integers(1, 1990),
)
def test_endpoints_are_those_of_the_recording_and_none_that_was_removed_before_it(
    tmp_path_factory: pytest.TempPathFactory, declared_s: int, gone_s: int, again_s: int | None, begins_s: int
) -> None:
    events = [
        *pool_of({"n": [(0.0, 2001.0)]}, until_s=2001.0),
        an_event(declared_s, EndpointDeclared(an_endpoint(replicas_max=1))),
        an_event(gone_s, EndpointRemoved(CHAT)),
        *([an_event(again_s, EndpointDeclared(an_endpoint(replicas_max=2)))] if again_s is not None else []),
        nothing(2001.0),
    ]
    one = read_recording(written(tmp_path_factory.mktemp("ledger"), events), Stretch(begins_s=begins_s))
    most = 2 if again_s is not None else 1 if begins_s <= gone_s else None  # at its last moment it was still there
    assert {name: spec.replicas_max for name, spec in one.endpoints.items()} == ({} if most is None else {CHAT: most})


def test_an_endpoint_that_is_taken_out_is_played_as_it_was_before(tmp_path: Path) -> None:
    """`ebbtide up` without it first leaves it no replica, and removes it once the last one is gone."""
    events = [
        *pool_of({"n": [(0.0, 2001.0)]}, until_s=2001.0),
        an_event(10, EndpointDeclared(an_endpoint(replicas_max=3))),
        an_event(900, EndpointDeclared(an_endpoint(replicas_max=0))),
        an_event(1000, EndpointRemoved(CHAT)),
        nothing(2001.0),
    ]
    assert read_recording(written(tmp_path, events), Stretch(begins_s=100.0)).endpoints[CHAT].replicas_max == 3


@settings(max_examples=examples(30), deadline=None, database=None, derandomize=True)
@given(
    quiet_s=st.integers(1, 20_000),
    begins_s=st.integers(400, 80_000).map(lambda quarters: quarters / 4),  # its sums are exact
    span_s=st.integers(60, 7200),
    ends=st.booleans(),
)
def test_a_recording_of_a_quiet_time_is_as_long_as_it_was_asked_for(
    tmp_path_factory: pytest.TempPathFactory, quiet_s: int, begins_s: float, span_s: int, ends: bool
) -> None:
    """The event that is the first after the begin may be after the end as well."""
    last_s = begins_s + max(quiet_s, span_s)
    events = [*pool_of({"n": [(0.0, last_s)]}, until_s=last_s), nothing(begins_s + quiet_s), nothing(last_s)]
    asked = Stretch(begins_s=begins_s, **{"ends_s": begins_s + span_s} if ends else {"span_s": span_s})
    one = read_recording(written(tmp_path_factory.mktemp("ledger"), events), asked)
    assert (one.begins_s, one.span_s) == (begins_s, span_s)
    assert sum(one.slot_s.values()) == pytest.approx(2 * one.span_s)
    assert all(sum(counts) == 2 for counts in zip(*one.course.values(), strict=True))


def test_a_time_in_which_only_demand_was_told_of_is_a_recording(tmp_path: Path) -> None:
    events = [*pool_of({"n": [(0.0, 600.0)]}), an_event(1.0, EndpointDeclared(an_endpoint()))]
    told = [demand_record(Closed(CHAT, number, Bin(1.0, 2.0, 0.5))) for number in range(12)]
    one = read_recording(written(tmp_path, events, told), Stretch(begins_s=1200.0))
    assert (one.begins_s, one.ends_s, sum(one.slot_s.values())) == (1200.0, 3600.0, 2 * 2400.0)


def test_demand_that_is_told_again_is_as_the_arbiter_has_it(tmp_path: Path) -> None:
    """A clock that is set back: what was told first is kept, and what is older than all of it was never taken in."""
    events = [*pool_of({"n": [(0.0, 600.0)]}), an_event(1.0, EndpointDeclared(an_endpoint())), nothing(3600.0)]
    told = [(4, 1.0), (5, 2.0), (6, 9.0), (5, 2.5), (3, 7.0)]
    folder = written(tmp_path, events, [demand_record(Closed(CHAT, number, Bin(one, one))) for number, one in told])
    demand = recover(folder).demand[CHAT]
    one = read_recording(folder)
    assert {number: value for number, value in enumerate(demand.bins, demand.first)} == one.demand[CHAT]
    assert [value.mean for _, value in known_bins(one, CHAT)] == [1.0, 2.0, 9.0]


# ---- what is no ledger


def none(_: Path) -> None:
    pass


def no_folder(folder: Path) -> None:
    folder.rmdir()


def of_another(folder: Path) -> None:
    epoch_path(folder, 1).write_bytes(Random(0).randbytes(4096))


def an_empty_file(folder: Path) -> None:
    epoch_path(folder, 1).touch()


def only_opened(folder: Path) -> None:
    EpochLog.open(folder, writer="w").close()


def damaged(folder: Path) -> None:
    """In the midst of what a later epoch says that counts."""
    log = EpochLog.open(folder, writer="w")
    log.append([{"type": "note", "text": "x" * 500}]).result(60)
    log.close()
    EpochLog.open(folder, writer="w").close()
    path = epoch_path(folder, 1)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(bytes(data))


def gone_in_the_middle(folder: Path) -> None:
    for _ in range(3):
        log = EpochLog.open(folder, writer="w", history=HistoryBounds())
        log.append([{"type": "note"}]).result(60)
        log.close()
    epoch_path(folder, 2).unlink()


def of_the_future(folder: Path) -> None:
    log = EpochLog.open(folder, writer="w")
    log.append([{"type": "event", "id": "1.1", "at_s": 1.0, "cause": None, "body": {"kind": "slot_sold"}}]).result(60)
    log.close()


def without_its_beginning(folder: Path) -> None:
    written(folder, [], [])
    log = EpochLog.open(folder, writer="w")
    log.append(
        [{"type": "event", "id": "1.1", "at_s": 1.0, "cause": None, "body": {"kind": "slot_freed", "slot": "n:0"}}]
    ).result(60)
    log.close()


def of_a_moment(folder: Path) -> None:
    bodies: tuple[Body, ...] = (NodeFound(NODE, 10), SlotFound(a_slot(S0)), SlotFreed(S0))
    written(folder, [Event(RecordId(f"1.{n}"), 5.0, None, body) for n, body in enumerate(bodies)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (none, "holds no ledger: neither there nor in its folder ledger is a file epoch-00000001.log"),
        (no_folder, "no such folder"),
        (of_another, "its files are empty, or another program's"),
        (an_empty_file, "its files are empty, or another program's"),
        (only_opened, "it has no slot that was ever in the pool"),
        (damaged, "the ledger cannot be read: "),
        (gone_in_the_middle, "the ledger cannot be read: "),
        (of_the_future, "record 1-1 is none that this version writes"),
        (without_its_beginning, "cannot follow on those before it"),
        (of_a_moment, "all of it is within a second"),
    ],
)
def test_what_is_no_ledger_is_refused_in_one_sentence(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    make(folder)
    with pytest.raises(BadTrace) as error:
        read_recording(folder)
    assert message in str(error.value) and str(folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_day_that_the_ledger_does_not_have_is_refused(ledger: Path) -> None:
    with pytest.raises(BadTrace, match=r"it has 0\.00 days, and cannot begin on day 3"):
        read_recording(ledger, Stretch(from_day=3.0))


# ---- a slot's use


def test_a_slot_whose_job_is_over_is_on_its_way_back_until_it_is_free(life: Life) -> None:
    uses = Uses(0.0)
    state = PoolState()
    for event in life.events:
        before, state = state, apply(state, event)
        subject = getattr(event.body, "job", None) or getattr(event.body, "seat", None)
        uses.take(event.at_s, before, state, subject)
        for record in state.slots.values():
            use = use_of_slot(state, record)
            if record.state in (SlotState.FREE, SlotState.UNFENCED):
                assert use is Use.FREE
            else:
                assert use is not Use.FREE
            job = state.jobs.get(record.occupant)  # type: ignore[arg-type]
            if use is Use.TRAINING:
                assert job is not None and job.state is JobState.RUNNING


def test_nothing_is_read_twice(ledger: Path) -> None:
    first: Recording = read_recording(ledger)
    assert read_recording(ledger) == first
