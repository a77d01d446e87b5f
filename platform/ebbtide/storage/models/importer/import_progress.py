"""How far an import is: for its own user, and for everybody who waits for it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ebbtide.storage.coordination.single_flight import Leading


class Phase(Enum):
    """What an import is at."""

    LOOKING = "looking at the source"
    WAITING = "waiting for another process"
    VERIFYING = "checking what an earlier attempt left"
    COPYING = "copying"
    PUBLISHING = "publishing"


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """How far.

    Attributes:
        phase: of this process, or WAITING.
        done_bytes: of the model as it will be in the store; of the other process, if one is at work.
        total_bytes: 0 as long as nobody knows.
        saved_bytes: of ``done_bytes``, found on disk from an earlier attempt.
        why: why one waits, in words.
    """

    phase: Phase
    done_bytes: int = 0
    total_bytes: int = 0
    saved_bytes: int = 0
    why: str = ""


Observe = Callable[[ImportProgress], None]  # called often, from any thread


class Tally:
    """Counts what an import has done, and tells; for several threads."""

    def __init__(self, leading: Leading, total_bytes: int, observe: Observe) -> None:
        self._leading, self._total, self._observe = leading, total_bytes, observe
        self._lock = threading.Lock()
        self.saved_bytes = self.copied_bytes = 0
        self._tell(Phase.COPYING)

    def check(self) -> None:
        """Raise `Superseded` if another process may be at it by now. Costs no I/O."""
        self._leading.check()

    def verified(self, count: int) -> None:
        """So many bytes were there already, and are right."""
        with self._lock:
            self.saved_bytes += count
        self._tell(Phase.VERIFYING)

    def discarded(self, count: int) -> None:
        """So many bytes that were said to be verified will be copied all the same."""
        with self._lock:
            self.saved_bytes -= count
        self._tell(Phase.VERIFYING)

    def copied(self, count: int) -> None:
        """So many bytes came from the source."""
        with self._lock:
            self.copied_bytes += count
        self._tell(Phase.COPYING)

    def publishing(self) -> None:
        """All bytes are there."""
        self._tell(Phase.PUBLISHING)

    def _tell(self, phase: Phase) -> None:
        done = self.saved_bytes + self.copied_bytes
        self._leading.report(phase.value, done, self._total)
        self._observe(ImportProgress(phase, done, self._total, self.saved_bytes))
