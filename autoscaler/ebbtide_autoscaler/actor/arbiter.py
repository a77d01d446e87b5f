"""The arbiter: the one Ray actor that decides and keeps the ledger.

Its methods only take reports in and answer from the last state that the ledger has confirmed; each belongs to a service
(``job_service``, ``replica_service``, ``operator_service``), and all the deciding is in ``loop``. It may be killed at
any time: Ray starts it again, and it replays the ledger, opens a new epoch and takes up where the reports say the world
is. Until it has read the ledger it answers None, like an arbiter that is not there: whoever asks goes on as before.
"""

import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ebbtide.agent.slot_locks.allocation_log_retention import Writer
from ebbtide.client.messages import (
    AgentAnswer,
    AgentReport,
    ControllerOrders,
    ControllerReport,
    GatewayOrders,
    GatewayReport,
    JobDirective,
    KeyGrant,
    Lease,
    PoolRuntime,
    RankReport,
    ReplicaOrders,
    ReplicaReport,
)
from ebbtide.config.pool_file import PoolFile
from ebbtide.pool.ids import JobName, NodeId, SeatId
from ebbtide.pool.spec import JobSpec
from ebbtide_autoscaler.control.cluster_watch import cluster_address
from ebbtide_autoscaler.control.loop import Loop
from ebbtide_autoscaler.core.observe.alerts import FreezeCause
from ebbtide_autoscaler.core.observe.config_agreement import seats_to_change
from ebbtide_autoscaler.journal.allocation_log_sweeper import holders, start_sweeping
from ebbtide_autoscaler.journal.heartbeat import start_beating
from ebbtide_autoscaler.journal.status_record import StatusRecorder, subject_of
from ebbtide_autoscaler.process.gc_tuning import collect_seldom
from ebbtide_autoscaler.process.steady_clock import clock
from ebbtide_autoscaler.service.config_service import ConfigService
from ebbtide_autoscaler.service.job_service import JobService
from ebbtide_autoscaler.service.operator_service import OperatorService
from ebbtide_autoscaler.service.preview import foresee
from ebbtide_autoscaler.service.replica_service import ReplicaService
from ebbtide_autoscaler.service.status import status


