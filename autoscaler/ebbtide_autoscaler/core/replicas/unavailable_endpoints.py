"""Endpoints that do not start: their clients are told so at once instead of being held. Pure."""

from ebbtide.client.messages import Unavailable
from ebbtide.pool.backoff import backoff_s
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import SeatState
from ebbtide_autoscaler.core.replicas.start_backoff import failing_endpoints, start_attempts

TRIES = 3  # one may fail by chance, and two by the same chance; the pauses between the first three add up to 6 s
EMPTY = frozenset({SeatState.COLD, SeatState.STOPPING})


def unavailable_endpoints(now_s: float, state: PoolState) -> dict[str, Unavailable]:
    """Endpoints whose start has failed `TRIES` times in a row and that have no replica, not even one that starts.

    From the time of the next try on they are not among them: requests are held again, and bring that try about.
    """
    found: dict[str, Unavailable] = {}
    for name in failing_endpoints(state):
        # guard: an endpoint with a replica, be it one that starts, refuses no request
        if any(seat.state not in EMPTY for seat in state.seats_of(name)):
            continue
        attempts = start_attempts(now_s, state, name, state.endpoints[name].spec.replicas_max)
        last = attempts.last
        if (
            last is not None
            and attempts.failures >= TRIES  # guard: an endpoint refuses requests only after three failed starts
            and attempts.wait_s  # guard: requests are held again when a start is to be tried again
        ):
            found[str(name)] = Unavailable(last.failure or "", last.since_s + backoff_s(attempts.failures))
    return found
