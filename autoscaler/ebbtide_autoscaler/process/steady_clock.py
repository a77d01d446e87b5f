"""The arbiter's time: seconds since 1970 that never go back, not within a process and not from one arbiter to the next.

What was heard is compared with when it was asked for, and all of it by this clock: "the lock is free" counts if it was
said after the slot was given back. Were the machine's clock set back (NTP, a person), words of before would seem to
come after, and a slot would be taken for empty that is not (seen in a simulation of it: a gang was granted a GPU on
which an engine still had memory). So time goes on at its own rate when the machine's clock is set back, and follows it
when it is set forward; then nobody was silent, as after a pause (``Inbox.attend``). An arbiter that takes over goes
on from the latest time that the ledger names, should its machine's clock be behind that.

Not guaranteed: that it is right. A clock that was an hour ahead keeps the ledger an hour ahead until time catches up.
"""

import threading
import time
from collections.abc import Callable


class SteadyClock:
    """Seconds since 1970; may be asked from any thread."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Args:
        wall: the machine's clock, which may be set.
        monotonic: seconds since whenever, which nobody sets.
        """
        self._wall, self._monotonic = wall, monotonic
        self._lock = threading.Lock()
        self._last_s, self._at_s = wall(), monotonic()

    def now_s(self) -> float:
        """The later of what the machine's clock says and what it would say had nobody set it back."""
        with self._lock:
            at_s = self._monotonic()
            self._last_s = max(self._wall(), self._last_s + at_s - self._at_s)
            self._at_s = at_s
            return self._last_s

    def not_before(self, at_s: float) -> None:
        """Go on from ``at_s`` if that is later."""
        now_s = self.now_s()
        with self._lock:
            self._last_s = max(self._last_s, now_s, at_s)


clock = SteadyClock()
"""Of this process: whoever stamps or judges what the arbiter hears asks it."""
