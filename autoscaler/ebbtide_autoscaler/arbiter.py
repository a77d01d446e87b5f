"""The arbiter: the one Ray actor that decides and keeps the ledger.

Its methods only take reports in and answer from the last state that the ledger has confirmed; all the deciding is in
``loop``. It may be killed at any time: Ray starts it again, and it replays the ledger, opens a new epoch and takes up
where the reports say the world is. Until it has read the ledger it answers None, like an arbiter that is not there:
whoever asks goes on as before.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ebbtide.agent.occupancy_retention import Writer
from ebbtide.client.messages import (
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
from ebbtide.config.root import PoolFile
from ebbtide.pool.events import (
    Body,
    CancelJob,
    JobEnded,
    JobSubmitted,
    NodeDraining,
    NodeUndrained,
    PoolFrozen,
    PoolUnfrozen,
)
from ebbtide.pool.ids import JobName, NodeId, SeatId, slot_id
from ebbtide.pool.spec import JobSpec
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from ebbtide_autoscaler.agree import unsettled
from ebbtide_autoscaler.heartbeat import start_beating
from ebbtide_autoscaler.loop import Loop
from ebbtide_autoscaler.notices import Heardless, notices
from ebbtide_autoscaler.observe import directive, lease, orders, unheard
from ebbtide_autoscaler.occupancy_sweeper import holders, start_sweeping
from ebbtide_autoscaler.reports import heard, overtaken
from ebbtide_autoscaler.view import view

MAY_HAVE_LEASE = frozenset({SeatState.PLACING, SeatState.STARTING, SeatState.READY})
TAKE_S = 5.0  # what a person asks for is journaled within milliseconds, or the ledger hangs
REGISTER_S = 1.5  # the same; whoever asks waits for 2 s, and asks again of the next arbiter if this one dies
CONFIG_S = 30.0  # the same, and a first start of Serve: 3-14 s on 2 cores (facts/ray.md)
KEY_CHANGE_S = 10.0  # an fsync takes milliseconds; while the ledger hangs nothing changes
LIVE = frozenset(set(JobState) - {JobState.ENDED})


class Arbiter:
    """The actor's class; see ``launch`` for how it is started."""

    def __init__(self, pool: str, shared_dir: str, lock_dir: str) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
        self._pool, self._shared_dir, self._lock_dir = pool, shared_dir, lock_dir
        writer = f"{socket.gethostname()}:{os.getpid()}"
        self._submitted: dict[JobName, str] = {}  # the last incarnation of each job, perhaps not journaled yet
        self._loop = Loop(pool, Path(shared_dir), lock_dir=lock_dir, writer=writer)
        self._loop.start()
        node_dir, shared = Path(lock_dir).parent, Path(shared_dir)
        start_sweeping(shared / "occupancy", self._slot_holders)
        start_beating(pool, lambda: self._loop.ledger.epoch, node_dir=node_dir, shared_dir=shared)

    def _slot_holders(self) -> Callable[[Writer], bool] | None:
        """Who may have a slot now; None while the ledger is not open, for then the directory may be another one."""
        loop = self._loop
        if not loop.opened or loop.still.by == "ledger":
            return None
        return holders(loop.world.state.nodes, dict(loop.reports.agents), time.time())

    # ---- everybody

    def hello(self) -> PoolRuntime | None:
        """What a process that joins the pool needs."""
        if not self._loop.opened:
            return None
        ledger = self._loop.ledger
        return PoolRuntime(self._pool, self._shared_dir, self._lock_dir, ledger.epoch, ledger.ledger_id)

    def pid(self) -> int:
        """Of this process; for tests that kill it."""
        return os.getpid()

    # ---- training

    def register_job(self, spec: JobSpec, incarnation: str, details: dict[str, object]) -> ControllerOrders | None:
        """Take a job in; asking again under the same incarnation changes nothing.

        Raises:
            ValueError: a job of that name is alive under another incarnation, or it can never run here.
        """
        if not self._loop.opened:
            return None
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
        self._loop.submit(JobSubmitted(spec, incarnation, restored=bool(details.get("restored"))))
        self._await_journaled(spec.name, incarnation)
        return ControllerOrders(None, "just submitted")

    def _await_journaled(self, name: JobName, incarnation: str) -> None:
        """Wait a moment: a job that was answered for outlives this arbiter, unless its ledger hangs."""
        deadline_s = time.monotonic() + REGISTER_S
        while time.monotonic() < deadline_s:
            known = self._loop.world.state.jobs.get(name)
            if known is not None and known.incarnation == incarnation:
                if self._submitted.get(name) == incarnation:
                    self._submitted.pop(name)
                return
            time.sleep(0.02)

    def report_controller(self, report: ControllerReport) -> ControllerOrders | None:
        """A Train controller's state; the answer is what it should do when it has no gang."""
        if not self._loop.opened:
            return None
        name = JobName(report.job)
        submitted = self._submitted.get(name)  # read first: it goes when the ledger knows the job
        job = self._loop.world.state.jobs.get(name)
        if job is None or job.incarnation != report.incarnation:
            if submitted == report.incarnation:
                return ControllerOrders(None, "just submitted")
            why = "another submission of this job has taken over" if job else "the pool does not know this job any more"
            return ControllerOrders(None, why, cancelled=True, kill_gang=job is None)
        last = self._loop.reports.controllers.get(name)
        if overtaken(last, ("incarnation",), report):
            return self._orders(name)
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
        if overtaken(last, ("incarnation", "node", "pid"), report):
            return directive(self._loop.world.state, report)
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
        """End a job at its next safe point; one whose driver was lost is over at once, and is not submitted again.

        Raises:
            ValueError: no such job is alive, or waits to be restored; or the ledger does not answer.
        """
        self._loop.must_be_open()
        name = JobName(job)
        known = self._loop.world.state.jobs.get(name)
        if known is not None and known.state is JobState.ENDED and known.outcome.startswith("lost:"):
            if not known.cancelled:
                self._take(CancelJob(name, reason), lambda state: state.jobs[name].cancelled)
            self._loop.forget_submission(name)
            return
        if known is None or known.state not in LIVE:
            raise ValueError(f"no job {job} is alive, and none that was lost waits to be restored")
        if not known.cancelled:
            self._loop.submit(CancelJob(name, reason))

    # ---- serving

    def seat_lease(self, seat: str, replica: str, node: str, gpu_ids: tuple[int, ...]) -> Lease | None:
        """The lease of a replica that was placed on these GPUs; None: they were not granted to it."""
        state = self._loop.world.state
        record = state.seats.get(SeatId(seat))
        if record is None or record.state not in MAY_HAVE_LEASE:
            return None
        here = {slot_id(NodeId(node), index) for index in gpu_ids}
        if here != set(record.slots):
            self._loop.reports.misplaced[record.id] = heard(tuple(sorted(here)))
            self._loop.wake()
            return None
        return lease(state, seat, record.epoch, record.slots)

    def report_replica(self, report: ReplicaReport) -> ReplicaOrders:
        """A replica's state."""
        seat = SeatId(report.seat)
        last = self._loop.reports.replicas.get(seat)
        late = overtaken(last, ("replica", "node", "pid"), report)
        if not late and (last is None or last.report.lease_epoch <= report.lease_epoch):
            self._loop.reports.replicas[seat] = heard(report)
        if last is None or (last.report.phase, last.report.replica) != (report.phase, report.replica):
            self._loop.wake()
        record = self._loop.world.state.seats.get(seat)
        draining = record is not None and record.state in (SeatState.DRAINING, SeatState.STOPPING)
        return ReplicaOrders(draining=draining)

    def report_gateway(self, report: GatewayReport) -> GatewayOrders:
        """A gateway's traffic; the answer is where requests go and which keys count. None in it: keep the last."""
        last = self._loop.reports.gateways.get(report.gateway)
        if not overtaken(last, ("gateway",), report):
            self._loop.reports.gateways[report.gateway] = heard(report)
            self._loop.reports.gateway_last_s = time.time()
        held_before = sum(part.held for part in last.report.traffic.values()) if last else 0
        if sum(part.held for part in report.traffic.values()) and not held_before:
            self._loop.wake()
        seen = self._loop.seen
        unsure = not self._loop.configured or seen is None or self._settling(seen.started_s)
        routes = None if unsure else self._loop.routing_table
        return self._loop.keys.orders(report.keys_seen, routes, self._loop.reports.present_gateways())

    def keys(self) -> list[dict[str, Any]]:
        """All API keys without their digests."""
        return self._loop.keys.book.rows(time.time())

    def create_key(self, grant: KeyGrant) -> dict[str, Any]:
        """Make an API key; every gateway takes it within a second.

        Raises:
            ValueError: refused; the message says why.
        """
        return self._key_change(self._loop.keys.create(grant))

    def rotate_key(self, name: str, sha256: str, grace_s: float) -> dict[str, Any]:
        """Give a key another secret; the old one stays good for ``grace_s``. Same errors."""
        return self._key_change(self._loop.keys.rotate(name, sha256, grace_s))

    def revoke_key(self, name: str) -> dict[str, Any]:
        """Close a key for good; every gateway refuses it within a second. Same errors."""
        return self._key_change(self._loop.keys.revoke(name))

    def _key_change(self, change: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        try:
            return self._loop.change_keys(change).result(timeout=KEY_CHANGE_S)
        except FutureTimeout:
            raise ValueError(
                f"not journaled within {KEY_CHANGE_S:g} s ({self._loop.frozen or 'the arbiter is busy'}); "
                "it comes into force if the ledger takes it after all: see `ebbtide keys list`"
            ) from None

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
        """Make the pool agree with a file; waits until it is journaled and the gateway was told.

        Raises:
            ValueError: the file cannot be put into force, and nothing was changed; or the ledger does not answer.
        """
        done: Future[dict[str, Any]] = self._loop.configure(PoolFile.model_validate_json(config_json))
        try:
            return done.result(timeout=CONFIG_S)
        except FutureTimeout:
            raise ValueError(
                f"the ledger has not taken the file within {CONFIG_S:g} s ({self._loop.frozen or 'it is slow'}); the "
                "file before it is in force until it does: see `ebbtide status`, and run `ebbtide up` again"
            ) from None

    def config(self) -> str:
        """The file in force as JSON; empty before the first `up`."""
        return self._loop.file.json

    def configs(self) -> tuple[str, ...]:
        """The files that were in force last, as JSON, oldest first; the last one is in force."""
        return self._loop.file.recent

    def freeze(self, reason: str) -> None:
        """Stop all decisions until :meth:`unfreeze`; outlives a restart of the arbiter.

        Raises:
            ValueError: it is frozen already, or the ledger does not answer.
        """
        self._loop.must_be_open()
        state = self._loop.world.state
        if state.frozen:
            raise ValueError(f"the pool is frozen already: {state.frozen}")
        self._take(PoolFrozen(reason), lambda state: bool(state.frozen))

    def unfreeze(self) -> None:
        """Decide again. Same errors."""
        self._loop.must_be_open()
        if not self._loop.world.state.frozen:
            raise ValueError("the pool is not frozen by a person")
        self._take(PoolUnfrozen(), lambda state: not state.frozen)

    def drain_node(self, node: str, reason: str) -> None:
        """Have everything leave a node, in good order, and grant nothing there. Same errors."""
        self._loop.must_be_open()
        name, state = NodeId(node), self._loop.world.state
        if name not in state.nodes:
            raise ValueError(f"node {node} is not in the pool")
        if state.draining.get(name) != reason:
            self._take(NodeDraining(name, reason), lambda state: state.draining.get(name) == reason)

    def undrain_node(self, node: str) -> None:
        """Use a node again. Same errors."""
        self._loop.must_be_open()
        name = NodeId(node)
        if name not in self._loop.world.state.draining:
            raise ValueError(f"node {node} is not draining")
        self._take(NodeUndrained(name), lambda state: name not in state.draining)

    def _take(self, body: Body, holds: Callable[[PoolState], bool]) -> None:
        """Submit what a person asked for and wait, but not for ever, until the ledger has it."""
        self._loop.submit(body)
        deadline_s = time.monotonic() + TAKE_S
        while not holds(self._loop.world.state):
            if time.monotonic() > deadline_s:
                withdrawn = self._loop.withdraw(body)
                why = self._loop.frozen or "the arbiter is busy"
                left = "nothing was changed" if withdrawn else "it comes into force if the ledger takes it after all"
                raise ValueError(f"not journaled within {TAKE_S:g} s: {why}; {left}")
            time.sleep(0.02)

    def rolling(self) -> dict[str, list[str]]:
        """Seats that have something to do before the pool agrees with its file, by endpoint; {}: it agrees."""
        config = self._loop.file.json
        return unsettled(PoolFile.model_validate_json(config), self._loop.world.state) if config else {}

    def status(self) -> dict[str, Any]:
        """The pool for people and scripts."""
        seen, state, now_s = self._loop.seen, self._loop.world.state, time.time()
        found = view(state, seen, self._loop.waits, now_s) if seen else {}
        loop = self._loop
        still, file = loop.still, loop.file
        gateway = Heardless(
            last_s=loop.reports.gateway_last_s,
            trouble=loop.gateway.trouble,
            trouble_since_s=loop.gateway.trouble_since_s,
        )
        told = (
            notices(state, seen, now_s, mode=file.mode, mode_since_s=file.mode_since_s, gateway=gateway) if seen else ()
        )
        return {
            "pool": self._pool,
            "arbiter": {
                "epoch": loop.ledger.epoch,
                "pid": os.getpid(),
                "frozen": still.why,
                "frozen_since_s": still.since_s or None,
                "frozen_by": still.by,
                "mode": file.mode,
                "tick_s": round(loop.tick_took_s, 5),
            },
            "metrics": loop.metrics_door.status(),
            "notices": [asdict(notice) for notice in told],
            **found,
        }

    def stop(self) -> None:
        """Remove gateway and seats, drop the fences and stop deciding: the pool is being taken down."""
        self._loop.stop().result(timeout=60)
