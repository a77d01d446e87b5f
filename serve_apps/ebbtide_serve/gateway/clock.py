"""Time as an argument, so that limits and counters can be tested without waiting.

Only bookkeeping reads this clock. Deadlines of waiting coroutines (hold age, request timeout) are the event loop's.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """What the gateway asks of a clock."""

    def monotonic_s(self) -> float:
        """Seconds that never jump; only differences mean something."""
        ...

    def epoch_s(self) -> float:
        """Seconds since 1970."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        """CLOCK_MONOTONIC."""
        return time.monotonic()

    def epoch_s(self) -> float:
        """CLOCK_REALTIME."""
        return time.time()
