"""Which instructions follow from state and view, one at a time."""

from collections.abc import Mapping

import pytest

from ebbtide.client.messages import ReplicaPhase, ReplicaReport
from ebbtide.pool.events import (
    DrainSeat,
    GrantSeat,
    NodeLost,
    SeatDied,
    SeatGone,
    SeatLanded,
    SeatReady,
    SeatStopped,
    SlotForeign,
    SlotFreed,
    SlotUnfenced,
)
from ebbtide.pool.ids import NodeId, SeatId, SlotId
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.observe.observation import FenceView, Observation, Timestamped
from ebbtide_autoscaler.core.tick.instructions import (
    CloseSeat,
    DropFence,
    HoldFence,
    Instruction,
    KillHolder,
    KillReplica,
    OpenSeat,
    instruct,
)
from tests.builders.policy import S0, S1, S2, SEAT0, SEAT1, a_pool, fold, slots

NOW = 2_000.0
OPENING = fold(a_pool(), GrantSeat(SEAT0, (S0,), "r"))
READY = fold(OPENING, SeatLanded(SEAT0, "a"), SeatReady(SEAT0, ()))
BESIDE = fold(READY, GrantSeat(SEAT1, (S1,), "r"))
LEAVING = fold(READY, DrainSeat(SEAT0, "r"), SeatStopped(SEAT0, "drained"), GrantSeat(SEAT1, (S1,), "r"))
FOREIGN = fold(a_pool(), SlotUnfenced(S2), SlotForeign(S2, "who"), GrantSeat(SEAT0, (S0,), "r"))


def told(
    state: PoolState,
    fences: Mapping[SlotId, FenceView],
    *,
    living: Mapping[SeatId, tuple[str, ...]] | None = None,
    fencing: frozenset[NodeId] = frozenset(),
    now_s: float = NOW,
    started_s: float = 0.0,
) -> set[Instruction]:
    """The instructions, when all fences stand but these; ``living`` was looked up a moment ago."""
    views = {slot: fences.get(slot, FenceView.HELD) for slot in state.slots}
    seen = Observation(started_s=started_s, fences=views, fencing=fencing, living=living or {}, living_at_s=now_s - 0.1)
    return set(instruct(state, seen, now_s))


ABSENT, REFUSED = FenceView.ABSENT, FenceView.REFUSED


@pytest.mark.proves(
    "no replica is asked for before its fences are gone",
    "only a replica that was told to go is killed",
)
def test_fence_first_then_target() -> None:
    assert DropFence(S0) in told(OPENING, {})
    assert OpenSeat(SEAT0) not in told(OPENING, {})
    assert told(OPENING, {S0: ABSENT}) == {OpenSeat(SEAT0)}


@pytest.mark.proves(
    "a stranger who stays keeps no replica from placing",
    "no fence is removed while a replica leaves the node",
    "no fence is removed while an unwanted actor is pending anywhere",
    "no fence is removed while another GPU of the node is free",
    "no fence is removed while another process may take the GPU",
)
@pytest.mark.parametrize(
    ("state", "fences", "living", "fencing", "drops"),
    [
        (OPENING, {}, {}, frozenset(), True),
        (OPENING, {}, {}, frozenset({NodeId("n0")}), False),  # the fence that is asked for would take it
        (OPENING, {S1: ABSENT}, {}, frozenset(), False),  # another logical GPU is free
        (OPENING, {}, {SEAT1: ("ghost",)}, frozenset(), False),  # an unwanted actor may be pending
        (LEAVING, {S0: ABSENT}, {SEAT0: ("a",)}, frozenset(), False),  # its logical GPU is free at any moment
        (LEAVING, {S0: ABSENT}, {}, frozenset(), False),
        (BESIDE, {S0: ABSENT}, {SEAT0: ("a",)}, frozenset(), True),  # its neighbour stays where it is
        (FOREIGN, {S2: ABSENT}, {}, frozenset(), False),  # the stranger may have left: try to fence it first
        (FOREIGN, {S2: REFUSED}, {}, frozenset(), True),  # it is still there: nobody can land on it by mistake
    ],
)
def test_a_fence_is_dropped_only_when_nothing_else_can_take_or_give_a_logical_gpu(
    state: PoolState,
    fences: Mapping[SlotId, FenceView],
    living: Mapping[SeatId, tuple[str, ...]],
    fencing: frozenset[NodeId],
    drops: bool,
) -> None:
    dropped = {i for i in told(state, fences, living=living, fencing=fencing) if isinstance(i, DropFence)}
    assert bool(dropped) is drops