class Arbiter:
    """The actor's class; see ``launch`` for how it is started."""

    def __init__(self, pool: str, shared_dir: str, lock_dir: str) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
        collect_seldom()
        self._pool, self._shared_dir, self._lock_dir = pool, shared_dir, lock_dir
        writer = f"{socket.gethostname()}:{os.getpid()}"
        self._loop = Loop(pool, Path(shared_dir), lock_dir=lock_dir, writer=writer)
        self._serve(self._loop)
        self._loop.start()
        node_dir, shared = Path(lock_dir).parent, Path(shared_dir)
        start_sweeping(shared / "occupancy", self._slot_holders)
        start_beating(pool, lambda: self._loop.ledger.epoch, node_dir=node_dir, shared_dir=shared)
        subject = subject_of(pool, shared_dir, cluster_address())
        self._record = StatusRecorder(node_dir, subject, self.status, lambda: self._loop.published.state)
        self._record.start()

    def _serve(self, loop: Loop) -> None:
        published, inbox, file, ledger = loop.published, loop.inbox, loop.file, loop.ledger
        self._jobs = JobService(published, inbox, file, ledger)
        self._replicas = ReplicaService(published, inbox, file, loop.keys)
        self._operator = OperatorService(published, inbox, file, ledger, loop.forget_submission)
        self._config = ConfigService(published, loop.keys, ledger, loop.thread, loop.configure)

    def _slot_holders(self) -> Callable[[Writer], bool] | None:
        """Who may have a slot now; None while the ledger is not open, for then the directory may be another one."""
        loop = self._loop
        if not loop.ledger.opened or loop.published.still.by is FreezeCause.LEDGER:
            return None
        return holders(loop.published.state.nodes, dict(loop.inbox.agents), clock.now_s())

    # ---- everybody

    def hello(self) -> PoolRuntime | None:
        """What a process that joins the pool needs."""
        if not self._loop.ledger.opened:  # guard: nothing is told before the ledger is open
            return None
        ledger, config = self._loop.ledger, self._loop.file.json
        sessions = PoolFile.model_validate_json(config).sessions.model_dump_json() if config else ""
        return PoolRuntime(self._pool, self._shared_dir, self._lock_dir, ledger.epoch, ledger.ledger_id, sessions)

    def pid(self) -> int:
        """Of this process; for tests that kill it."""
        return os.getpid()

    def report_agent(self, report: AgentReport) -> AgentAnswer:
        """A node agent's proof of who holds its slots."""
        state = self._loop.published.state
        self._loop.inbox.take_agent(report, state)
        return self._loop.inbox.answer_agent(report, state)

    # ---- training

    def register_job(self, spec: JobSpec, incarnation: str, details: dict[str, object]) -> ControllerOrders | None:
        """Take a job in; see :meth:`JobService.register`."""
        restored, fresh = bool(details.get("restored")), bool(details.get("fresh"))
        return self._jobs.register(spec, incarnation, restored=restored, fresh=fresh and not restored)

    def how_aside(self, spec: JobSpec) -> dict[str, object] | None:
        """How such a job would step aside if it were submitted now; None: nobody can tell. Changes nothing."""
        aside = self._jobs.aside(spec)
        return aside.as_json() if aside is not None else None

    def report_controller(self, report: ControllerReport) -> ControllerOrders | None:
        """A Train controller's state; the answer is what it should do when it has no gang."""
        return self._jobs.controller(report)

    def report_rank(self, report: RankReport) -> JobDirective | None:
        """A rank's state; the answer is what its gang should do, None if the job is not known (yet)."""
        return self._jobs.rank(report)

    def job_ended(self, job: str, incarnation: str, outcome: str, detail: str) -> None:
        """A driver's last word."""
        self._jobs.ended(JobName(job), incarnation, outcome, detail)

    # ---- serving

    def seat_lease(self, seat: str, replica: str, node: str, gpu_ids: tuple[int, ...]) -> Lease | None:
        """The lease of a replica that was placed on these GPUs; None: they were not granted to it."""
        return self._replicas.lease(SeatId(seat), NodeId(node), gpu_ids)

    def report_replica(self, report: ReplicaReport) -> ReplicaOrders:
        """A replica's state."""
        return self._replicas.replica(report)

    def report_gateway(self, report: GatewayReport) -> GatewayOrders:
        """A gateway's traffic; the answer is where requests go and which keys count. None in it: keep the last."""
        return self._replicas.gateway(report)

    # ---- what people ask for: all may raise ValueError, see ``operator_service`` and ``config_service``

    def cancel_job(self, job: str, reason: str) -> dict[str, Any]:
        """End a job at its next safe point; one whose driver was lost is over at once, and is not submitted again."""
        done = self._operator.cancel(JobName(job), reason)
        self._record.write()
        return done

    def cancel_submission(self, job: str, incarnation: str, reason: str) -> None:
        """The driver of a job was told to stop: end the job, unless the pool has taken this driver for lost."""
        self._operator.cancel_submission(JobName(job), incarnation, reason)

    def park_job(self, job: str, reason: str, by: str, off_node: bool = False) -> dict[str, Any]:
        """Have a job step aside at its next safe point and stay there until :meth:`resume_job`."""
        held = self._operator.hold(JobName(job), reason, by, off_node=off_node)
        self._record.write()
        return held

    def resume_job(self, job: str, by: str) -> dict[str, Any]:
        """Let a job that a person holds have slots again."""
        released = self._operator.release(JobName(job), by)
        self._record.write()
        return released

    def freeze(self, reason: str) -> dict[str, Any]:
        """Stop all decisions until :meth:`unfreeze`; outlives a restart of the arbiter."""
        done = self._operator.freeze(reason)
        self._record.write()
        return done

    def unfreeze(self) -> dict[str, Any]:
        """Decide again."""
        done = self._operator.unfreeze()
        self._record.write()
        return done

    def close_pool(self, by: str, for_s: float) -> dict[str, Any]:
        """Have every job publish its checkpoint and leave, and grant nothing; for ``for_s`` seconds."""
        return self._operator.close(by, for_s)

    def reopen_pool(self) -> dict[str, Any]:
        """Grant again."""
        return self._operator.reopen()

    def drain_node(self, node: str, reason: str) -> dict[str, Any]:
        """Have everything leave a node, in good order, and grant nothing there."""
        done = self._operator.drain(NodeId(node), reason)
        self._record.write()
        return done

    def undrain_node(self, node: str) -> dict[str, Any]:
        """Use a node again."""
        done = self._operator.undrain(NodeId(node))
        self._record.write()
        return done

    def apply_config(self, config_json: str) -> dict[str, Any]:
        """Make the pool agree with a file; waits until it is journaled and the gateway was told."""
        applied = self._config.apply_config(config_json)
        self._record.write()
        return applied

    def create_key(self, grant: KeyGrant) -> dict[str, Any]:
        """Make an API key; every gateway takes it within a second."""
        return self._config.create_key(grant)

    def rotate_key(self, name: str, sha256: str, grace_s: float) -> dict[str, Any]:
        """Give a key another secret; the old one stays good for ``grace_s``."""
        return self._config.rotate_key(name, sha256, grace_s)

    def revoke_key(self, name: str) -> dict[str, Any]:
        """Close a key for good; every gateway refuses it within a second."""
        return self._config.revoke_key(name)

    def stop(self) -> None:
        """Remove gateway and seats, drop the fences and stop deciding: the pool is being taken down."""
        self._loop.thread.run(self._loop.stop()).result(timeout=60)

    # ---- what people look at

    def keys(self) -> list[dict[str, Any]]:
        """All API keys without their digests."""
        return self._loop.keys.book.rows(time.time())

    def config(self) -> str:
        """The file in force as JSON; empty before the first `up`."""
        return self._loop.file.json

    def configs(self) -> tuple[str, ...]:
        """The files that were in force last, as JSON, oldest first; the last one is in force."""
        return self._loop.file.recent

    def rolling(self) -> dict[str, list[str]]:
        """Seats that have something to do before the pool agrees with its file, by endpoint; {}: it agrees."""
        config = self._loop.file.json
        return seats_to_change(PoolFile.model_validate_json(config), self._loop.published.state) if config else {}

    def status(self) -> dict[str, Any]:
        """The pool for people and scripts."""
        return status(self._pool, self._loop)

    def foresee(self, at_s: float) -> dict[str, Any]:
        """What the policy would come to then; seconds since 1970."""
        return foresee(self._loop.published, self._loop.file, at_s)
