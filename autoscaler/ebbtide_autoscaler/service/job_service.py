"""Where jobs, their controllers and their ranks come: submissions and reports in, what to do next out.

Nothing is decided here; what is answered is the last state that the ledger has confirmed. Called from many threads.
"""

import time
from typing import cast, get_args

from ebbtide.client.messages import ControllerOrders, ControllerReport, JobDirective, RankReport
from ebbtide.pool.events import JobEnded, JobOutcome, JobSubmitted
from ebbtide.pool.ids import JobName
from ebbtide.pool.plural import many
from ebbtide.pool.spec import JobSpec
from ebbtide.pool.transitions import JobState, SlotState
from ebbtide.snapshot.tiers.step_aside import StepAside
from ebbtide_autoscaler.control import settings
from ebbtide_autoscaler.control.config_in_force import ConfigInForce
from ebbtide_autoscaler.control.inbox import Inbox
from ebbtide_autoscaler.control.published import Published
from ebbtide_autoscaler.core.jobs.preemption_cost import at_admission
from ebbtide_autoscaler.core.observe.workload_orders import controller_orders, may_end_early, rank_directive
from ebbtide_autoscaler.journal.ledger_session import LedgerSession

REGISTER_S = 1.5  # to journal takes milliseconds; who asks waits 2 s, and asks the next arbiter if this one dies


class JobService:
    """For the jobs of one pool."""

    def __init__(self, published: Published, inbox: Inbox, file: ConfigInForce, ledger: LedgerSession) -> None:
        self._published, self._inbox, self._file, self._ledger = published, inbox, file, ledger
        self._submitted: dict[JobName, str] = {}  # the last incarnation of each job, perhaps not journaled yet

    def register(
        self, spec: JobSpec, incarnation: str, *, restored: bool, fresh: bool = False
    ) -> ControllerOrders | None:
        """Take a job in; asking again under the same incarnation changes nothing.

        Args:
            spec: of the job.
            incarnation: of this submission.
            restored: the pool itself has submitted it again.
            fresh: it begins at step 0, whatever one of its name has done.

        Raises:
            ValueError: a job of that name is alive under another incarnation, or it can never run here.
        """
        if not self._ledger.opened:  # guard: no job is taken in before the ledger is open
            return None
        known = self._published.state.jobs.get(spec.name)
        if known is not None and known.incarnation == incarnation:
            return self._orders(spec.name)
        if known is not None and known.state is not JobState.ENDED:  # guard: one job of a name at a time
            raise ValueError(f"job {spec.name} is {known.state.value} already; cancel it first, or choose another name")
        self._must_fit_the_pool(spec)
        self._must_fit_its_team(spec)
        self._submitted[spec.name] = incarnation
        self._inbox.forget_job(spec.name)
        aside = self.aside(spec)
        self._inbox.submit(JobSubmitted(spec, incarnation, restored, aside.words if aside is not None else "", fresh))
        self._await_journaled(spec.name, incarnation)  # guard: a job that was answered for is in the ledger
        return ControllerOrders(None, "just submitted")

    def _must_fit_the_pool(self, spec: JobSpec) -> None:
        state, config = self._published.state, self._file.config
        slots = sum(record.state is not SlotState.LOST for record in state.slots.values())
        bounds = settings.cluster_size(config) if config is not None else None
        more = 0 if bounds is None else max(0, bounds.nodes_max - len(state.nodes)) * bounds.node_slots
        if slots and spec.workers_min > slots + more:  # guard: a job that can never run is refused
            grown = f", and {slots + more} with all the nodes that it may have" if bounds is not None else ""
            raise ValueError(
                f"job {spec.name} needs {many(spec.workers_min, 'slot')} at least; the pool has {slots}{grown}"
            )

    def _must_fit_its_team(self, spec: JobSpec) -> None:
        config = self._file.config
        quota = next((team.quota for team in config.teams if team.name == spec.team), None) if config else None
        if quota is not None and spec.workers_min > quota:
            least = many(spec.workers_min, "slot")
            raise ValueError(f"job {spec.name} needs {least} at least; the quota of team {spec.team} is {quota}")

    def aside(self, spec: JobSpec) -> StepAside | None:
        """How such a job would step aside; None: the pool has no node, or nobody was heard yet."""
        seen, config = self._published.seen, self._file.config
        if seen is None or config is None:
            return None
        return at_admission(self._published.state, seen, spec, restart_s=config.policy.restart_cost_s)

    def _await_journaled(self, name: JobName, incarnation: str) -> None:
        """Wait a moment: a job that was answered for outlives this arbiter, unless its ledger hangs."""
        deadline_s = time.monotonic() + REGISTER_S
        while time.monotonic() < deadline_s:
            known = self._published.state.jobs.get(name)
            if known is not None and known.incarnation == incarnation:
                if self._submitted.get(name) == incarnation:
                    self._submitted.pop(name)
                return
            time.sleep(0.02)

    def controller(self, report: ControllerReport) -> ControllerOrders | None:
        """A Train controller's state; the answer is what it should do when it has no gang."""
        if not self._ledger.opened:  # guard: no controller is answered before the ledger is open
            return None
        name = JobName(report.job)
        submitted = self._submitted.get(name)  # read first: it goes when the ledger knows the job
        job = self._published.state.jobs.get(name)
        if (
            job is None
            # guard: a controller of an earlier submission is not listened to
            or job.incarnation != report.incarnation
        ):
            if submitted == report.incarnation:
                return ControllerOrders(None, "just submitted")
            why = "another submission of this job has taken over" if job else "the pool does not know this job any more"
            return ControllerOrders(None, why, cancelled=True, kill_gang=job is None)
        self._inbox.take_controller(report)
        return self._orders(name)

    def _orders(self, name: JobName) -> ControllerOrders:
        state = self._published.state
        job = state.jobs.get(name)
        if job is None:
            return ControllerOrders(None, "just submitted")
        seen = self._published.seen
        ranks = [] if seen is None else [heard.report for (of, _), heard in seen.ranks.items() if of == name]
        why = self._published.waits.get(name, "")
        return controller_orders(state, job, why, ends_early=may_end_early(job, ranks))

    def rank(self, report: RankReport) -> JobDirective | None:
        """A rank's state; the answer is what its gang should do, None if the job is not known (yet)."""
        self._inbox.take_rank(report)
        return rank_directive(self._published.state, report)

    def ended(self, name: JobName, incarnation: str, outcome: str, detail: str) -> None:
        """A driver's last word.

        Raises:
            ValueError: no job ends like that.
        """
        known = self._published.state.jobs.get(name)
        if (
            known is None
            or known.incarnation != incarnation  # guard: an earlier driver's last word ends nothing
            or known.state is JobState.ENDED
        ):
            return
        if outcome not in get_args(JobOutcome):
            raise ValueError(f"job {name} cannot end as {outcome!r}")
        self._inbox.submit(JobEnded(name, cast(JobOutcome, outcome), detail[:2000]))
