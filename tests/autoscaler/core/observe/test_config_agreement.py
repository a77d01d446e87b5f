"""What makes the pool agree with its file: declared once, rolled by nobody here, retired in good order."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebbtide.config.pool_file import PoolFile
from ebbtide.pool.events import (
    Body,
    DrainSeat,
    EndpointDeclared,
    EndpointRemoved,
    Event,
    GrantSeat,
    NodeFound,
    SeatGone,
    SeatLanded,
    SeatReady,
    SeatStopped,
    Slot,
    SlotFound,
    SlotFreed,
)
from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.ids import NodeId, RecordId, SeatId, slot_id
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.observe.config_agreement import config_events, seats_to_change

NODE, SEAT = NodeId("n"), SeatId("chat/0")
S0, S1 = slot_id(NODE, 0), slot_id(NODE, 1)


def a_file(*endpoints: dict[str, Any]) -> PoolFile:
    listed = [{"name": "chat", "model": "/m", **one} for one in endpoints]
    return PoolFile.model_validate_json(
        PoolFile.model_validate(
            {"pool": {"name": "p", "shared_dir": Path("/s")}, "endpoints": tuple(listed)}, strict=False
        ).model_dump_json(by_alias=True)
    )


def fold(state: PoolState, *bodies: Body) -> PoolState:
    for number, body in enumerate(bodies):
        state = apply(state, Event(RecordId(f"1.{number}"), float(number), None, body))
    return state


def settle(state: PoolState, config: PoolFile) -> PoolState:
    return fold(state, *config_events(config, state, may_move=True))


EMPTY = fold(
    PoolState(),
    NodeFound(NODE, 0),
    *(SlotFound(Slot(slot, NODE, index)) for index, slot in enumerate((S0, S1))),
    SlotFreed(S0),
    SlotFreed(S1),
)
CHAT = a_file({})
SERVING = fold(settle(EMPTY, CHAT), GrantSeat(SEAT, (S0,), "r"), SeatLanded(SEAT, "a"), SeatReady(SEAT, ()))


def test_a_pool_that_agrees_is_left_alone() -> None:
    assert [type(event) for event in config_events(CHAT, EMPTY, may_move=True)] == [EndpointDeclared]
    assert config_events(CHAT, SERVING, may_move=True) == ()
    assert seats_to_change(CHAT, SERVING) == {}


def test_limits_are_declared_and_leave_the_replica_its_revision() -> None:
    more = a_file({"replicas": {"min": 1, "max": 5}})
    after = settle(SERVING, more)
    assert after.endpoints[CHAT.endpoints[0].spec().name].spec.replicas_max == 5
    assert after.seats == SERVING.seats
    assert seats_to_change(more, after) == {}


def test_another_model_makes_the_replica_stale_and_only_that_is_left_to_do() -> None:
    other = a_file({"model": "/other"})
    assert seats_to_change(other, SERVING) == {"chat": []}, "not yet declared"
    after = settle(SERVING, other)
    assert seats_to_change(other, after) == {"chat": ["chat/0"]}
    assert config_events(other, after, may_move=True) == (), "rolling is the policy's business"


@pytest.mark.proves("a retiring endpoint wants no replica")
def test_a_warm_endpoint_that_is_not_named_any_more_drains_and_then_goes() -> None:
    none = a_file()
    first = config_events(none, SERVING, may_move=True)
    assert [type(event) for event in first] == [EndpointDeclared, DrainSeat]
    draining = fold(SERVING, *first)
    assert next(iter(draining.endpoints.values())).spec.replicas_max == 0, "or the policy would start another replica"
    assert config_events(none, draining, may_move=True) == ()
    assert seats_to_change(none, draining) == {"chat": ["chat/0"]}
    empty = fold(draining, SeatStopped(SEAT, "drained"), SlotFreed(S0), SeatGone(SEAT))
    assert [type(event) for event in config_events(none, empty, may_move=True)] == [EndpointRemoved]
    assert seats_to_change(none, settle(empty, none)) == {}


@pytest.mark.proves("no drain for the file while nothing may move")
def test_a_frozen_or_observing_pool_drains_nothing_for_its_file() -> None:
    for may_move in (True, False):
        drains = [
            event for event in config_events(a_file(), SERVING, may_move=may_move) if isinstance(event, DrainSeat)
        ]
        assert bool(drains) is may_move


def test_an_endpoint_that_comes_back_while_it_retires_is_declared_anew() -> None:
    retiring = settle(SERVING, a_file())
    assert [type(event) for event in config_events(CHAT, retiring, may_move=True)] == [EndpointDeclared]
    assert settle(retiring, CHAT).endpoints == SERVING.endpoints


@pytest.mark.proves("an endpoint changes its number of slots when its last replica is gone")
def test_another_number_of_slots_waits_until_no_replica_has_the_old_one() -> None:
    two = a_file({"gpus_per_replica": 2})
    first = config_events(two, SERVING, may_move=True)
    assert [type(event) for event in first] == [EndpointDeclared, DrainSeat]
    draining = fold(SERVING, *first)
    assert next(iter(draining.endpoints.values())).spec.slots_per_replica == 1
    empty = fold(draining, SeatStopped(SEAT, "drained"), SlotFreed(S0), SeatGone(SEAT))
    done = settle(empty, two)
    assert next(iter(done.endpoints.values())).spec == replace(two.endpoints[0].spec())
