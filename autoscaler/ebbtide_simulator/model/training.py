"""What is left of a simulated job, and how it fared; times are seconds since 1970, work is in slot-seconds.

All jobs are equally fast with every worker that they have.
"""

from dataclasses import dataclass, field
from math import ceil

from ebbtide_simulator.model.engine import Saves
from ebbtide_simulator.model.filesystem import Transfer


@dataclass(slots=True)
class Training:
    """What is left of a job, and how it fared; times are seconds since 1970."""

    left_s: float  # of work, in slot-seconds
    work_s: float
    submit_s: float
    gpus: int = 1
    since_s: float | None = None  # it has trained since then
    first_s: float | None = None  # when it was first granted slots
    end_s: float | None = None
    finished: bool = False  # with all its work done; else somebody ended it
    preempted: int = 0
    preempted_s: list[float] = field(default_factory=list)  # when
    per_h_max: int = 0  # preemptions that it was promised at most within an hour
    lost_s: float = 0.0  # slot-seconds that had to be done again
    crashed_s: list[float] = field(default_factory=list)  # when a node of its went away under it
    saved_s: float = 0.0  # of work that is durable, in slot-seconds
    saving: tuple[float, Transfer] | None = None  # so much work is on its way to the filesystem

    @property
    def done_s(self) -> float:
        """Work that is done, in slot-seconds."""
        return self.work_s - self.left_s

    def preempt(self, at_s: float) -> None:
        """It was told to go."""
        self.preempted += 1
        self.preempted_s.append(at_s)

    def ends_in_s(self, workers: int, saves: Saves) -> float:
        """How long it takes from now on, if nothing comes between: all its work, and a pause after each stretch."""
        trains_s = self.left_s / workers
        return trains_s + max(0, ceil(trains_s / saves.every_s) - 1) * saves.pause_s

    def credit(self, now_s: float, workers: int, saves: Saves) -> float:
        """It trained until now, and saved its state now and then.

        Returns:
            The slot-seconds for which it paused.
        """
        assert self.since_s is not None
        ran_s = now_s - self.since_s
        saved, rest_s = divmod(ran_s, saves.every_s + saves.pause_s)
        trained_s = saved * saves.every_s + min(rest_s, saves.every_s)
        if saved:
            self.saved_s = max(self.saved_s, self.done_s + saved * saves.every_s * workers)
        self.left_s = max(0.0, self.left_s - trained_s * workers)
        self.since_s = None
        return (ran_s - trained_s) * workers
