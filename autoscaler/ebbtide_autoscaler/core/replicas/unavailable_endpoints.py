"""Endpoints that do not start: their clients are told so at once instead of being held. Pure."""

from ebbtide.client.messages import Unavailable
from ebbtide.pool.ids import EndpointName
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import SeatState
from ebbtide_autoscaler.core.replicas.start_backoff import (
    DISTURB_MAX_S,
    StartAttempts,
    failing_endpoints,
    pause_s,
    start_attempts,
)

TRIES = 3  # one may fail by chance, and two by the same chance; the pauses between the first three add up to 6 s
EMPTY = frozenset({SeatState.COLD, SeatState.STOPPING})


def unavailable_endpoints(now_s: float, state: PoolState) -> dict[str, Unavailable]:
    """Endpoints whose start has failed `TRIES` times in a row, or once for good, and that have no replica, not even one
    that starts.

    From the time of the next try on they are not among them: requests are held again, and bring that try about.
    """
    found: dict[str, Unavailable] = {}
    for name in failing_endpoints(state):
        # guard: an endpoint with a replica, be it one that starts, refuses no request
        if any(seat.state not in EMPTY for seat in state.seats_of(name)):
            continue
        attempts = start_attempts(now_s, state, name, state.endpoints[name].spec.replicas_max)
        last, tries = attempts.last, 1 if attempts.permanent else TRIES
        if (
            last is not None
            and attempts.failures >= tries  # guard: an endpoint refuses requests only after three failed starts
            and _pauses(attempts, state, name)  # guard: requests are held again when a start is to be tried again
        ):
            rest_s = pause_s(attempts.failures, permanent=attempts.permanent) if attempts.wait_s else DISTURB_MAX_S
            found[str(name)] = Unavailable(last.failure or "", last.since_s + rest_s)
    return found


def _pauses(attempts: StartAttempts, state: PoolState, name: EndpointName) -> bool:
    """Whether no request that were held now could bring about a start."""
    if attempts.wait_s:
        return True
    # guard: no request is held for a start that would end alike and has no slot
    return attempts.permanent and attempts.disturb_in_s > 0 and not _fits(state, name)


def _fits(state: PoolState, name: EndpointName) -> bool:
    """Whether a node has the slots that a replica needs, so that no job would have to step aside."""
    needed = state.endpoints[name].spec.slots_per_replica
    return any(len(slots) >= needed for slots in state.free_on_nodes().values())
