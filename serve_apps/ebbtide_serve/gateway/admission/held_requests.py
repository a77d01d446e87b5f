"""Requests that wait for a seat: fair between keys, bounded by count, bytes and age.

A request waits while no replica is ready, or while all are full. Both count as held: both are demand that the pool
does not meet. The time without any ready replica is kept apart (``lacked_s``), because TTFT must not count it.

The bounds are for all endpoints and keys together. When they are reached, a newcomer of a key that waits with less
than another displaces the newest of the one that waits with most (429 for that one, which was never executed): a
single key may use all of the room, and never keeps others out of their part of it.

A waiter that gives up (age, hang-up) leaves the line in the same instant, and a seat that was given to it in that
instant goes to the next one: a request that was refused is never executed later.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from ebbtide.client.messages import RoutingTable, SeatRoute
from ebbtide_serve.gateway.admission.fair_queue import FairQueue, Waiter
from ebbtide_serve.gateway.admission.routing_table import Routes
from ebbtide_serve.gateway.clock import Clock
from ebbtide_serve.gateway.errors import Refusal, endpoint_unavailable, model_not_found, too_busy

RETRY_MARGIN_S = 0.01  # after a shun ends, so that the look at the clock comes surely later than the end


@dataclass(frozen=True)
class HoldLimits:
    """Bounds for all endpoints together."""

    max_requests: int
    max_bytes: int
    max_age_s: float
    retry_after_s: float


@dataclass(frozen=True)
class Seated:
    """A request's right to one place at a seat."""

    seat: SeatRoute
    lacked_s: float  # how long no replica at all was ready for it


@dataclass
class _Share:
    """What one key holds in all lines."""

    count: int = 0
    held_bytes: int = 0


