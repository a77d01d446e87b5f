"""When a lease's holder counts as dead to others, and when it must stop believing in itself. Pure: no clock, no I/O.

*No clock of another machine is trusted.* A holder writes a counter again and again. An observer judges it dead only
after it has itself seen the file unchanged for ``stale_after_s`` of its own clock, and counts only what it surely saw:
from the end of one look to the beginning of the next, and of one such gap at most a third of ``stale_after_s``, so that
an observer that was itself paused condemns nobody when it wakes up.

*A holder gives up first.* It counts from the beginning of its last beat that succeeded, and gives up at half of
``stale_after_s``. Nobody can have seen that beat before it began, so whoever condemns the holder does so at least
the other half later, however slow the filesystem is.
"""

from dataclasses import dataclass, replace

from ebbtide.storage.leases.lease_file import LeaseFile, Record

LOOKS_TO_DEATH = 3  # an observer's single pause counts for a third at most


@dataclass(frozen=True, slots=True)
class Tenancy:
    """What a holder may believe.

    Attributes:
        fence_s: see `Pace`.
        beaten_s: when the last beat that succeeded began.
        lost: why nothing is held any more; empty while it is. Once set it stays.
        taken: that is because of another's file, which is to be left alone.
        trouble: why the last beat failed; empty if it did not.
    """

    fence_s: float
    beaten_s: float
    lost: str = ""
    taken: bool = False
    trouble: str = ""

    def at(self, now_s: float) -> "Tenancy":
        """As of now: lost if the last good beat is too old."""
        age_s = now_s - self.beaten_s
        if self.lost or age_s <= self.fence_s:
            return self
        why = f"no beat for {age_s:.3g} s, {self.fence_s:g} s are allowed: " + (
            self.trouble or "this process stood still"
        )
        return replace(self, lost=why)

    def beaten(self, began_s: float, ended_s: float, objection: str) -> "Tenancy":
        """After a beat that was written, or that met an objection (another's file). Too long a gap is a loss too."""
        known = self.at(ended_s)
        if known.lost:
            return known
        return replace(known, beaten_s=began_s, lost=objection, taken=bool(objection), trouble="")

    def failed(self, why: str, now_s: float) -> "Tenancy":
        """After a beat that failed; it is tried again until the fence."""
        return replace(self, trouble=why).at(now_s)


@dataclass(frozen=True, slots=True)
class Sighting:
    """What an observer knows of one file.

    Attributes:
        content: as last read; empty where it could not be read or was never written.
        seen_s: when the last look ended.
        unchanged_s: how long it has surely been as it is.
        changed: it was seen to change, so its holder lived then.
    """

    file: LeaseFile
    content: bytes
    seen_s: float
    unchanged_s: float = 0.0
    changed: bool = False

    @property
    def record(self) -> Record | None:
        """What it says."""
        return Record.decode(self.content)

    def patience_s(self, least_s: float) -> float:
        """How much silence it is granted: what it asks for, and at least what the observer grants anyway."""
        record = self.record
        return max(least_s, record.stale_after_s if record else 0.0)

    def is_dead(self, least_s: float) -> bool:
        """Whether its holder counts as dead. A released file has no holder, and is not dead."""
        record = self.record
        return not (record and record.released) and self.unchanged_s >= self.patience_s(least_s)

    def again(self, content: bytes, began_s: float, ended_s: float, least_s: float) -> "Sighting":
        """After another look, which lasted from ``began_s`` to ``ended_s``."""
        if content != self.content:
            return Sighting(self.file, content, ended_s, changed=True)
        sure_s = min(max(0.0, began_s - self.seen_s), self.patience_s(least_s) / LOOKS_TO_DEATH)
        return replace(self, seen_s=ended_s, unchanged_s=self.unchanged_s + sure_s)
