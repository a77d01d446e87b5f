"""Jobs come and go for ever: what the arbiter keeps of them stays bounded, and their history can still be asked for."""

import json
from pathlib import Path

import pytest

from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.ledger.history_bounds import HistoryBounds
from ebbtide.ledger.sqlite_index import LedgerIndex
from ebbtide.pool.events import Event, GrantJob, JobEnded, JobForgotten, JobSubmitted
from ebbtide.pool.ids import JobName
from ebbtide.pool.rules import record_retention
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState
from ebbtide_autoscaler.core.observe.observation import Observation
from ebbtide_autoscaler.core.plan.inputs import Memory
from ebbtide_autoscaler.core.tick.tick import World, tick
from ebbtide_autoscaler.journal.records import Journal, recover
from ebbtide_autoscaler.journal.recovery import Recovered, snapshot_of
from tests.autoscaler.closed_loop import KNOBS, Loop, a_job
from tests.builders.closed_loop import until

KEPT, KEPT_MAX = 3, 6
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_retention, "ENDED_KEPT", KEPT)
    monkeypatch.setattr(record_retention, "ENDED_KEPT_MAX", KEPT_MAX)
    monkeypatch.setattr(record_retention, "SPARED_S", 5.0)


def over(loop: Loop, name: str) -> bool:
    job = loop.state.jobs.get(JobName(name))
    return job is not None and job.state is JobState.ENDED


def test_a_pool_that_has_run_many_short_jobs_knows_the_newest_and_its_successor_decides_alike() -> None:
    loop = Loop(3, endpoints=())
    loop.run(2.0)
    for number in range(12):
        loop.submit(a_job(f"j{number}", workers_max=2), total=5)
        until(loop, lambda number=number: over(loop, f"j{number}"), 60.0)  # type: ignore[misc]
    loop.run(10.0)
    assert list(loop.state.jobs) == ["j9", "j10", "j11"]
    gone = [event.body.job for event in loop.events if isinstance(event.body, JobForgotten)]
    assert gone == [f"j{number}" for number in range(9)]
    assert all(record.occupant is None for record in loop.state.slots.values())
    loop.kill_arbiter(1.0)  # which compares its state with that of a replay
    loop.run(5.0)
    loop.submit(a_job("j0", workers_max=2), total=5)
    until(loop, lambda: over(loop, "j0"), 60.0)
    loop.run(10.0)
    assert list(loop.state.jobs) == ["j10", "j11", "j0"]


def test_jobs_that_were_all_lost_at_once_are_restored_and_none_is_forgotten_before() -> None:
    loop = Loop(4, endpoints=())
    loop.run(2.0)
    names = [f"j{number}" for number in range(KEPT + 2)]
    for name in names:
        loop.submit(a_job(name, workers_max=1))
        loop.restorable.add(name)
    loop.run(10.0)
    for name in names:
        loop.drivers[name].kill()
    until(loop, lambda: all(over(loop, name) for name in names), 60.0)
    until(loop, lambda: all(loop.state.jobs[JobName(name)].restores for name in names), 120.0)
    assert not any(isinstance(event.body, JobForgotten) for event in loop.events)


def history(count: int) -> list[Event]:
    """Jobs that are submitted and end, with the events by which a tick forgets them."""
    world = World(PoolState(), Memory(), 1)
    events: list[Event] = []
    for number in range(count):
        name = JobName(f"j{number}")
        bodies = (JobSubmitted(a_job(name), "i"), JobEnded(name, "finished", "its train function returned"))
        result = tick(world, Observation(started_s=0.0), bodies, 100.0 * number, KNOBS)
        world, events = result.world, [*events, *result.events]
    return events


def folded(events: list[Event]) -> Recovered:
    """What a ledger of these events says."""
    known = Recovered()
    for event in events:
        known.take_event(event)
    return known


def test_a_snapshot_does_not_grow_and_why_still_tells_of_a_job_of_long_ago(tmp_path: Path) -> None:
    sizes = []
    for count in (10, 40):
        known = folded(history(count))
        sizes.append(len(json.dumps(snapshot_of(known))))
        assert len(known.state.jobs) <= KEPT + 1
    assert sizes[1] < 1.05 * sizes[0]

    ledger = tmp_path / "ledger"
    log = EpochLog.open(ledger, writer="w", history=HistoryBounds(max_bytes=0))
    journal = Journal(log, recover(ledger, up_to=log.epoch), snapshot_bytes=0)
    journal.write(history(10)).result(WAIT_S)
    with LedgerIndex(ledger, tmp_path / "i.sqlite") as index:
        index.update()
        rolling = journal.keep_short()
        assert rolling is not None
        rolling.result(WAIT_S)
        journal.close()
        index.update()
        told: list[object] = []
        for one in index.events(subject="j0"):
            body = one.payload["body"]
            assert isinstance(body, dict)
            told.append(body["kind"])
    assert told == ["job_submitted", "job_ended", "job_forgotten"]
    state = recover(ledger).state
    assert "j0" not in state.jobs and "j9" in state.jobs


def test_what_is_said_late_of_a_forgotten_job_changes_nothing() -> None:
    world = World(folded(history(10)).state, Memory(), 2)
    late = (JobEnded(JobName("j0"), "finished", ""), GrantJob(JobName("j0"), (), "r"))
    result = tick(world, Observation(started_s=0.0), late, 1000.0, KNOBS)
    assert result.events == () and result.world.state == world.state
    assert [why for _, why in result.refused] == ["job j0 is not known"] * 2
