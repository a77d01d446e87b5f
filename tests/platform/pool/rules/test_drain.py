"""Draining a node and freezing the pool: what is refused, and when a node is empty."""

from dataclasses import replace

import pytest

from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.events import (
    Body,
    GrantJob,
    GrantSeat,
    JobStopped,
    NodeDraining,
    NodeFound,
    NodeLost,
    NodeUndrained,
    PoolFrozen,
    PoolUnfrozen,
    ResumeJob,
    Slot,
    SlotFound,
    SlotFreed,
    StopJob,
)
from ebbtide.pool.ids import Epoch, NodeId, slot_id
from ebbtide.pool.rules.drain import is_drained, occupants
from ebbtide.pool.rules.promises import violations
from ebbtide.pool.state import PoolState
from tests.platform.pool.builder import JOB, NODE, PARKED, READY, RUNNING, S0, S2, SEAT, after, pool

DRAIN = NodeDraining(NODE, "new disk")


@pytest.mark.proves("no slot of a draining node is free", "no slot of a draining node is granted")
@pytest.mark.parametrize(
    ("before", "grant"),
    [((), GrantJob(JOB, (S0,), "r")), ((), GrantSeat(SEAT, (S2,), "r")), (PARKED, ResumeJob(JOB, "r"))],
)
def test_nothing_is_granted_on_a_node_that_drains_until_it_is_undrained(before: tuple[Body, ...], grant: Body) -> None:
    state = after(pool(), *before, DRAIN)
    assert state.free_slots() == ()
    with pytest.raises(IllegalTransition, match="node n is draining"):
        after(state, grant)
    assert violations(after(state, NodeUndrained(NODE), grant)) == []


@pytest.mark.proves(
    "a drain knows which leases are older than it",
    "a node that drains is in the pool",
    "no lease on a draining node is newer than the drain",
)
def test_whoever_is_there_when_the_drain_begins_breaks_no_promise_and_a_later_lease_does() -> None:
    state = after(pool(), *RUNNING, DRAIN, replace(DRAIN, reason="new board"))
    assert violations(state) == []
    later = replace(state.slots[S0], epoch=state.drained_from[NODE])
    broken = replace(state, slots={**state.slots, S0: later}, next_epoch=Epoch(99))
    assert any("began to drain" in wrong for wrong in violations(broken))
    assert any("drain, of" in wrong for wrong in violations(replace(state, draining={NodeId("x"): "r"})))
    elsewhere = replace(state, draining={NodeId("x"): "r"}, drained_from={NodeId("x"): state.next_epoch})
    assert any("drain, of" in wrong for wrong in violations(elsewhere))


def test_another_reason_is_no_new_drain() -> None:
    """Else a lease that was given in between would be taken for one from before."""
    elsewhere = NodeId("m")
    more = (NodeFound(elsewhere, 0), SlotFound(Slot(slot_id(elsewhere, 0), elsewhere, 0)))
    state = after(pool(), *more, SlotFreed(slot_id(elsewhere, 0)), DRAIN)
    since = state.drained_from[NODE]
    state = after(state, GrantJob(JOB, (slot_id(elsewhere, 0),), "r"), replace(DRAIN, reason="new board"))
    assert (state.draining[NODE], state.drained_from[NODE]) == ("new board", since)
    assert state.next_epoch > since


def test_a_node_is_drained_when_neither_slots_nor_claims_are_left() -> None:
    ready = after(pool(), *PARKED, *READY)
    assert not is_drained(ready, NODE), "nobody drains it"
    state = after(ready, DRAIN)
    assert (set(occupants(state, NODE)), is_drained(state, NODE)) == ({JOB, SEAT}, False)
    state = after(pool(), *PARKED, DRAIN)
    assert occupants(state, NODE) == (JOB,), "its state is in this node's memory"
    state = after(state, StopJob(JOB, "r", preempts=False), JobStopped(JOB, 9))
    assert is_drained(state, NODE)


def test_a_node_that_leaves_needs_no_drain_any_more() -> None:
    state = after(pool(), DRAIN, NodeLost(NODE))
    assert (state.draining, state.drained_from) == ({}, {})


def refused(state: PoolState, *bodies: Body) -> bool:
    with pytest.raises(IllegalTransition):
        after(state, *bodies)
    return True


@pytest.mark.proves(
    "a second freeze is refused", "no freeze goes without a reason", "the same drain is refused a second time"
)
def test_what_is_so_already_is_refused() -> None:
    state = pool()
    assert refused(after(state, DRAIN), DRAIN)
    assert refused(state, NodeDraining(NodeId("x"), "r"))
    assert refused(state, NodeUndrained(NODE))
    assert refused(state, PoolUnfrozen())
    assert refused(after(state, PoolFrozen("r")), PoolFrozen("s"))
    assert refused(state, PoolFrozen(""))


def test_a_frozen_pool_says_why_and_since_when() -> None:
    state = after(pool(), PoolFrozen("night shift"), at_s=7.0)
    assert (state.frozen, state.frozen_since_s) == ("night shift", 7.0)
    assert after(state, PoolUnfrozen()) == pool()
