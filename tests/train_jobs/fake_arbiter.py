"""An arbiter that only obeys the test: it gives the leases and directives it is told to, and notes what it hears."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ebbtide.client.messages import (
    ControllerOrders,
    ControllerPhase,
    ControllerReport,
    DesiredState,
    JobDirective,
    Lease,
    PoolRuntime,
    RankPhase,
    RankReport,
    SlotRef,
)
from ebbtide.pool.spec import JobSpec


@dataclass
class FakeJob:
    """One registered job and the test's wishes for it."""

    spec: JobSpec
    incarnation: str
    want: DesiredState = DesiredState.RUN
    lease: Lease | None = None
    gang_epoch: int = 0  # of the lease that a new gang may start under: not of one by which a parked gang resumes
    number: int = 0
    why: str = "waits: nobody has granted anything"
    cancelled: bool = False
    kill_gang: bool = False
    outcome: str = ""
    detail: str = ""
    controllers: list[ControllerReport] = field(default_factory=list)  # without repetitions
    ranks: dict[int, RankReport] = field(default_factory=dict)
    told_s: float = 0.0  # last controller report


class FakeArbiter:
    """The actor's class."""

    def __init__(self, shared_dir: str, lock_dir: str) -> None:
        self._runtime = PoolRuntime("fake", shared_dir, lock_dir, 1)
        self._jobs: dict[str, FakeJob] = {}
        self._epoch = 0
        self._refusal = ""
        self.looks = 0
        self._details: dict[str, dict[str, object]] = {}

    # ---- what an arbiter does

    def hello(self) -> PoolRuntime:
        return self._runtime

    def register_job(self, spec: JobSpec, incarnation: str, details: dict[str, object]) -> ControllerOrders:
        if self._refusal:
            raise ValueError(self._refusal)
        self._details[spec.name] = details
        known = self._jobs.get(spec.name)
        if known is None or known.incarnation != incarnation:
            self._jobs[spec.name] = FakeJob(spec, incarnation)
        return ControllerOrders(None, "just submitted")

    def report_controller(self, report: ControllerReport) -> ControllerOrders:
        job = self._jobs[report.job]
        if job.incarnation != report.incarnation:
            return ControllerOrders(None, "another submission", cancelled=True)
        if not job.controllers or replace(job.controllers[-1], seq=report.seq) != report:
            job.controllers.append(report)
        job.told_s = time.time()
        if job.kill_gang or job.cancelled or job.lease is None or job.want is not DesiredState.RUN:
            waiting = report.phase is ControllerPhase.NO_GANG
            return ControllerOrders(None, job.why, cancelled=job.cancelled and waiting, kill_gang=job.kill_gang)
        if job.lease.epoch != job.gang_epoch:
            return ControllerOrders(None, "its gang was to resume")
        return ControllerOrders(job.lease)

    def report_rank(self, report: RankReport) -> JobDirective | None:
        job = self._jobs[report.job]
        if job.incarnation != report.incarnation:
            return JobDirective(report.directive + 1, DesiredState.STOP, None)
        job.ranks[report.rank] = report
        return JobDirective(job.number, job.want, job.lease if job.want is DesiredState.RUN else None)

    def job_ended(self, job: str, incarnation: str, outcome: str, detail: str) -> None:
        if self._jobs[job].incarnation == incarnation and not self._jobs[job].outcome:
            self._jobs[job].outcome, self._jobs[job].detail = outcome, detail

    def park_job(self, job: str, reason: str, by: str) -> dict[str, Any]:
        self.want(job, DesiredState.PARK)
        return {"changed": True, "held": {"by": by, "reason": reason}}

    def resume_job(self, job: str, by: str) -> dict[str, Any]:
        self.resume(job)
        return {"changed": True, "held": None}

    def cancel_job(self, job: str, reason: str) -> None:
        self.cancel(job)

    def cancel_submission(self, job: str, incarnation: str, reason: str) -> None:
        known = self._jobs[job]
        if known.incarnation != incarnation or known.outcome:
            raise ValueError("over already")
        self.cancel(job)

    def status(self) -> dict[str, Any]:
        self.looks += 1
        return {"jobs": [self._view(job) for job in self._jobs.values()]}

    def _view(self, job: FakeJob) -> dict[str, Any]:
        slots = [f"{slot.node}:{slot.index}" for slot in job.lease.slots] if job.lease else []
        phases = {report.phase for report in job.ranks.values()}
        state = "waiting"
        if job.outcome:
            state = "ended"
        elif phases == {RankPhase.PARKED}:
            state = "parked"
        elif slots:
            state = "running" if phases == {RankPhase.RUNNING} else "starting"
        return {"job": job.spec.name, "state": state, "slots": slots, "waits": job.why, "outcome": job.outcome or None}

    # ---- what the test does with it

    def refuse(self, text: str) -> None:
        self._refusal = text

    def grant(self, job: str, node: str, indexes: Sequence[int]) -> Lease:
        """A new gang on these slots."""
        found = self._jobs[job]
        found.ranks.clear()
        found.kill_gang = False
        return self._start(found, tuple(SlotRef(node, index) for index in indexes))

    def grant_slots(self, job: str, slots: Sequence[SlotRef]) -> Lease:
        """A new gang on these slots, wherever they are."""
        found = self._jobs[job]
        found.ranks.clear()
        found.kill_gang = False
        return self._start(found, tuple(slots))

    def report_agent(self, report: object) -> None:
        """Nobody asks."""

    def resume(self, job: str) -> Lease:
        """The parked gang, on its own slots, under a new epoch."""
        found = self._jobs[job]
        assert found.lease is not None
        return self._run(found, found.lease.slots)

    def _start(self, job: FakeJob, slots: tuple[SlotRef, ...]) -> Lease:
        job.gang_epoch = self._epoch + 1
        return self._run(job, slots)

    def _run(self, job: FakeJob, slots: tuple[SlotRef, ...]) -> Lease:
        self._epoch += 1
        job.lease = Lease(job.spec.name, self._epoch, slots)
        job.want = DesiredState.RUN
        job.number += 1
        return job.lease

    def want(self, job: str, want: DesiredState) -> None:
        self._jobs[job].want = want
        self._jobs[job].number += 1

    def cancel(self, job: str) -> None:
        self._jobs[job].cancelled = True
        self.want(job, DesiredState.CANCEL)

    def lose(self, job: str) -> None:
        """Take its driver for dead, as after a long pause."""
        found = self._jobs[job]
        found.outcome, found.cancelled, found.kill_gang = "lost: silent", True, True
        self.want(job, DesiredState.STOP)

    def kill_gang(self, job: str) -> None:
        self._jobs[job].kill_gang = True
        self.want(job, DesiredState.STOP)

    def looked(self) -> int:
        """How often somebody has asked for the status."""
        return self.looks

    def details(self, job: str) -> dict[str, object]:
        """What the driver of the job said at its last registration."""
        return self._details[job]

    def job(self, job: str) -> FakeJob | None:
        return self._jobs.get(job)
