"""Numbers of reports: Ray may hand messages over in another order than they were sent; the receiver drops older ones.

A job's driver speaks first and its controller after it, ranks are replaced by others: the number must not begin anew
with a new process. So it is the time in milliseconds, and never falls within one process.

Not guaranteed: order between processes on nodes whose clocks differ by more than a restart takes (about a second).
"""

import time
from collections.abc import Callable


class ReportNumbers:
    """One process's numbers for one kind of report."""

    def __init__(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._now_ms = now_ms
        self._last = 0

    def next(self) -> int:
        """A number larger than all before."""
        self._last = max(self._last + 1, self._now_ms())
        return self._last
