"""A clock that only moves when told to, and what is due at its times.

For simulations and tests: a day passes in seconds, and the same seed gives the same day. Things that are due at the
same moment happen in the order in which they were asked for.
"""

import heapq
from collections.abc import Callable
from itertools import count


class VirtualClock:
    """Virtual seconds since 1970."""

    def __init__(self, start_s: float = 1_000_000.0) -> None:
        self.now_s = start_s
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def call_later(self, delay_s: float, what: Callable[[], None]) -> None:
        """Have ``what`` called ``delay_s`` seconds from now."""
        if delay_s < 0:
            raise ValueError(f"cannot call {what} {-delay_s} s ago")
        heapq.heappush(self._due, (self.now_s + delay_s, next(self._numbers), what))

    def run_for(self, duration_s: float) -> None:
        """Let ``duration_s`` seconds pass; everything that falls due is called at its own time."""
        end_s = self.now_s + duration_s
        while self._due and self._due[0][0] <= end_s:
            self.now_s, _, what = heapq.heappop(self._due)
            what()
        self.now_s = end_s
