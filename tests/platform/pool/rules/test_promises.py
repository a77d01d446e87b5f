"""Each promise is seen to be broken by a state that breaks it, and by no state that events can reach."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ebbtide.pool.errors import InvariantViolated
from ebbtide.pool.events import NodeLost
from ebbtide.pool.ids import Epoch, NodeId, SeatId
from ebbtide.pool.rules.promises import check, violations
from ebbtide.pool.state import PoolState, SlotRecord
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from tests.platform.pool.builder import (
    JOB,
    JOB_IN,
    NODE,
    PARKED,
    READY,
    RUNNING,
    S0,
    S2,
    SEAT,
    SEAT_IN,
    SLOT_IN,
    after,
    pool,
)

RUN = after(pool(), *RUNNING)
SERVE = after(pool(), *READY)


def with_slot(state: PoolState, record: SlotRecord) -> PoolState:
    return replace(state, slots={**state.slots, record.slot.id: record})


def with_job(old: PoolState, **changes: object) -> PoolState:
    return replace(old, jobs={JOB: replace(old.jobs[JOB], **changes)})  # type: ignore[arg-type]


def with_seat(old: PoolState, **changes: object) -> PoolState:
    return replace(old, seats={SEAT: replace(old.seats[SEAT], **changes)})  # type: ignore[arg-type]


OPENING = after(pool(), *READY[:1])
BROKEN: Mapping[str, tuple[PoolState, str]] = {
    "free slot with an occupant": (
        with_slot(RUN, replace(RUN.slots[S0], state=SlotState.FREE)),
        "is free with occupant train",
    ),
    "leased slot without an occupant": (
        with_slot(RUN, replace(RUN.slots[S0], occupant=None)),
        "is leased with occupant None",
    ),
    "epoch from the future": (
        with_slot(RUN, replace(RUN.slots[S0], epoch=Epoch(99))),
        "has epoch 99",
    ),
    "two placements on one node": (
        with_slot(
            OPENING,
            replace(OPENING.slots[S0], state=SlotState.OPENING, occupant=SeatId("chat/1"), epoch=Epoch(1)),
        ),
        "chat/1 and chat/0 are placed on node n at once",
    ),
    "gang that lacks a slot": (
        with_slot(RUN, replace(RUN.slots[S0], state=SlotState.FREE, occupant=None)),
        "but holds",
    ),
    "gang of an illegal size": (with_job(RUN, gang=()), "runs with 0 workers"),
    "parked job that holds a slot": (with_job(RUN, state=JobState.PARKED), "is parked but holds"),
    "waiting job that holds a slot": (with_job(RUN, state=JobState.WAITING), "is waiting but holds"),
    "parked job without a claim": (with_job(after(pool(), *PARKED), gang=()), "without a claim"),
    "more durable than done": (with_job(RUN, durable_step=6), "has step 5 but 6 are durable"),
    "cold seat with slots": (with_seat(SERVE, state=SeatState.COLD), "is cold but has"),
    "replica of the wrong size": (with_seat(OPENING, slots=(S0, S2)), "has 2 slots, not 1"),
    "seat that holds a slot outside its lease": (with_seat(SERVE, slots=(S0,)), "outside its lease"),
    "host memory over its bound": (replace(after(pool(), *PARKED), nodes={NODE: 19}), "20 are used"),
}


@pytest.mark.proves(
    "a cold seat holds nothing",
    "a gang has as many workers as its job asks for",
    "a gang that may touch its GPUs holds exactly its slots",
    "a lease's epoch is one that was given",
    "a parked job has a claim",
    "a parked or waiting job holds nothing",
    "a seat has as many slots as it needs",
    "a seat holds no slot outside its lease",
    "an occupied slot has an occupant, and no other has",
    "no more host memory is lent than there is",
    "nothing is durable that was not done",
    "there is one placement on a node",
)
@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_promise_is_seen(case: str) -> None:
    state, why = BROKEN[case]
    assert any(why in wrong for wrong in violations(state)), violations(state)
    with pytest.raises(InvariantViolated) as error:
        check(state)
    assert why in str(error.value)
    assert violations(after(pool(), *PARKED)) == [], "what keeps it is not taken for that"


@pytest.mark.parametrize("events", [*JOB_IN.values(), *SEAT_IN.values(), *SLOT_IN.values()])
def test_states_that_events_reach_keep_all_promises(events: tuple[object, ...]) -> None:
    state = after(pool(), *events)  # type: ignore[arg-type]
    assert violations(state) == []
    if NODE in state.nodes:
        assert violations(after(state, NodeLost(NodeId("n")))) == []
