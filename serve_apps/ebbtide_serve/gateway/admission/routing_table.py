"""The routing table as this gateway obeys it: which seats may be sent requests, and how busy each is.

``choose`` counts the request at the seat in the same instant. So once a table is adopted, a seat that is not in it and
whose count is 0 can never get a request again: that is what a drain waits for (``routes_seen`` and ``seat_inflight``).
A seat that did not answer is shunned for a moment, since the arbiter may learn of its death later than we do.
"""

import logging

from ebbtide.client.messages import RoutingTable, SeatRoute, Unavailable
from ebbtide_serve.gateway.clock import Clock

_log = logging.getLogger(__name__)


class Routes:
    """Seats of all endpoints and the requests at them."""

    def __init__(self, clock: Clock, max_inflight_per_seat: int) -> None:
        self._clock = clock
        self.max_inflight_per_seat = max_inflight_per_seat
        self._table = RoutingTable()
        self._inflight: dict[str, dict[SeatRoute, int]] = {}
        self._shunned_until_s: dict[SeatRoute, float] = {}
        self._turn = 0
        self._last_turn: dict[SeatRoute, int] = {}

    @property
    def version(self) -> int:
        """Of the table that is obeyed."""
        return self._table.version

    def adopt(self, table: RoutingTable) -> bool:
        """Obey ``table`` from this instant on. Returns whether anything changed."""
        if table == self._table:
            return False
        for name, one in table.unavailable.items():
            before = self._table.unavailable.get(name)
            if before is None or before.failure != one.failure:
                _log.warning("%s does not start: its requests get 503; ebbtide why %s", name, one.failure or name)
        self._table = table  # guard: requests go where the table says; a seat that left the table gets nothing new
        known = {seat for seats in table.endpoints.values() for seat in seats}
        # guard: what is known of a replica goes when it has left the table
        self._shunned_until_s = {seat: t for seat, t in self._shunned_until_s.items() if seat in known}
        self._last_turn = {seat: turn for seat, turn in self._last_turn.items() if seat in known}
        return True

    def has_replica(self, endpoint: str) -> bool:
        """Whether any seat is ready, busy or not."""
        return bool(self._usable(endpoint))

    def unavailable(self, endpoint: str) -> Unavailable | None:
        """Why no replica is to be waited for; None: one is there, or may be soon."""
        found = self._table.unavailable.get(endpoint)
        # guard: an endpoint whose next start is due is waited for, though no newer table has come
        is_over = found is not None and self._clock.epoch_s() >= found.again_s
        return None if is_over or self.has_replica(endpoint) else found

    def seats(self, endpoint: str) -> int:
        """How many seats the table offers, shunned ones included."""
        return len(self._table.endpoints.get(endpoint, ()))

    def choose(self, endpoint: str) -> SeatRoute | None:
        """The least busy seat, now busier by one; of equals the one used longest ago. None: all full, or none ready."""
        load = self._inflight.setdefault(endpoint, {})
        # guard: no seat gets more requests than its share
        free = [seat for seat in self._usable(endpoint) if load.get(seat, 0) < self.max_inflight_per_seat]
        if not free:
            return None
        seat = min(free, key=lambda seat: (load.get(seat, 0), self._last_turn.get(seat, 0)))
        self._turn += 1
        self._last_turn[seat] = self._turn
        load[seat] = load.get(seat, 0) + 1
        return seat

    def release(self, endpoint: str, seat: SeatRoute) -> None:
        """A request has left ``seat``."""
        load = self._inflight[endpoint]
        assert load.get(seat, 0) > 0, f"{seat.seat} released more often than chosen"
        load[seat] -= 1
        if load[seat] == 0:
            del load[seat]

    def shun(self, seat: SeatRoute, for_s: float) -> None:
        """Send nothing to this replica for a while; a new replica of the same seat is not meant."""
        self._shunned_until_s[seat] = self._clock.monotonic_s() + for_s

    def inflight(self, endpoint: str) -> int:
        """Requests at seats, now."""
        return sum(self._inflight.get(endpoint, {}).values())

    def seat_inflight(self, endpoint: str) -> dict[str, int]:
        """Requests at each seat, those that left the table included, until they are done."""
        busy: dict[str, int] = {}
        for seat, count in self._inflight.get(endpoint, {}).items():
            # guard: what still runs at a seat that left the table is told until it ends
            busy[seat.seat] = busy.get(seat.seat, 0) + count
        return busy

    def _usable(self, endpoint: str) -> list[SeatRoute]:
        seats = self._table.endpoints.get(endpoint, ())
        if not self._shunned_until_s:
            return list(seats)
        now_s = self._clock.monotonic_s()
        # guard: a seat that did not answer gets nothing for a while
        return [seat for seat in seats if self._shunned_until_s.get(seat, 0.0) <= now_s]
