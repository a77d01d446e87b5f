"""The line of one endpoint: who waits for a place at its replicas, fair between keys.

Of the keys that wait, the one with the fewest requests at replicas is next, of equals the one served longest ago;
within a key it is first come, first served. So what a key has running counts, not only what it asks: a key that sends
two thousand requests at once delays another's only until the next place is free.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from ebbtide.client.messages import SeatRoute


@dataclass(eq=False)
class Waiter:
    """One request that waits. ``key`` "" is everybody when the gateway is open."""

    key: str
    size_bytes: int
    since_s: float
    seat: "asyncio.Future[SeatRoute]"
    lacking_since_s: float | None
    first: bool = False  # it had a place, which was lost: before everybody, and never displaced
    lacked_s: float = 0.0


@dataclass
class FairQueue:
    """Waiters, and how many requests of each key are at replicas."""

    ready: bool = False  # whether there is any replica, as far as was noted
    count: int = 0
    held_bytes: int = 0
    held_max_s: float = 0.0
    _first: deque[Waiter] = field(default_factory=deque)
    _queues: dict[str, deque[Waiter]] = field(default_factory=dict)
    _placed: dict[str, int] = field(default_factory=dict)
    _turns: dict[str, int] = field(default_factory=dict)
    _turn: int = 0

    def __iter__(self) -> Iterator[Waiter]:
        yield from self._first
        for queue in self._queues.values():
            yield from queue

    def __contains__(self, waiter: Waiter) -> bool:
        return waiter in self._queue_of(waiter)

    def join(self, waiter: Waiter) -> None:
        """Stand in line."""
        if waiter.first:  # guard: a request that lost its seat is never displaced
            self._first.append(waiter)
        else:
            self._queues.setdefault(waiter.key, deque()).append(waiter)
        self.count += 1
        self.held_bytes += waiter.size_bytes

    def leave(self, waiter: Waiter, now_s: float) -> None:
        """Served, or tired of it."""
        queue = self._queue_of(waiter)
        queue.remove(waiter)
        if not queue:
            self._queues.pop(waiter.key, None) if not waiter.first else None
        self.count -= 1
        self.held_bytes -= waiter.size_bytes
        self.held_max_s = max(self.held_max_s, now_s - waiter.since_s)

    def next(self) -> Waiter | None:
        """Whose turn it is."""
        if self._first:
            return self._first[0]
        if not self._queues:
            return None
        key = min(
            self._queues,
            # guard: the next place goes to the key with the fewest requests running
            key=lambda key: (self._placed.get(key, 0), self._turns.get(key, 0)),
        )
        return self._queues[key][0]

    def newest_of(self, key: str) -> Waiter | None:
        """Who of a key came last."""
        queue = self._queues.get(key)
        return queue[-1] if queue else None

    def placed(self, key: str) -> None:
        """A request of the key goes to a replica."""
        self._turn += 1
        self._turns[key] = self._turn  # guard: of equal keys the next place goes to the one served longest ago
        self._placed[key] = self._placed.get(key, 0) + 1

    def came_back(self, key: str) -> None:
        """A request of the key has left its replica."""
        left = self._placed[key] - 1
        if left:
            self._placed[key] = left
        else:
            del self._placed[key]
            if key not in self._queues:
                self._turns.pop(key, None)  # bounded by who is here; one that comes anew goes first among equals

    def oldest_s(self) -> float | None:
        """Since when the first in line waits."""
        heads = [queue[0].since_s for queue in (self._first, *self._queues.values()) if queue]
        return min(heads) if heads else None

    def _queue_of(self, waiter: Waiter) -> deque[Waiter]:
        return self._first if waiter.first else self._queues.get(waiter.key, deque())
