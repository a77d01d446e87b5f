"""Lost nodes are forgotten, oldest first: never one that lives or whose slots somebody names; and they stay few."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.agent.errors import StaleLease
from ebbtide.agent.slot_locks.slot_lock import SlotLock
from ebbtide.client.messages import SlotRef
from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.events import (
    Body,
    Event,
    GrantJob,
    GrantSeat,
    JobCrashed,
    JobEnded,
    JobRecovered,
    JobSubmitted,
    NodeDraining,
    NodeForgotten,
    NodeFound,
    NodeLost,
    SeatGone,
    SeatLanded,
    SeatStopped,
    Slot,
    SlotFound,
    SlotFreed,
    SlotUnfenced,
)
from ebbtide.pool.handlers.apply import apply, replay
from ebbtide.pool.ids import NodeId, RecordId, SeatId, SlotId, slot_id
from ebbtide.pool.rules import record_retention
from ebbtide.pool.rules.promises import violations, violations_since
from ebbtide.pool.rules.record_retention import LOST_KEPT, LOST_KEPT_MAX, LOST_SPARED_S, nodes_to_forget
from ebbtide.pool.state import PoolState, SlotRecord
from ebbtide.pool.transitions import JobState, SlotState
from ebbtide_autoscaler.service.pool_view import LOST_SHOWN_S
from tests.examples import examples
from tests.platform.pool.builder import JOB, JOB_IN, NODE, S0, S1, S2, SEAT, SEAT_IN, SPEC, a_slot, after, pool

LATE_S = 10_000.0
FORGOTTEN = NodeForgotten(NODE, (S0, S1, S2))


def lost(count: int, *, first: int = 0, since_s: float = 1000.0, gpus: int = 1) -> dict[SlotId, SlotRecord]:
    """Slots of so many lost nodes, one node a second."""
    slots = [a_slot(slot_id(NodeId(f"n{n}"), index)) for n in range(first, first + count) for index in range(gpus)]
    return {
        slot.id: SlotRecord(slot, SlotState.LOST, since_s=since_s + number // gpus) for number, slot in enumerate(slots)
    }


def forget(node: NodeId, state: PoolState) -> NodeForgotten:
    return NodeForgotten(node, tuple(name for name, record in state.slots.items() if record.slot.node == node))


def forgotten(state: PoolState, now_s: float) -> PoolState:
    """What is left when all that is to go has gone."""
    while going := nodes_to_forget(state, now_s):
        assert len(going) <= record_retention.LOST_AT_ONCE
        for node in going:
            state = after(state, forget(node, state), at_s=now_s)
    return state


def nodes(state: PoolState) -> set[str]:
    return {str(record.slot.node) for record in state.slots.values()}


# ---- which go


def test_the_newest_are_kept_and_the_oldest_go_a_few_at_a_time() -> None:
    assert nodes_to_forget(PoolState(slots=lost(LOST_KEPT, gpus=8)), LATE_S) == ()
    assert nodes_to_forget(PoolState(slots=lost(LOST_KEPT + 1, gpus=8)), LATE_S) == ("n0",)
    many = PoolState(slots=lost(LOST_KEPT_MAX + 50, gpus=2))
    assert len(nodes_to_forget(many, LATE_S)) == record_retention.LOST_AT_ONCE
    assert nodes(forgotten(many, LATE_S)) == {f"n{LOST_KEPT_MAX + 50 - n}" for n in range(1, LOST_KEPT + 1)}


def test_one_that_was_just_lost_is_spared_while_status_shows_it() -> None:
    assert LOST_SPARED_S >= LOST_SHOWN_S
    state = PoolState(slots=lost(LOST_KEPT + 20))
    assert nodes_to_forget(state, 1000.0 + LOST_SPARED_S - 0.5) == ()
    assert nodes_to_forget(state, 1000.0 + LOST_SPARED_S) == ("n0",)
    assert nodes_to_forget(state, 0.0) == (), "a clock that went back makes nobody old"


def test_a_node_is_as_old_as_the_last_loss_of_its_slots() -> None:
    slots = {**lost(LOST_KEPT), **lost(1, first=500, since_s=500.0)}
    again = Slot(slot_id(NodeId("n500"), 1), NodeId("n500"), 1)
    assert nodes_to_forget(PoolState(slots=slots), LATE_S) == ("n500",)
    later = {again.id: SlotRecord(again, SlotState.LOST, since_s=5000.0)}
    for both in ({**slots, **later}, {**later, **slots}):
        assert nodes_to_forget(PoolState(slots=both), LATE_S) == ("n0",)


def test_those_that_are_spared_are_bounded_too() -> None:
    state = PoolState(slots=lost(LOST_KEPT_MAX + 30, since_s=LATE_S))
    assert nodes(forgotten(state, LATE_S)) == {f"n{n}" for n in range(30, LOST_KEPT_MAX + 30)}


def test_those_whose_slots_somebody_names_stay_and_others_go_in_their_place() -> None:
    busy = after(pool(), *JOB_IN[JobState.RUNNING], NodeLost(NODE), at_s=0.0)
    state = replace(busy, slots={**busy.slots, **lost(LOST_KEPT + 1)})
    assert nodes_to_forget(state, LATE_S) == ("n0", "n1")
    over = after(state, JobEnded(JOB, "lost", "silent"))
    assert nodes_to_forget(over, LATE_S) == (NODE, "n0")


def test_nodes_that_are_back_and_not_yet_looked_at_are_not_counted_as_lost() -> None:
    state = PoolState(slots=lost(LOST_KEPT + 1), nodes={NodeId("n0"): 0})
    assert nodes_to_forget(state, LATE_S) == ()
    assert nodes_to_forget(replace(state, slots=lost(LOST_KEPT + 2)), LATE_S) == ("n1",)


# ---- what may be forgotten


def test_only_the_nodes_own_slots_go_and_everything_else_stays() -> None:
    other = NodeId("m")
    state = after(pool(), NodeFound(other, 5), SlotFound(a_slot(slot_id(other, 0))), NodeLost(NODE))
    left = after(state, FORGOTTEN)
    assert set(left.slots) == {slot_id(other, 0)}
    assert replace(left, slots=state.slots) == state


@pytest.mark.proves("a node that is alive is not forgotten")
def test_a_node_that_is_alive_or_never_was_is_not_forgotten() -> None:
    for state in (pool(), after(pool(), NodeLost(NODE), NodeFound(NODE, 1000)), PoolState()):
        with pytest.raises(IllegalTransition, match="it is alive, or not known"):
            after(state, FORGOTTEN)
    with pytest.raises(IllegalTransition, match="it is alive, or not known"):
        after(pool(), NodeLost(NODE), FORGOTTEN, FORGOTTEN)


@pytest.mark.proves("a slot that is not lost is not forgotten")
def test_a_slot_that_is_not_lost_is_not_forgotten_even_if_its_node_were() -> None:
    state = after(pool(), NodeLost(NODE))
    record = replace(state.slots[S1], state=SlotState.UNFENCED)
    with pytest.raises(IllegalTransition, match="is not forgotten"):
        after(replace(state, slots={**state.slots, S1: record}), FORGOTTEN)
    assert after(state, FORGOTTEN).slots == {}


def test_the_event_names_exactly_the_slots_that_go() -> None:
    for slots in ((S0, S1), (S0, S1, S2, SlotId("m:0")), ()):
        with pytest.raises(IllegalTransition, match="it had n:0, n:1, n:2"):
            after(pool(), NodeLost(NODE), NodeForgotten(NODE, slots))


@pytest.mark.proves("no slot of a lost node is forgotten while a job or seat names it")
@pytest.mark.parametrize("events", [*JOB_IN.values(), *SEAT_IN.values()])
def test_a_slot_that_a_job_or_a_seat_names_stays_whatever_state_it_is_in(events: tuple[Body, ...]) -> None:
    state = after(pool(), *events, NodeLost(NODE))
    if state.jobs[JOB].gang or any(seat.slots for seat in state.seats.values()):
        with pytest.raises(IllegalTransition, match="a job or seat names its slots"):
            after(state, FORGOTTEN)
        spoiled = replace(state, slots={})
        assert any("which is not in the pool" in wrong for wrong in violations(spoiled))
        assert violations_since(state, spoiled) == violations(spoiled)
    else:
        assert after(state, FORGOTTEN).slots == {}


def test_it_goes_when_who_named_it_has_given_it_up() -> None:
    state = after(pool(), *JOB_IN[JobState.RUNNING], NodeLost(NODE), JobCrashed(JOB, "its node is gone", 0))
    assert after(state, JobRecovered(JOB), FORGOTTEN).slots == {}
    seat = after(pool(), GrantSeat(SEAT, (S2,), "r"), SeatLanded(SEAT, "a"), NodeLost(NODE), SeatStopped(SEAT, "gone"))
    assert after(seat, SeatGone(SEAT), FORGOTTEN).slots == {}


# ---- what comes after


def test_a_node_that_comes_back_under_its_id_is_a_new_one() -> None:
    state = after(pool(), NodeDraining(NODE, "r"), NodeLost(NODE), FORGOTTEN)
    assert (state.draining, state.drained_from) == ({}, {})
    for body in (SlotFreed(S0), SlotUnfenced(S0), SlotFound(a_slot(S0)), GrantJob(JOB, (S0,), "r")):
        with pytest.raises(IllegalTransition):
            after(state, body)
    again = after(state, NodeFound(NODE, 1000), SlotFound(a_slot(S0)))
    assert again.slots[S0].state is SlotState.UNFENCED, "nothing is taken for empty before it is proven"
    granted = after(again, SlotFreed(S0), GrantJob(JOB, (S0,), "r"))
    assert granted.jobs[JOB].epoch == state.next_epoch


def test_a_gpu_that_comes_back_under_another_node_still_refuses_who_had_it_before_its_node_was_forgotten(
    tmp_path: Path,
) -> None:
    """What was forgotten is not what fences: the lock is named by the GPU, and epochs go on."""

    def lock(state: PoolState, slot: SlotId) -> SlotLock:
        found = state.slots[slot].slot
        ref = SlotRef(found.node, found.index, found.uuid)
        return SlotLock(tmp_path, ref, workload=JOB, epoch=state.jobs[JOB].epoch, ledger="L")

    def joined(state: PoolState, node: str) -> PoolState:
        slot = Slot(slot_id(NodeId(node), 0), NodeId(node), 0, uuid="GPU-1")
        found = after(state, NodeFound(slot.node, 1000), SlotFound(slot), SlotFreed(slot.id))
        return after(found, GrantJob(JOB, (slot.id,), "r"))

    before = joined(after(PoolState(), JobSubmitted(SPEC, "i")), "old")
    late = lock(before, SlotId("old:0"))
    gone = after(before, NodeLost(NodeId("old")), JobCrashed(JOB, "w", 0), JobRecovered(JOB))
    gone = after(gone, NodeForgotten(NodeId("old"), (SlotId("old:0"),)))
    for node in ("new", "old"):
        now = joined(replace(gone, jobs={JOB: replace(gone.jobs[JOB], not_before_s=0.0)}), node)
        with lock(now, slot_id(NodeId(node), 0)):
            assert now.jobs[JOB].epoch > before.jobs[JOB].epoch
        with pytest.raises(StaleLease):
            late.acquire(0.0)


# ---- whatever happens

NAMES = tuple(NodeId(f"n{number}") for number in range(14))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.sampled_from(["join", "join", "lose", "lose", "lose", "train", "serve", "crash", "end", "drain"]),
        st.sampled_from([0.1, 1.0, 4.0]),
    ),
    max_size=140,
)
KEPT, KEPT_MAX, SPARED_S = 2, 5, 3.0


class Churn:
    """A pool whose nodes come and go, each decision to forget one carried out."""

    def __init__(self) -> None:
        self.start = self.state = replace(pool(slots=()), nodes={})
        self.events: list[Event] = []
        self.now_s = 100.0

    def send(self, body: Body) -> None:
        before, event = self.state, Event(RecordId(f"1-{len(self.events)}"), self.now_s, None, body)
        try:
            self.state = apply(before, event)
        except IllegalTransition:
            assert not isinstance(body, NodeForgotten), "what is chosen can be done"
            return
        self.events.append(event)
        assert violations(self.state) == violations_since(before, self.state) == []
        assert self.state.next_epoch >= before.next_epoch

    def do(self, node: NodeId, what: str) -> None:
        here = (slot_id(node, 0), slot_id(node, 1))
        free = tuple(slot for slot in self.state.free_slots() if slot in here)
        holding = [slot for slot, record in self.state.slots.items() if record.occupant == JOB]
        found = tuple(body for slot in here for body in (SlotFound(a_slot(slot)), SlotFreed(slot)))
        seat = SeatId(f"chat/{int(node[1:]) % 2}")
        ways: dict[str, tuple[Body, ...]] = {
            "join": (NodeFound(node, 1000), *found),
            "lose": (NodeLost(node),),
            "train": (JobSubmitted(SPEC, "i2"), GrantJob(JOB, self.state.free_slots()[:3], "r")),
            "serve": (GrantSeat(seat, free[:1], "r"),),
            "crash": (JobCrashed(JOB, "w", 50), *map(SlotFreed, holding), JobRecovered(JOB)),
            "end": (SeatStopped(seat, "w"), SeatGone(seat), JobEnded(JOB, "lost", "")),
            "drain": (NodeDraining(node, "r"),),
        }
        for body in ways[what]:
            self.send(body)

    def named(self) -> set[SlotId]:
        gangs = {slot for job in self.state.jobs.values() for slot in job.gang}
        return gangs | {slot for seat in self.state.seats.values() for slot in seat.slots}

    def forget(self) -> None:
        """Carry out what is decided, and see that it was right."""
        while going := nodes_to_forget(self.state, self.now_s):
            for node in going:
                slots = {name: one for name, one in self.state.slots.items() if one.slot.node == node}
                assert slots and {one.state for one in slots.values()} == {SlotState.LOST}
                assert node not in self.state.nodes and not self.named() & set(slots)
                self.send(NodeForgotten(node, tuple(slots)))
        found: dict[NodeId, float] = {}
        for one in self.state.slots.values():
            if one.slot.node not in self.state.nodes:
                found[one.slot.node] = max(one.since_s, found.get(one.slot.node, 0.0))
        busy = {slot.rpartition(":")[0] for slot in self.named()} & set(found)
        old = [node for node, since_s in found.items() if self.now_s - since_s >= SPARED_S]
        assert len(found) <= KEPT_MAX + len(busy)
        assert len(found) <= KEPT or set(old) <= busy or len(found) - len(busy) <= KEPT


@settings(max_examples=examples(120), deadline=None, derandomize=True, database=None)
@given(STEPS)
def test_whatever_happens_only_what_is_gone_is_forgotten_and_what_is_left_is_bounded(
    steps: list[tuple[NodeId, str, float]],
) -> None:
    with pytest.MonkeyPatch.context() as small:
        small.setattr(record_retention, "LOST_KEPT", KEPT)
        small.setattr(record_retention, "LOST_KEPT_MAX", KEPT_MAX)
        small.setattr(record_retention, "LOST_SPARED_S", SPARED_S)
        churn = Churn()
        for node, what, pause_s in steps:
            churn.now_s += pause_s
            churn.do(node, what)
            churn.forget()
        assert replay(churn.events, churn.start) == churn.state
