"""Machines come and go for ever, each time with a new id: what the arbiter keeps of them stays bounded."""

import json
from pathlib import Path
from random import Random

import pytest

from ebbtide.client.messages import AgentReport
from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.ledger.sqlite_index import LedgerIndex
from ebbtide.pool.events import (
    Event,
    GrantJob,
    JobCrashed,
    NodeForgotten,
    NodeFound,
    NodeLost,
    Slot,
    SlotForeign,
    SlotFound,
)
from ebbtide.pool.handlers.apply import replay
from ebbtide.pool.ids import JobName, NodeId, SlotId, slot_id
from ebbtide.pool.lookup import index
from ebbtide.pool.rules import record_retention
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from ebbtide_autoscaler.control.fence_table import FenceTable
from ebbtide_autoscaler.control.inbox import Inbox, timestamped
from ebbtide_autoscaler.core.observe.observation import Observation
from ebbtide_autoscaler.core.plan.inputs import Memory
from ebbtide_autoscaler.core.tick.tick import World, tick
from ebbtide_autoscaler.journal.records import Journal, fence_record, recover
from ebbtide_autoscaler.journal.recovery import Recovered, snapshot_of
from tests.autoscaler.closed_loop import KNOBS, Loop, a_job, an_endpoint
from tests.builders.closed_loop import until

KEPT, KEPT_MAX, SPARED_S = 3, 6, 20.0
TRAIN = JobName("train")
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_retention, "LOST_KEPT", KEPT)
    monkeypatch.setattr(record_retention, "LOST_KEPT_MAX", KEPT_MAX)
    monkeypatch.setattr(record_retention, "LOST_SPARED_S", SPARED_S)


def lost(state: PoolState) -> list[NodeId]:
    return list(index.lost_since(state.slots))


def gone(events: list[Event]) -> list[NodeId]:
    return [event.body.node for event in events if isinstance(event.body, NodeForgotten)]


# ---- in the closed loop


def test_machines_that_restart_hundreds_of_times_leave_a_state_of_the_same_size_and_work_goes_on() -> None:
    random = Random(4)
    loop = Loop(4, nodes={"n0": 2, "a0": 2, "b0": 2}, endpoints=(an_endpoint(replicas_max=2),))
    loop.run(4.0)
    loop.gateways[0].rates["chat"] = 0.5
    living = {"a": "a0", "b": "b0"}
    most, job = 0, TRAIN
    loop.submit(a_job(workers_max=4))
    for number in range(1, 301):
        machine = random.choice("ab")
        loop.lose_node(living[machine], seen_after_s=random.choice([0.2, 1.5]))
        living[machine] = f"{machine}{number}"
        loop.add_node(living[machine], 2)
        loop.run(random.choice([1.0, 3.0, 12.0]), tick_s=0.4)
        most = max(most, len(loop.state.slots))
        if number % 60 == 0:
            loop.kill_arbiter(1.0)  # which compares its state with that of a replay
            loop.run(12.0, tick_s=0.4)
            job = JobName(f"train{number}")  # some crashes in a row without a step, and one is given up
            loop.submit(a_job(job, workers_max=4))
    assert most <= 2 * (3 + KEPT_MAX + 4), "living nodes, kept ones, and those that a gang or a seat still named"
    loop.run(SPARED_S + 20.0)
    assert len(lost(loop.state)) == KEPT and set(loop.state.nodes) == {"n0", *living.values()}
    assert len(gone(loop.events)) == len(set(gone(loop.events))) == 300 - KEPT
    assert sum(isinstance(event.body, JobCrashed) for event in loop.events) >= 5
    until(loop, lambda: loop.state.jobs[job].state is JobState.RUNNING)
    until(loop, lambda: any(seat.state is SeatState.READY for seat in loop.state.seats.values()))
    assert replay(loop.events) == loop.state


def test_a_node_that_was_cut_off_and_forgotten_joins_as_new_and_who_sits_on_it_is_seen() -> None:
    """The same raylet comes back; a process on it outlived all, and has the GPU under the lease of long ago."""
    loop = Loop(5, nodes={"n0": 2, "n1": 2}, endpoints=())
    loop.run(4.0)
    loop.submit(a_job(workers_max=2))
    until(loop, lambda: TRAIN in loop.state.jobs and loop.state.jobs[TRAIN].state is JobState.RUNNING)
    before = loop.state.jobs[TRAIN].epoch
    n1, slot = NodeId("n1"), slot_id(NodeId("n1"), 0)
    assert not any(name.startswith("n1:") for name in loop.state.jobs[TRAIN].gang)
    stuck = loop.cluster.machines.spawn("train", before, "n1")
    loop.cluster.machines.silent_agents.add(n1)
    loop.cluster.scheduler.forget(n1)
    loop.cluster.machines.take(stuck, slot, 1.0, lambda _: None)
    del loop.visible[n1]
    loop.run(3.0)
    for number in range(KEPT + 1):
        loop.add_node(f"x{number}", 1)
        loop.run(3.0)
        loop.lose_node(f"x{number}")
        loop.run(6.0)
    until(loop, lambda: gone(loop.events)[:1] == [n1])
    assert not any(record.slot.node == n1 for record in loop.state.slots.values())
    loop.cluster.machines.silent_agents.clear()
    loop.visible[n1] = 2
    since = len(loop.events)
    loop.run(20.0)
    assert stuck.alive and loop.state.slots[slot].state is SlotState.FOREIGN
    assert [event.body.slot for event in loop.events[since:] if isinstance(event.body, SlotForeign)] == [slot]
    loop.cluster.machines.kill(stuck)
    loop.submit(a_job("next", workers_min=2, workers_max=2))
    until(loop, lambda: loop.state.slots[slot].state is SlotState.LEASED)
    assert loop.state.slots[slot].epoch > before
    assert replay(loop.events) == loop.state