class Hold:
    """The lines of all endpoints."""

    def __init__(self, routes: Routes, limits: HoldLimits, clock: Clock) -> None:
        self.limits = limits
        self._routes = routes
        self._clock = clock
        self._lines: dict[str, FairQueue] = {}
        self._shares: dict[str, _Share] = {}
        self._count = 0
        self._bytes = 0
        self._served: frozenset[str] | None = None  # None: whatever is asked for

    async def seat(self, endpoint: str, size_bytes: int, *, key: str = "", again: bool = False) -> Seated:
        """Wait for a place at a seat. ``again``: it had one, which was lost; it comes first and is always taken.

        Raises:
            Refusal: 429 with Retry-After, when there is no room or the wait took too long; 503 with Retry-After, when
                its starts have failed; 404, when the endpoint will never be served again.
        """
        line = self._lines.setdefault(endpoint, FairQueue())
        if (
            again
            # guard: a newcomer does not overtake those who wait
            or not line.count
        ):
            seat = self._routes.choose(endpoint)
            if seat is not None:
                line.placed(key)
                return Seated(seat, 0.0)
        if self._served is not None and endpoint not in self._served:
            raise model_not_found(endpoint)
        refusal = self._unavailable(endpoint)
        if refusal is not None:  # guard: a request for an endpoint that does not start is answered at once
            raise refusal
        self._note_lack()
        if not again:  # guard: a request that lost its seat is held even when the room is full
            self._make_room(endpoint, key, size_bytes)
        now_s = self._clock.monotonic_s()
        lacking = None if line.ready else now_s
        future: asyncio.Future[SeatRoute] = asyncio.get_running_loop().create_future()
        waiter = Waiter(
            key,
            size_bytes,
            now_s,
            future,
            lacking,
            first=again,  # guard: a request that lost its seat comes first
        )
        self._join(line, waiter)
        try:
            async with asyncio.timeout(self.limits.max_age_s):  # guard: held requests are bounded in age
                return Seated(await waiter.seat, waiter.lacked_s)
        except BaseException as error:
            self._forget(endpoint, line, waiter)
            if isinstance(error, TimeoutError):
                message = f"No replica of {endpoint!r} was ready within {self.limits.max_age_s:g} s."
                raise too_busy(message, code="hold_too_long", retry_after_s=self.limits.retry_after_s) from None
            raise

    def release(self, endpoint: str, seat: SeatRoute, key: str = "") -> None:
        """A request of ``key`` has left ``seat``; the next one may come."""
        self._lines[endpoint].came_back(key)
        self._routes.release(endpoint, seat)
        self._serve_line(endpoint)

    def shun(self, endpoint: str, seat: SeatRoute, for_s: float) -> None:
        """Send nothing to ``seat`` for ``for_s``, then try again."""
        self._routes.shun(seat, for_s)
        self._note_lack()
        asyncio.get_running_loop().call_later(for_s + RETRY_MARGIN_S, self._serve_line, endpoint)

    def adopt(self, table: RoutingTable) -> None:
        """Obey ``table``; wake who can be served now, and who waits for an endpoint that does not start."""
        if self._routes.adopt(table):
            for endpoint in list(self._lines):
                self._serve_line(endpoint)
                self._give_up(endpoint)

    def serve_only(self, endpoints: Iterable[str]) -> None:
        """Refuse whoever waits for another endpoint, at once: no replica of it will ever be ready."""
        self._served = frozenset(endpoints)
        for endpoint, line in self._lines.items():
            if endpoint not in self._served:
                self._refuse_all(line, model_not_found(endpoint))

    def _unavailable(self, endpoint: str) -> Refusal | None:
        found = self._routes.unavailable(endpoint)
        if found is None:
            return None
        return endpoint_unavailable(endpoint, found.failure, found.again_s - self._clock.epoch_s())

    def _give_up(self, endpoint: str) -> None:
        """Answer requests that wait for an endpoint that does not start."""
        refusal = self._unavailable(endpoint)
        if refusal is not None:
            self._refuse_all(self._lines[endpoint], refusal)

    def _refuse_all(self, line: FairQueue, refusal: Refusal) -> None:
        for waiter in list(line):
            self._leave(line, waiter)
            if not waiter.seat.done():
                waiter.seat.set_exception(refusal)

    def held(self, endpoint: str) -> int:
        """Requests in the line."""
        return self._line(endpoint).count

    def held_bytes(self, endpoint: str) -> int:
        """Bytes of their bodies."""
        return self._line(endpoint).held_bytes

    def oldest_held_s(self, endpoint: str) -> float:
        """How long the first in the line has waited; 0 when nobody waits."""
        since_s = self._line(endpoint).oldest_s()
        return 0.0 if since_s is None else self._clock.monotonic_s() - since_s

    def held_max_s(self, endpoint: str) -> float:
        """The longest wait so far, those still waiting included."""
        return max(self._line(endpoint).held_max_s, self.oldest_held_s(endpoint))

    def _line(self, endpoint: str) -> FairQueue:
        return self._lines.get(endpoint) or FairQueue()

    # ---- room

    def _make_room(self, endpoint: str, key: str, size_bytes: int) -> None:
        limits = self.limits
        own = self._shares.get(key) or _Share()
        while True:
            if self._count >= limits.max_requests:  # guard: held requests are bounded in number
                full = f"{self._count} requests (limit {limits.max_requests})"
                most = max(self._shares, key=lambda name: self._shares[name].count)
                fair = self._shares[most].count > own.count + 1  # guard: a flood gives way in a room full of requests
            elif self._bytes + size_bytes > limits.max_bytes:  # guard: held requests are bounded in bytes
                full = f"{self._bytes} bytes of requests (limit {limits.max_bytes})"
                most = max(self._shares, key=lambda name: self._shares[name].held_bytes, default=key)
                # guard: a flood gives way in a room full of bytes
                fair = most != key and self._shares[most].held_bytes > own.held_bytes + size_bytes
            else:
                return
            refusal = self._full(f"{full} already wait for replicas; {endpoint!r} has none ready.")
            if (
                not fair  # guard: a flood keeps its own part of the room
                or not self._displace(most, refusal)
            ):
                raise refusal

    def _full(self, message: str) -> Refusal:
        return too_busy(message, code="hold_full", retry_after_s=self.limits.retry_after_s)

    def _displace(self, key: str, refusal: Refusal) -> bool:
        """Refuse the newest waiter of ``key``; False if it has none that may be."""
        found = [(line, waiter) for line in self._lines.values() if (waiter := line.newest_of(key)) is not None]
        if not found:
            return False
        line, waiter = max(found, key=lambda pair: pair[1].since_s)
        self._leave(line, waiter)
        if not waiter.seat.done():
            waiter.seat.set_exception(refusal)
        return True

    def _join(self, line: FairQueue, waiter: Waiter) -> None:
        line.join(waiter)
        share = self._shares.setdefault(waiter.key, _Share())
        share.count += 1
        share.held_bytes += waiter.size_bytes
        self._count += 1
        self._bytes += waiter.size_bytes

    def _leave(self, line: FairQueue, waiter: Waiter) -> None:
        line.leave(waiter, self._clock.monotonic_s())
        share = self._shares[waiter.key]
        share.count -= 1
        share.held_bytes -= waiter.size_bytes
        if not share.count:
            del self._shares[waiter.key]
        self._count -= 1
        self._bytes -= waiter.size_bytes

    def _forget(self, endpoint: str, line: FairQueue, waiter: Waiter) -> None:
        """A waiter gives up, in the line or with a seat that it was given but never took."""
        if waiter in line:  # guard: a request that gives up leaves the line at once
            self._leave(line, waiter)
        # guard: a seat that is given in the instant of giving up goes to the next
        elif waiter.seat.done() and not waiter.seat.cancelled() and waiter.seat.exception() is None:
            self.release(endpoint, waiter.seat.result(), waiter.key)

    # ---- turns

    def _serve_line(self, endpoint: str) -> None:
        self._note_lack()
        line = self._lines.get(endpoint)
        while line is not None and (waiter := line.next()) is not None:
            # It was cancelled and has not run yet; it will clean up by itself.
            # guard: a place that frees in the instant of giving up goes to the next
            if waiter.seat.done():
                self._leave(line, waiter)
                continue
            seat = self._routes.choose(endpoint)
            if seat is None:
                return
            self._leave(line, waiter)
            line.placed(waiter.key)
            waiter.seat.set_result(seat)

    def _note_lack(self) -> None:
        """Keep, for each waiter, the time without any ready replica."""
        now_s = self._clock.monotonic_s()
        for endpoint, line in self._lines.items():
            ready = self._routes.has_replica(endpoint)
            if ready == line.ready:
                continue
            line.ready = ready
            for waiter in line:
                if not ready:
                    waiter.lacking_since_s = now_s
                elif waiter.lacking_since_s is not None:
                    waiter.lacked_s += now_s - waiter.lacking_since_s
                    waiter.lacking_since_s = None
