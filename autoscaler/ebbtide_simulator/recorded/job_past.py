"""What became of a pool's jobs, folded from its ledger's events. Pure; times in seconds since 1970."""

from dataclasses import dataclass, field

from ebbtide.pool.events import Event, JobEnded, JobRunning, JobSubmitted, ParkJob, StopJob
from ebbtide.pool.ids import JobName
from ebbtide.pool.spec import JobSpec
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide.pool.subject import subject_job
from ebbtide.pool.transitions import JobState


@dataclass(slots=True)
class JobPast:
    """One submission of a job.

    Attributes:
        submit_s: when it came, or the begin of the recording, if it was there already.
        trained_s: slot-seconds within the recording, of steps that were lost again too.
        lost_steps: that it ran again after crashes.
        first_s: when it was first granted slots; None: never.
        end_s: when it was over, or lost and not brought back; None: it was not.
        finished: it ended because all its work was done.
        preempted: how often it was told to go while it trained.
        lost_s: slot-seconds that the lost steps took.
    """

    spec: JobSpec
    submit_s: float
    trained_s: float = 0.0
    lost_steps: int = 0
    first_s: float | None = None
    end_s: float | None = None
    finished: bool = False
    preempted: int = 0
    lost_s: float = 0.0


@dataclass(slots=True)
class JobPasts:
    """All jobs from the begin of a recording on; nothing counts before that."""

    begins_s: float | None = None
    _over: list[JobPast] = field(default_factory=list)
    _now: dict[JobName, JobPast] = field(default_factory=dict)
    _since_s: dict[JobName, tuple[float, int]] = field(default_factory=dict)  # it has trained, with so many workers

    def begin(self, at_s: float, state: PoolState) -> None:
        """The recording begins, and these are there."""
        self.begins_s = at_s
        for name, record in state.jobs.items():
            if record.state is not JobState.ENDED:
                self._now[name] = JobPast(record.spec, at_s, first_s=at_s if record.gang else None)
                if record.state is JobState.RUNNING:
                    self._since_s[name] = at_s, len(record.gang)

    def take(self, event: Event, before: PoolState, after: PoolState) -> None:
        """An event has led from one state to another."""
        name = event.body.spec.name if isinstance(event.body, JobSubmitted) else subject_job(event.body)
        if self.begins_s is None or name is None:
            return
        was, now = before.jobs.get(name), after.jobs.get(name)
        self._train(name, event.at_s, was, now)
        match event.body:
            case JobSubmitted(restored=True) if name in self._now:
                self._now[name].end_s = None  # it was lost, and is back
            case JobSubmitted(spec=spec):
                self._over += [self._now.pop(name)] if name in self._now else []  # which was lost
                self._now[name] = JobPast(spec, max(event.at_s, self.begins_s))
            case ParkJob() if was is not None and was.held is None:
                self._now[name].preempted += 1
            case StopJob(preempts=True) if was is not None and was.held is None and was.state is JobState.RUNNING:
                self._now[name].preempted += 1
            case JobRunning(lost_steps=lost) if was is not None and was.state is JobState.STARTING:
                self._now[name].lost_steps += lost
            case JobEnded(outcome="lost"):
                self._now[name].end_s = event.at_s
            case JobEnded(outcome=outcome):
                one = self._now.pop(name)
                one.end_s, one.finished = event.at_s, outcome == "finished"
                self._over.append(one)
            case _:
                pass
        one_now = self._now.get(name)
        if one_now is not None and one_now.first_s is None and now is not None and now.gang:
            one_now.first_s = event.at_s

    def _train(self, name: JobName, at_s: float, was: JobRecord | None, now: JobRecord | None) -> None:
        trains = now is not None and now.state is JobState.RUNNING
        if was is not None and was.state is JobState.RUNNING and not trains:
            self._credit(name, at_s)
        if trains and (was is None or was.state is not JobState.RUNNING):
            assert now is not None
            self._since_s[name] = at_s, len(now.gang)

    def _credit(self, name: JobName, at_s: float) -> None:
        since_s, workers = self._since_s.pop(name)
        self._now[name].trained_s += max(0.0, at_s - since_s) * workers

    def all(self, ends_s: float) -> tuple[JobPast, ...]:
        """Every one, by submission; those that still train do so until then."""
        for name in list(self._since_s):
            self._credit(name, ends_s)
        return tuple(sorted([*self._over, *self._now.values()], key=lambda one: (one.submit_s, one.spec.name)))