@pytest.mark.proves("no fence is removed while a dead replica's successor is to land there")
def test_no_fence_is_dropped_while_a_replica_that_died_is_to_come_back_to_the_node() -> None:
    """The one that Serve starts in its place is pending: it would take the next replica's logical GPU."""
    state = fold(READY, SeatDied(SEAT0, "w"), GrantSeat(SEAT1, (S1,), "r"), at_s=NOW - 5.0)
    fences, living = {S0: FenceView.ABSENT}, {SEAT0: ("b",)}
    assert DropFence(S1) not in told(state, fences, living=living)
    report = ReplicaReport(seat=SEAT0, replica="b", node="n0", pid=1, lease_epoch=1, phase=ReplicaPhase.STARTING)
    views = {slot: fences.get(slot, FenceView.HELD) for slot in state.slots}
    back = Observation(
        started_s=0.0, fences=views, living=living, living_at_s=NOW, replicas={SEAT0: Timestamped(NOW, report)}
    )
    assert DropFence(S1) in instruct(state, back, NOW), "it has landed in its own place"


@pytest.mark.proves("no fence is removed while an unwanted actor is pending on the node")
def test_an_actor_that_haunts_one_node_keeps_no_other_node_from_placing() -> None:
    """Replicas are bound to nodes; only of an actor of a seat without slots nobody knows where it may land."""
    pool = a_pool(nodes={"n0": 2, "n1": 1})
    ghost = fold(pool, GrantSeat(SEAT0, (S0,), "r"), SeatStopped(SEAT0, "w"), at_s=NOW - 1.0)
    for slot, drops in ((S1, False), (slots(1, "n1")[0], True)):
        state = fold(ghost, GrantSeat(SEAT1, (slot,), "r"), at_s=NOW - 1.0)
        assert (DropFence(slot) in told(state, {}, living={SEAT0: ("ghost",)})) is drops
        nowhere = fold(state, SlotFreed(S0), SeatGone(SEAT0))
        assert DropFence(slot) not in told(nowhere, {}, living={SEAT0: ("ghost",)})
    assert DropFence(S1) in told(BESIDE, {S0: ABSENT}, living={SEAT0: ("a",)}), "it is wanted, and has landed"


@pytest.mark.proves("no fence is asked for while a replica is to land")
def test_no_fence_is_asked_for_while_a_replica_is_to_land_on_the_node() -> None:
    assert HoldFence(S2) in told(FOREIGN, {S2: ABSENT})
    assert HoldFence(S2) not in told(FOREIGN, {S2: ABSENT, S0: ABSENT})
    assert HoldFence(S2) not in told(FOREIGN, {S2: REFUSED})


@pytest.mark.proves("no fence is asked for where a replica's actor still is")
def test_the_fence_of_a_replica_that_leaves_is_asked_for_when_its_actor_is_gone() -> None:
    leaving = fold(READY, DrainSeat(SEAT0, "r"), SeatStopped(SEAT0, "drained"))
    assert HoldFence(S0) not in told(leaving, {S0: ABSENT}, living={SEAT0: ("a",)})
    assert HoldFence(S0) in told(leaving, {S0: ABSENT})


@pytest.mark.proves("a look that finds no actor must be newer than the order to fence its slot")
def test_a_look_from_before_the_order_does_not_say_that_an_actor_is_gone() -> None:
    leaving = fold(READY, DrainSeat(SEAT0, "r"), SeatStopped(SEAT0, "drained"), at_s=NOW)
    views = {slot: FenceView.HELD for slot in leaving.slots} | {S0: ABSENT}
    for looked_s, asks in ((NOW - 0.5, False), (NOW + 0.5, True)):
        seen = Observation(started_s=0.0, fences=views, living_at_s=looked_s)
        assert (HoldFence(S0) in instruct(leaving, seen, NOW + 1.0)) is asks


@pytest.mark.proves("no fence is asked for on a dead node")
def test_nothing_is_asked_of_a_node_that_is_gone() -> None:
    """A call to it would hang, and its slots are shown as lost for a while."""
    lost = fold(a_pool(nodes={"n0": 1, "n1": 1}), NodeLost(NodeId("n0")))
    asked = told(lost, dict.fromkeys(lost.slots, ABSENT))
    assert asked == {HoldFence(slots(1, "n1")[0])}


@pytest.mark.proves(
    "a new arbiter gives what it waits for its whole time",
    "an actor has time to leave by itself",
    "the holder of a lock has time to leave by itself",
)
def test_whoever_overstays_is_killed_but_not_by_an_arbiter_that_has_just_started() -> None:
    leaving = fold(READY, DrainSeat(SEAT0, "r"), SeatStopped(SEAT0, "drained"))
    late = told(leaving, {S0: ABSENT}, living={SEAT0: ("a",)})
    assert {CloseSeat(SEAT0), KillReplica(SEAT0, "a"), KillHolder(S0, 1)} <= late
    early = told(leaving, {S0: ABSENT}, living={SEAT0: ("a",)}, started_s=NOW - 1.0)
    assert early == {CloseSeat(SEAT0)}
    cold = fold(leaving, SlotFreed(S0), SeatGone(SEAT0))
    assert told(cold, {}, living={SEAT0: ("ghost",)}) == {CloseSeat(SEAT0), KillReplica(SEAT0, "ghost")}
