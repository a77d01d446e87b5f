"""What the pool's slots were used for, in slot-seconds. Pure bookkeeping."""

from collections import defaultdict
from enum import Enum

from ebbtide.pool.state import JobRecord, SeatRecord
from ebbtide.pool.transitions import JobState, SeatState


class Use(Enum):
    """What a slot is used for."""

    __hash__ = object.__hash__  # members are singletons, and each event looks some up

    TRAINING = "training"  # steps that are not done again
    LOST = "lost"  # steps that are
    LOADING = "loading"  # a job's workers start, or come back
    SAVING = "saving"  # a job steps aside, or has died
    READY = "ready"  # a replica that answers, busy or not
    STARTING = "starting"  # a replica on its way
    DRAINING = "draining"  # a replica that leaves
    FREE = "free"
    DOWN = "down"  # its node has failed


WASTE = (Use.LOST, Use.LOADING, Use.SAVING, Use.STARTING, Use.DRAINING)

_OF_JOB = {
    JobState.STARTING: Use.LOADING,
    JobState.RUNNING: Use.TRAINING,
    JobState.PARKING: Use.SAVING,
    JobState.RESUMING: Use.LOADING,
    JobState.STOPPING: Use.SAVING,
    JobState.RECOVERING: Use.SAVING,
}
_OF_SEAT = {
    SeatState.PLACING: Use.STARTING,
    SeatState.STARTING: Use.STARTING,
    SeatState.WAKING: Use.STARTING,
    SeatState.READY: Use.READY,
    SeatState.DRAINING: Use.DRAINING,
    SeatState.PARKING: Use.DRAINING,
    SeatState.STOPPING: Use.DRAINING,
}


def use_of_job(job: JobRecord | None) -> Use:
    """What a job's slots are used for; FREE: it has none."""
    return _OF_JOB.get(job.state, Use.FREE) if job is not None else Use.FREE


def use_of_seat(seat: SeatRecord | None) -> Use:
    """What a seat's slots are used for; FREE: it has none."""
    return _OF_SEAT.get(seat.state, Use.FREE) if seat is not None else Use.FREE


class Meter:
    """Counts slot-seconds by use, from ``from_s`` on."""

    def __init__(self, slots: int, *, from_s: float) -> None:
        self.slot_s: dict[Use, float] = dict.fromkeys(Use, 0.0)
        self.now: defaultdict[Use, int] = defaultdict(int, {Use.FREE: slots})
        self._last_s = self._from_s = from_s

    def advance(self, now_s: float) -> None:
        """All uses have been as they are until ``now_s``."""
        if now_s > self._last_s:
            for use, count in self.now.items():
                self.slot_s[use] += count * (now_s - self._last_s)
            self._last_s = now_s

    def pause(self, slot_s: float) -> None:
        """For so much of what counted as training it was saved."""
        self._was(slot_s, Use.SAVING)

    def lose(self, slot_s: float) -> None:
        """So much of what was trained has to be trained again."""
        self._was(slot_s, Use.LOST)

    def _was(self, slot_s: float, use: Use) -> None:
        counted_s = min(slot_s, self.slot_s[Use.TRAINING])  # what was trained before the count began is not in it
        self.slot_s[Use.TRAINING] -= counted_s
        self.slot_s[use] += counted_s

    def move(self, count: int, before: Use, after: Use) -> None:
        """So many slots have changed their use just now."""
        self.now[before] -= count
        self.now[after] += count
