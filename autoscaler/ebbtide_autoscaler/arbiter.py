"""The arbiter: the one Ray actor that decides and keeps the ledger.

Its methods only take reports in and answer from the last state that the ledger has confirmed; all the deciding is in
``loop``. It may be killed at any time: Ray starts it again, and it replays the ledger, opens a new epoch and takes up
where the reports say the world is.
"""

import logging
import os
import socket
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ebbtide.client.messages import (
    AgentReport,
    ControllerOrders,
    ControllerReport,
    GatewayReport,
    JobDirective,
    Lease,
    PoolRuntime,
    RankReport,
    ReplicaOrders,
    ReplicaReport,
    RoutingTable,
)
from ebbtide.config.root import PoolFile
from ebbtide.pool.events import CancelJob, JobEnded, JobSubmitted
from ebbtide.pool.ids import JobName, NodeId, SeatId, slot_id
from ebbtide.pool.spec import JobSpec
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from ebbtide_autoscaler.loop import Loop
from ebbtide_autoscaler.observe import directive, lease, orders, unheard
from ebbtide_autoscaler.reports import heard
from ebbtide_autoscaler.view import view

MAY_HAVE_LEASE = frozenset({SeatState.PLACING, SeatState.STARTING, SeatState.READY})
LIVE = frozenset(set(JobState) - {JobState.ENDED})


