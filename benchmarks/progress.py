"""Lines that say how far a long measurement is: what is done, for how long it has run, and how long it may yet take."""

import time
from collections.abc import Callable


class Progress:
    """Of steps of unlike length: each has a weight, and what is left takes as long by weight as what is done took.

    Not guaranteed: the time left, which is a guess.
    """

    def __init__(self, what: str, weights: list[float], *, now: Callable[[], float] = time.monotonic) -> None:
        """``weights`` are of all steps in order, in any unit, each above zero."""
        self._what, self._weights, self._now = what, weights, now
        self._done, self._began_s = 0, now()

    def begins(self, step: str) -> str:
        """The line for the step that begins now."""
        return f"  {self._what} {self._done + 1} of {len(self._weights)}, {step}"

    def ended(self, how: str) -> str:
        """The line for the step that has ended."""
        self._done += 1
        so_far_s = self._now() - self._began_s
        left_s = so_far_s * sum(self._weights[self._done :]) / sum(self._weights[: self._done])
        left = f", about {minutes(left_s)} left" if self._done < len(self._weights) else ""
        return f"    {how}; {minutes(so_far_s)} so far{left}"


def minutes(seconds: float) -> str:
    """For people: ``45 s`` or ``3:05 min``."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60}:{whole % 60:02d} min"