# ---- what is kept elsewhere, and what is told


def seen(**changes: object) -> Observation:
    return Observation(started_s=0.0, **changes)  # type: ignore[arg-type]


def history(count: int) -> list[Event]:
    """A machine that restarts so often, with the events by which a tick forgets it."""
    world = World(PoolState(), Memory(), 1)
    events: list[Event] = []
    for number in range(count):
        node = NodeId(f"n{number}")
        slot = Slot(slot_id(node, 0), node, 0, uuid="GPU-1")
        for bodies in ((NodeFound(node, 1000), SlotFound(slot)), (NodeLost(node),)):
            result = tick(world, seen(), bodies, 100.0 * number, KNOBS)
            world, events = result.world, [*events, *result.events]
    return events


def folded(events: list[Event]) -> Recovered:
    """What a ledger of these events says; each slot had a fence, and none was taken back."""
    known = Recovered()
    for event in events:
        known.take_event(event)
        if isinstance(event.body, SlotFound):
            known.take(fence_record(event.body.slot.id, f"fence of {event.body.slot.id}"))
    return known


def test_a_snapshot_does_not_grow_nor_do_its_fences() -> None:
    sizes = []
    for count in (10, 100):
        known = folded(history(count))
        sizes.append(len(json.dumps(snapshot_of(known))))
        assert set(known.fences) == set(known.state.slots)
        assert len(known.state.slots) == KEPT
    assert sizes[1] < 1.1 * sizes[0]


def test_the_fences_of_slots_that_stay_are_known_as_before() -> None:
    known = Recovered()
    for name in ("n0:0", "n1:0"):
        known.take(fence_record(SlotId(name), "f"))
    *before, forgotten = history(KEPT + 1)
    for event in before:
        known.take_event(event)
    assert set(known.fences) == {"n0:0", "n1:0"}
    known.take_event(forgotten)
    assert set(known.fences) == {"n1:0"}


def test_why_still_tells_of_a_node_and_its_slots_of_long_ago(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    log = EpochLog.open(ledger, writer="w")
    journal = Journal(log, recover(ledger, up_to=log.epoch))
    journal.write(history(10)).result(WAIT_S)
    journal.close()
    with LedgerIndex(ledger, tmp_path / "i.sqlite") as told:
        told.update()
        for subject, kinds in (
            ("n0", ["node_found", "node_lost", "node_forgotten"]),
            ("n0:0", ["slot_found", "node_forgotten"]),
        ):
            bodies = [record.payload["body"] for record in told.events(subject=subject)]
            assert [body["kind"] for body in bodies if isinstance(body, dict)] == kinds
    state = recover(ledger).state
    assert "n0:0" not in state.slots and "n9:0" in state.slots


def test_what_is_said_late_of_a_forgotten_node_changes_nothing() -> None:
    world = World(folded(history(10)).state, Memory(), 2)
    reports, n0 = Inbox(started_s=0.0), NodeId("n0")
    reports.agents[n0] = timestamped(AgentReport("n0", "boot", {0: None}, 1.0, {0: "GPU-1"}))
    late = (NodeLost(n0), GrantJob(TRAIN, (SlotId("n0:0"),), "r"), SlotFound(Slot(SlotId("n0:0"), n0, 0)))
    said = reports.seen(world.state, FenceTable(), frozenset(), 1)
    result = tick(world, said, late, 1001.0, KNOBS)
    assert [body for body, _ in result.refused] == list(late)
    assert "n0:0" not in result.world.state.slots


def test_a_ledger_from_before_is_shortened_a_few_nodes_at_a_time() -> None:
    known = PoolState()
    events = [e for e in history(60) if not isinstance(e.body, NodeForgotten)]
    world = World(replay(events, known), Memory(), 2)
    ticks = 0
    while result := tick(world, seen(), (), 10_000.0 + ticks, KNOBS):
        if not result.events:
            break
        assert len(result.events) <= 16
        world, ticks = result.world, ticks + 1
    assert lost(world.state) == ["n57", "n58", "n59"] and ticks <= 6