class Arbiter:
    """The actor's class; see ``launch`` for how it is started."""

    def __init__(self, pool: str, shared_dir: str, lock_dir: str) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
        self._pool, self._shared_dir, self._lock_dir = pool, shared_dir, lock_dir
        writer = f"{socket.gethostname()}:{os.getpid()}"
        self._submitted: dict[JobName, str] = {}  # the last incarnation of each job, perhaps not journaled yet
        self._loop = Loop(Path(shared_dir), lock_dir=lock_dir, writer=writer)
        self._loop.start()

    # ---- everybody

    def hello(self) -> PoolRuntime:
        """What a process that joins the pool needs."""
        return PoolRuntime(self._pool, self._shared_dir, self._lock_dir, self._loop.epoch)

    def pid(self) -> int:
        """Of this process; for tests that kill it."""
        return os.getpid()

    # ---- training

    def register_job(self, spec: JobSpec, incarnation: str, details: dict[str, object]) -> ControllerOrders:
        """Take a job in; asking again under the same incarnation changes nothing.

        Raises:
            ValueError: a job of that name is alive under another incarnation, or it can never run here.
        """
        known = self._loop.world.state.jobs.get(spec.name)
        if known is not None and known.incarnation == incarnation:
            return self._orders(spec.name)
        if known is not None and known.state in LIVE:
            raise ValueError(f"job {spec.name} is {known.state.value} already; cancel it first, or choose another name")
        slots = sum(record.state is not SlotState.LOST for record in self._loop.world.state.slots.values())
        if slots and spec.workers_min > slots:
            raise ValueError(f"job {spec.name} needs {spec.workers_min} slots at least; the pool has {slots}")
        self._submitted[spec.name] = incarnation
        self._loop.forget_job(spec.name)
        self._loop.submit(JobSubmitted(spec, incarnation))
        return ControllerOrders(None, "just submitted")

    def report_controller(self, report: ControllerReport) -> ControllerOrders:
        """A Train controller's state; the answer is what it should do when it has no gang."""
        name = JobName(report.job)
        job = self._loop.world.state.jobs.get(name)
        if job is not None and job.incarnation != report.incarnation:
            if self._submitted.get(name) == report.incarnation:
                return ControllerOrders(None, "just submitted")
            return ControllerOrders(None, "another submission of this job has taken over", cancelled=True)
        last = self._loop.reports.controllers.get(name)
        self._loop.reports.controllers[name] = heard(report)
        if last is None or last.report.phase is not report.phase:
            self._loop.wake()
        return self._orders(name)

    def _orders(self, name: JobName) -> ControllerOrders:
        state = self._loop.world.state
        job = state.jobs.get(name)
        if job is None:
            return ControllerOrders(None, "just submitted")
        return orders(state, job, self._loop.waits.get(name, ""))

    def report_rank(self, report: RankReport) -> JobDirective | None:
        """A rank's state; the answer is what its gang should do, None if the job is not known (yet)."""
        key = (JobName(report.job), report.rank)
        last = self._loop.reports.ranks.get(key)
        if last is None or last.report.lease_epoch <= report.lease_epoch:
            self._loop.reports.ranks[key] = heard(report)
        if last is None or (last.report.phase, last.report.directive) != (report.phase, report.directive):
            self._loop.wake()
        return directive(self._loop.world.state, report)

    def job_ended(self, job: str, incarnation: str, outcome: str, detail: str) -> None:
        """A driver's last word."""
        known = self._loop.world.state.jobs.get(JobName(job))
        if known is None or known.incarnation != incarnation or known.state is JobState.ENDED:
            return
        if outcome not in ("finished", "failed", "cancelled", "lost"):
            raise ValueError(f"job {job} cannot end as {outcome!r}")
        self._loop.submit(JobEnded(JobName(job), outcome, detail[:2000]))  # type: ignore[arg-type]

    def cancel_job(self, job: str, reason: str) -> None:
        """End a job at its next safe point.

        Raises:
            ValueError: no such job is alive.
        """
        known = self._loop.world.state.jobs.get(JobName(job))
        if known is None or known.state not in LIVE:
            raise ValueError(f"no job {job} is alive")
        if not known.cancelled:
            self._loop.submit(CancelJob(JobName(job), reason))

    # ---- serving

    def seat_lease(self, seat: str, replica: str, node: str, gpu_ids: tuple[int, ...]) -> Lease | None:
        """The lease of a replica that was placed on these GPUs; None: they were not granted to it."""
        state = self._loop.world.state
        record = state.seats.get(SeatId(seat))
        if record is None or record.state not in MAY_HAVE_LEASE:
            return None
        here = {slot_id(NodeId(node), index) for index in gpu_ids}
        if here != set(record.slots):
            return None
        return lease(state, seat, record.epoch, record.slots)

    def report_replica(self, report: ReplicaReport) -> ReplicaOrders:
        """A replica's state."""
        seat = SeatId(report.seat)
        last = self._loop.reports.replicas.get(seat)
        if last is None or last.report.lease_epoch <= report.lease_epoch:
            self._loop.reports.replicas[seat] = heard(report)
        if last is None or (last.report.phase, last.report.replica) != (report.phase, report.replica):
            self._loop.wake()
        record = self._loop.world.state.seats.get(seat)
        draining = record is not None and record.state in (SeatState.DRAINING, SeatState.STOPPING)
        return ReplicaOrders(draining=draining)

    def report_gateway(self, report: GatewayReport) -> RoutingTable | None:
        """A gateway's traffic; the answer is where requests go. None: keep the last table."""
        last = self._loop.reports.gateways.get(report.gateway)
        self._loop.reports.gateways[report.gateway] = heard(report)
        held_before = sum(part.held for part in last.report.traffic.values()) if last else 0
        if sum(part.held for part in report.traffic.values()) and not held_before:
            self._loop.wake()
        seen = self._loop.seen
        if not self._loop.configured or seen is None or self._settling(seen.started_s):
            return None
        return self._loop.routing_table

    def _settling(self, started_s: float) -> bool:
        """Right after a restart, replicas that have not reported yet must not fall out of the table."""
        seen = self._loop.seen
        return time.time() - started_s < 10.0 and seen is not None and unheard(self._loop.world.state, seen)

    # ---- nodes and people

    def report_agent(self, report: AgentReport) -> None:
        """A node agent's proof of who holds its slots."""
        node = NodeId(report.node)
        last = self._loop.reports.agents.get(node)
        same_boot = last is not None and last.report.boot_id == report.boot_id
        if same_boot and last is not None and report.sent_boot_s < last.report.sent_boot_s:
            return  # overtaken on its way: a lock that it calls free may have been taken since
        self._loop.reports.agents[node] = heard(report)
        if last is None or last.report.holders != report.holders:
            self._loop.wake()

    def apply_config(self, config_json: str) -> dict[str, Any]:
        """Make the pool agree with a file; waits until it is journaled and acted on.

        Raises:
            ValueError: the file cannot be put into force; nothing was changed.
        """
        done: Future[dict[str, Any]] = self._loop.configure(PoolFile.model_validate_json(config_json))
        return done.result(timeout=120)

    def config(self) -> str:
        """The file in force as JSON; empty before the first `up`."""
        return self._loop.config_json

    def status(self) -> dict[str, Any]:
        """The pool for people and scripts."""
        seen = self._loop.seen
        found = view(self._loop.world.state, seen, self._loop.waits, time.time()) if seen else {}
        return {
            "pool": self._pool,
            "arbiter": {
                "epoch": self._loop.epoch,
                "pid": os.getpid(),
                "frozen": self._loop.frozen,
                "frozen_since_s": self._loop.frozen_since_s or None,
                "tick_s": round(self._loop.tick_took_s, 5),
            },
            **found,
        }

    def stop(self) -> None:
        """Remove gateway and seats, drop the fences and stop deciding: the pool is being taken down."""
        self._loop.stop().result(timeout=60)
