"""A limit per minute that fills evenly. Pure, and in whole numbers: no rounding to argue about at the boundary.

A full bucket lets a minute's worth through at once; from then on what comes in evenly goes out. So in any ``t``
seconds at most ``limit * (1 + t / 60)`` pass. Several gateways that share a limit each have the same part of it.
"""

MINUTE_NS = 60 * 10**9


class TokenBucket:
    """``per_minute`` whole things, shared by ``sharers`` gateways; may be overdrawn, which then has to fill first."""

    def __init__(self, per_minute: int, sharers: int, now_ns: int) -> None:
        self.per_minute = per_minute
        self._thing = MINUTE_NS * sharers  # what one thing costs; ``per_minute`` of this unit come in each nanosecond
        self._level = self._full()
        self._filled_ns = now_ns

    def _full(self) -> int:
        return max(self.per_minute * MINUTE_NS, self._thing)  # guard: a share of a limit lets one through at least

    def share(self, sharers: int) -> None:
        """From now on so many gateways share the limit; what is there is divided in the same proportion."""
        was_full = self._level == self._full()
        self._thing = MINUTE_NS * sharers
        self._level = self._full() if was_full else min(self._level, self._full())

    def _fill(self, now_ns: int) -> int:
        grown_ns = max(0, now_ns - self._filled_ns)
        self._level = min(self._full(), self._level + grown_ns * self.per_minute)
        self._filled_ns = max(now_ns, self._filled_ns)
        return self._level

    def left(self, now_ns: int) -> int:
        """Whole things that are there; negative when overdrawn."""
        return self._fill(now_ns) // self._thing

    def take(self, things: int, now_ns: int) -> None:
        """Take; negative gives back."""
        self._level = min(self._full(), self._fill(now_ns) - things * self._thing)

    def wait_ns(self, things: int, now_ns: int) -> int:
        """Until so many are there; who comes back then gets them, and not a nanosecond earlier."""
        lacking = things * self._thing - self._fill(now_ns)
        return max(0, -(-lacking // self.per_minute))

    def full_in_ns(self, now_ns: int) -> int:
        """Until it is as if nothing had been taken."""
        return -(-(self._full() - self._fill(now_ns)) // self.per_minute)
