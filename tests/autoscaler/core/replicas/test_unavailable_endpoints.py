"""When clients of an endpoint that does not start are refused, and from when on they are held again."""

from dataclasses import replace

import pytest

from ebbtide.client.messages import RoutingTable
from ebbtide.pool.backoff import BACKOFF_MAX_S
from ebbtide.pool.events import EndpointDeclared, GrantSeat, SeatGone, SeatLanded, SeatReady, SeatStopped, SlotFreed
from ebbtide.pool.ids import SlotId
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.observe.gateway_routes import next_routes
from ebbtide_autoscaler.core.observe.observation import Observation
from ebbtide_autoscaler.core.replicas.start_backoff import DISTURB_MAX_S
from ebbtide_autoscaler.core.replicas.unavailable_endpoints import TRIES, unavailable_endpoints
from tests.autoscaler.closed_loop import a_job
from tests.builders.policy import NOW, S0, S1, S2, SEAT0, SEAT1, a_pool, fold, with_job, with_ready

PAUSE_S = 2.0**TRIES


def failed(times: int, ago_s: float = 1.0, state: PoolState | None = None, *, permanent: bool = False) -> PoolState:
    """``SEAT0`` has failed to start that often in a row, the last time a while ago."""
    state = a_pool() if state is None else state
    for _ in range(times):
        stopped = SeatStopped(SEAT0, "no luck", permanent=permanent)
        moves = (GrantSeat(SEAT0, (S0,), "r"), SeatLanded(SEAT0, "a"), stopped, SlotFreed(S0))
        state = fold(state, *moves, SeatGone(SEAT0), at_s=NOW - ago_s)
    return state


@pytest.mark.proves("an endpoint refuses requests only after three failed starts")
def test_three_failed_starts_are_needed() -> None:
    for times in range(TRIES):
        assert unavailable_endpoints(NOW, failed(times)) == {}
    state = failed(TRIES)
    (found,) = unavailable_endpoints(NOW, state).values()
    assert (found.failure, found.again_s) == (state.seats[SEAT0].failure, NOW - 1.0 + PAUSE_S)
    assert found.failure, "the event that tells why"


@pytest.mark.proves("requests are held again when a start is to be tried again")
def test_when_the_next_try_is_due_requests_are_held_again() -> None:
    """They bring it about: without requests no replica is wanted."""
    assert unavailable_endpoints(NOW, failed(TRIES, PAUSE_S - 0.1))
    assert unavailable_endpoints(NOW, failed(TRIES, PAUSE_S)) == {}
    assert unavailable_endpoints(NOW, failed(TRIES, 1_000.0)) == {}, "of long ago"


@pytest.mark.proves("an endpoint with a replica, be it one that starts, refuses no request")
@pytest.mark.parametrize("landed", [False, True])
def test_while_a_replica_starts_requests_are_held(landed: bool) -> None:
    state = fold(failed(TRIES), GrantSeat(SEAT1, (S1,), "r"), *([SeatLanded(SEAT1, "b")] if landed else []), at_s=NOW)
    assert unavailable_endpoints(NOW, state) == {}
    again = fold(state, *([] if landed else [SeatLanded(SEAT1, "b")]), SeatStopped(SEAT1, "again"), at_s=NOW)
    assert unavailable_endpoints(NOW, again), "also before its slot is free"


def test_one_failure_is_enough_where_another_start_ends_alike() -> None:
    for times in (1, 2, 7):
        state = failed(times, permanent=True)
        (found,) = unavailable_endpoints(NOW, state).values()
        assert (found.failure, found.again_s) == (state.seats[SEAT0].failure, NOW - 1.0 + BACKOFF_MAX_S), times
    assert unavailable_endpoints(NOW, failed(1, BACKOFF_MAX_S, permanent=True)) == {}, "the next try, on a free slot"


@pytest.mark.proves("no request is held for a start that would end alike and has no slot")
def test_no_request_is_held_for_a_start_that_would_end_alike_and_has_no_slot() -> None:
    def busy(ago_s: float, *, permanent: bool = True, slots: tuple[SlotId, ...] = (S0, S1, S2)) -> PoolState:
        return with_job(failed(1, ago_s, permanent=permanent), a_job(), slots, at_s=NOW - 0.5)

    for ago_s in (BACKOFF_MAX_S, 300.0, DISTURB_MAX_S - 0.1):
        (found,) = unavailable_endpoints(NOW, busy(ago_s)).values()
        assert found.again_s == NOW - ago_s + DISTURB_MAX_S, "when a job would step aside"
    assert unavailable_endpoints(NOW, busy(DISTURB_MAX_S)) == {}
    assert unavailable_endpoints(NOW, busy(300.0, slots=(S0, S1))) == {}, "a slot is free"
    assert unavailable_endpoints(NOW, busy(300.0, permanent=False)) == {}, "it waits for its turn"


def test_a_new_revision_of_what_failed_for_good_is_held_for() -> None:
    state = failed(1, permanent=True)
    (name,) = state.endpoints
    spec = replace(state.endpoints[name].spec, revision="new")
    assert unavailable_endpoints(NOW, fold(state, EndpointDeclared(spec))) == {}


def test_a_replica_that_serves_ends_it() -> None:
    assert unavailable_endpoints(NOW, with_ready(failed(TRIES), SEAT1, (S1,), NOW)) == {}
    state = fold(failed(TRIES), GrantSeat(SEAT0, (S0,), "r"), SeatLanded(SEAT0, "b"), SeatReady(SEAT0, ()), at_s=NOW)
    assert unavailable_endpoints(NOW, state) == {}


def test_failures_of_another_revision_say_nothing() -> None:
    state = failed(TRIES)
    (name,) = state.endpoints
    spec = replace(state.endpoints[name].spec, revision="new")
    changed = replace(state, endpoints={name: replace(state.endpoints[name], spec=spec)})
    assert unavailable_endpoints(NOW, changed) == {}


def test_gateways_get_a_new_table_when_it_begins_and_when_it_ends_and_none_between() -> None:
    state, seen = failed(TRIES), Observation(started_s=0.0)
    first = next_routes(next_routes(RoutingTable(), state, seen, 1), state, seen, 1, unavailable_endpoints(NOW, state))
    assert first.unavailable
    for later_s in (0.1, 3.0, 6.9):
        assert next_routes(first, state, seen, 1, unavailable_endpoints(NOW + later_s, state)) is first
    last = next_routes(first, state, seen, 1, unavailable_endpoints(NOW + 7.0, state))
    assert (last.version, last.unavailable) == (first.version + 1, {})
