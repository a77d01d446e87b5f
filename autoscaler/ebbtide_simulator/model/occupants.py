"""Who is on which slot, as the workloads' own records have it. Pure bookkeeping.

A slot's record has room for one occupant, so it can never tell of two. Jobs and seats each name their slots: here those
are counted which two of them name at once, and for how long. It asks neither the slots' records nor the promises.
"""

from collections import Counter
from collections.abc import Sequence

from ebbtide.pool.ids import JobName, SeatId, SlotId


class Occupants:
    """Counts slot-seconds with more than one occupant."""

    def __init__(self, now_s: float) -> None:
        self.double_s = 0.0
        self._last_s = now_s
        self._doubled = 0  # slots that have two or more now
        self._on: Counter[SlotId] = Counter()
        self._slots: dict[JobName | SeatId, Sequence[SlotId]] = {}

    def put(self, who: JobName | SeatId, slots: Sequence[SlotId], now_s: float) -> None:
        """From now on ``who`` is on these slots, and on no others."""
        before = self._slots.get(who, ())
        if before == slots:
            return
        self.until(now_s)
        for slot in before:
            self._on[slot] -= 1
            self._doubled -= self._on[slot] == 1
        for slot in slots:
            self._on[slot] += 1
            self._doubled += self._on[slot] == 2
        self._slots[who] = slots

    def until(self, now_s: float) -> None:
        """Nobody has come or gone until then."""
        self.double_s += self._doubled * (now_s - self._last_s)
        self._last_s = now_s
