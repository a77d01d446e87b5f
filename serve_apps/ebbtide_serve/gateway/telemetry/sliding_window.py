"""How much of something there was of late, at any rate of events: counted by the second, or the latest of them."""

from collections import deque
from math import floor
from typing import Generic, TypeVar

V = TypeVar("V")


class SlidingWindow:
    """Events and a quantity of each, over the last seconds."""

    def __init__(self, window_s: int, now_s: float) -> None:
        """Nothing is known of the time before ``now_s``; all times are of one monotonic clock."""
        self._window_s, self._began_s = window_s, now_s
        self._seconds: deque[tuple[int, int, float]] = deque()

    def add(self, now_s: float, quantity: float = 0.0) -> None:
        """One event, now."""
        second = int(now_s)
        if self._seconds and self._seconds[-1][0] == second:
            _, count, total = self._seconds.pop()
            self._seconds.append((second, count + 1, total + quantity))
        else:
            self._seconds.append((second, 1, quantity))

    def count(self, now_s: float) -> int:
        """Events within the window."""
        self._forget(now_s)
        return sum(count for _, count, _ in self._seconds)

    def total(self, now_s: float) -> float:
        """Of their quantities."""
        self._forget(now_s)
        return sum(total for _, _, total in self._seconds)

    def per_s(self, now_s: float) -> float:
        """Events per second; over at least one second, and never over time before the first.

        What is left of the window are whole seconds and the present one: events are over just that time.
        """
        kept_s = now_s - (floor(now_s - self._window_s) + 1)
        return self.count(now_s) / max(1.0, min(kept_s, now_s - self._began_s))

    def _forget(self, now_s: float) -> None:
        while self._seconds and self._seconds[0][0] <= now_s - self._window_s:
            self._seconds.popleft()


class Latest(Generic[V]):
    """Values of the last seconds, the latest of them if there were many."""

    def __init__(self, window_s: float, most: int) -> None:
        self._window_s = window_s
        self._values: deque[tuple[float, V]] = deque(maxlen=most)

    def add(self, now_s: float, value: V) -> None:
        """One more, now."""
        self._values.append((now_s, value))

    def values(self, now_s: float) -> tuple[V, ...]:
        """Those within the window, oldest first."""
        while self._values and self._values[0][0] < now_s - self._window_s:
            self._values.popleft()
        return tuple(value for _, value in self._values)
