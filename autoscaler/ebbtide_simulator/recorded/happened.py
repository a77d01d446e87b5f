"""What the slots of a pool were really used for, folded from its ledger's events. Pure.

A slot counts for what its occupant is doing, as the simulator's `meter` has it, and from the moment on at which it was
found. So the slot-seconds of all uses together are the seconds of all slots, whatever happened.
"""

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate

from ebbtide.pool.ids import JobName, SeatId, SlotId
from ebbtide.pool.state import PoolState, SlotRecord
from ebbtide.pool.transitions import SlotState
from ebbtide_simulator.model.meter import Meter, Use, use_of_job, use_of_seat

OUT_OF_USE = frozenset({SlotState.LOST, SlotState.FOREIGN})


def use_of_slot(state: PoolState, record: SlotRecord) -> Use:
    """What a slot is used for; one whose occupant has ended is on its way back until it is proven free."""
    if record.state in OUT_OF_USE:
        return Use.DOWN
    if record.occupant is None:
        return Use.FREE
    job = state.jobs.get(JobName(str(record.occupant)))
    if job is not None:
        use = use_of_job(job)
        return Use.SAVING if use is Use.FREE else use
    use = use_of_seat(state.seats.get(SeatId(str(record.occupant))))
    return Use.DRAINING if use is Use.FREE else use


class Uses:
    """Counts slot-seconds by use from ``from_s`` (seconds since 1970) on."""

    def __init__(self, from_s: float) -> None:
        self.from_s = self._now_s = from_s
        self._meter = Meter(0, from_s=from_s)
        self._now: dict[SlotId, Use] = {}
        self._changes: list[tuple[float, Use, int]] = []

    @property
    def slot_s(self) -> Mapping[Use, float]:
        """Until the last event."""
        return self._meter.slot_s

    def take(self, at_s: float, before: PoolState, after: PoolState, subject: object) -> None:
        """An event has led from one state to another.

        Args:
            at_s: when; a time before that of an earlier event counts as that.
            subject: the job or seat that it is about; of slots it is enough that their records differ.
        """
        self.until(at_s)
        for slot, record in after.slots.items():
            if record.occupant == subject or before.slots.get(slot) is not record:
                self._put(slot, use_of_slot(after, record))
        for slot in self._now.keys() - after.slots.keys() if len(after.slots) < len(self._now) else ():
            self._put(slot, None)

    def until(self, at_s: float) -> None:
        """Nothing has changed until then."""
        self._now_s = max(self._now_s, at_s)
        self._meter.advance(self._now_s)

    def lose(self, slot_s: float) -> None:
        """So much of what was trained was trained again."""
        self._meter.lose(slot_s)

    def course(self, every_s: float) -> dict[Use, tuple[int, ...]]:
        """By use, how many slots had it at every ``every_s`` from the start on."""
        count = int((self._now_s - self.from_s) // every_s) + 1
        found = {}
        for use in Use:
            mine = [(at_s, change) for at_s, one, change in self._changes if one is use]
            times, sums = [at_s for at_s, _ in mine], [0, *accumulate(change for _, change in mine)]
            found[use] = tuple(sums[bisect_right(times, self.from_s + n * every_s)] for n in range(count))
        return found

    def _put(self, slot: SlotId, use: Use | None) -> None:
        was = self._now.get(slot)
        if was is use:
            return
        for one, change in ((was, -1), (use, 1)):
            if one is not None:
                self._meter.now[one] += change
                self._changes.append((self._now_s, one, change))
        if use is None:
            del self._now[slot]
        else:
            self._now[slot] = use
