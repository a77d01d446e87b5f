"""Requests that wait for a seat: first come, first served, bounded by count, bytes and age.

A request waits while no replica is ready, or while all are full. Both count as held: both are demand that the pool
does not meet. The time without any ready replica is kept apart (``lacked_s``), because TTFT must not count it.

A waiter that gives up (age, hang-up) leaves the queue in the same instant, and a seat that was given to it in that
instant goes to the next one: a request that was refused is never executed later.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from ebbtide.client.messages import RoutingTable, SeatRoute
from ebbtide_serve.gateway.clock import Clock
from ebbtide_serve.gateway.errors import too_busy
from ebbtide_serve.gateway.routes import Routes

RETRY_MARGIN_S = 0.01  # after a shun ends, so that the look at the clock comes surely later than the end


@dataclass(frozen=True)
class HoldLimits:
    """Bounds for all endpoints together."""

    max_requests: int
    max_bytes: int
    max_age_s: float
    retry_after_s: float


@dataclass(eq=False)
class _Waiter:
    size_bytes: int
    since_s: float
    seat: asyncio.Future[SeatRoute]
    lacking_since_s: float | None
    lacked_s: float = 0.0


@dataclass(frozen=True)
class Seated:
    """A request's right to one place at a seat."""

    seat: SeatRoute
    lacked_s: float  # how long no replica at all was ready for it


@dataclass
class _Line:
    waiters: deque[_Waiter] = field(default_factory=deque)
    held_bytes: int = 0
    held_max_s: float = 0.0


class Hold:
    """The lines of all endpoints."""

    def __init__(self, routes: Routes, limits: HoldLimits, clock: Clock) -> None:
        self._routes = routes
        self._limits = limits
        self._clock = clock
        self._lines: dict[str, _Line] = {}
        self._count = 0
        self._bytes = 0

    async def seat(self, endpoint: str, size_bytes: int, *, again: bool = False) -> Seated:
        """Wait for a place at a seat. ``again``: it had one, which was lost; it comes first and is always taken.

        Raises:
            Refusal: 429 with Retry-After, when the line is full or the wait took too long.
        """
        line = self._lines.setdefault(endpoint, _Line())
        if again or not line.waiters:
            seat = self._routes.choose(endpoint)
            if seat is not None:
                return Seated(seat, 0.0)
        if not again:
            self._check_room(endpoint, size_bytes)
        now_s = self._clock.monotonic_s()
        lacking = None if self._routes.has_replica(endpoint) else now_s
        waiter = _Waiter(size_bytes, now_s, asyncio.get_running_loop().create_future(), lacking)
        line.waiters.appendleft(waiter) if again else line.waiters.append(waiter)
        line.held_bytes += size_bytes
        self._count += 1
        self._bytes += size_bytes
        try:
            async with asyncio.timeout(self._limits.max_age_s):
                return Seated(await waiter.seat, waiter.lacked_s)
        except BaseException as error:
            self._forget(endpoint, line, waiter)
            if isinstance(error, TimeoutError):
                message = f"No replica of {endpoint!r} was ready within {self._limits.max_age_s:g} s."
                raise too_busy(message, code="hold_too_long", retry_after_s=self._limits.retry_after_s) from None
            raise

    def release(self, endpoint: str, seat: SeatRoute) -> None:
        """A request has left ``seat``; the next one may come."""
        self._routes.release(endpoint, seat)
        self._serve_line(endpoint)

    def shun(self, endpoint: str, seat: SeatRoute, for_s: float) -> None:
        """Send nothing to ``seat`` for ``for_s``, then try again."""
        self._routes.shun(seat, for_s)
        self._note_lack()
        asyncio.get_running_loop().call_later(for_s + RETRY_MARGIN_S, self._serve_line, endpoint)

    def adopt(self, table: RoutingTable) -> None:
        """Obey ``table``; wake who can be served now."""
        if self._routes.adopt(table):
            for endpoint in list(self._lines):
                self._serve_line(endpoint)

    def held(self, endpoint: str) -> int:
        """Requests in the line."""
        return len(self._line(endpoint).waiters)

    def held_bytes(self, endpoint: str) -> int:
        """Bytes of their bodies."""
        return self._line(endpoint).held_bytes

    def oldest_held_s(self, endpoint: str) -> float:
        """How long the first in the line has waited; 0 when nobody waits."""
        waiters = self._line(endpoint).waiters
        return self._clock.monotonic_s() - min(waiter.since_s for waiter in waiters) if waiters else 0.0

    def held_max_s(self, endpoint: str) -> float:
        """The longest wait so far, those still waiting included."""
        return max(self._line(endpoint).held_max_s, self.oldest_held_s(endpoint))

    def _line(self, endpoint: str) -> _Line:
        return self._lines.get(endpoint) or _Line()

    def _check_room(self, endpoint: str, size_bytes: int) -> None:
        limits = self._limits
        if self._count >= limits.max_requests:
            full = f"{self._count} requests (limit {limits.max_requests})"
        elif self._bytes + size_bytes > limits.max_bytes:
            full = f"{self._bytes} bytes of requests (limit {limits.max_bytes})"
        else:
            return
        message = f"{full} already wait for replicas; {endpoint!r} has none ready."
        raise too_busy(message, code="hold_full", retry_after_s=limits.retry_after_s)

    def _forget(self, endpoint: str, line: _Line, waiter: _Waiter) -> None:
        """A waiter gives up, in the queue or with a seat that it was given but never took."""
        if waiter in line.waiters:
            self._leave(line, waiter)
        elif waiter.seat.done() and not waiter.seat.cancelled():
            self.release(endpoint, waiter.seat.result())

    def _leave(self, line: _Line, waiter: _Waiter) -> None:
        line.waiters.remove(waiter)
        line.held_bytes -= waiter.size_bytes
        self._count -= 1
        self._bytes -= waiter.size_bytes
        line.held_max_s = max(line.held_max_s, self._clock.monotonic_s() - waiter.since_s)

    def _serve_line(self, endpoint: str) -> None:
        self._note_lack()
        line = self._lines.get(endpoint)
        while line is not None and line.waiters:
            waiter = line.waiters[0]
            if waiter.seat.done():  # it was cancelled and has not run yet; it will clean up by itself
                self._leave(line, waiter)
                continue
            seat = self._routes.choose(endpoint)
            if seat is None:
                return
            self._leave(line, waiter)
            waiter.seat.set_result(seat)

    def _note_lack(self) -> None:
        """Keep, for each waiter, the time without any ready replica."""
        now_s = self._clock.monotonic_s()
        for endpoint, line in self._lines.items():
            ready = self._routes.has_replica(endpoint)
            for waiter in line.waiters:
                if ready and waiter.lacking_since_s is not None:
                    waiter.lacked_s += now_s - waiter.lacking_since_s
                    waiter.lacking_since_s = None
                elif not ready and waiter.lacking_since_s is None:
                    waiter.lacking_since_s = now_s
