"""What is to happen when, in a run under a virtual clock: earliest first, of equals what was written down first."""

import heapq
from collections.abc import Callable
from itertools import count


class Agenda:
    """A queue of calls by time."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def at(self, at_s: float, call: Callable[[], None]) -> None:
        """Have ``call`` made at that time."""
        heapq.heappush(self._entries, (at_s, next(self._number), call))

    def next_s(self) -> float:
        """When the next call is due; infinity: never."""
        return self._entries[0][0] if self._entries else float("inf")

    def pop(self) -> Callable[[], None]:
        """The next call; it is taken off."""
        return heapq.heappop(self._entries)[2]
