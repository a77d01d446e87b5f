"""Why the arbiter stands still, since when, and by what: its ledger, a promise, or its own start (promise 8).

A person's freeze is not here but in the ledger's state, so that it outlives the arbiter.
"""

import logging
import time

from ebbtide_autoscaler.core.observe.alerts import FreezeCause, Standstill

log = logging.getLogger(__name__)


class Halt:
    """``on`` is replaced whole and may be read from any thread."""

    def __init__(self) -> None:
        self.on = Standstill()

    def freeze(self, why: str, *, by: FreezeCause = FreezeCause.LEDGER, since_s: float | None = None) -> None:
        """Stand still; said once for each cause, though ``why`` may change while it lasts.

        Args:
            why: for a person.
            by: which cause.
            since_s: seconds since 1970; None: now.
        """
        if self.on.why and self.on.by is by:
            since_s = self.on.since_s
        else:
            log.error("frozen: %s", why)
        self.on = Standstill(why, since_s or time.time(), by)

    def thaw(self) -> None:
        """Move again."""
        if self.on.why:
            log.warning("moving again after %.1f s: %s", time.time() - self.on.since_s, self.on.why)
        self.on = Standstill()
