"""One arbiter's life in the closed loop: what the real actor's shell does around `tick` and `instruct`, without Ray.

It may die between any two of its steps: before it has journaled what it decided, while it does, before it acts, or
amid that. Where the loop has a ledger, nothing is acted on before that has confirmed it, as in the real shell.
"""

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from ebbtide.client.messages import (
    AgentAnswer,
    AgentReport,
    ControllerOrders,
    ControllerReport,
    GatewayOrders,
    GatewayReport,
    JobDirective,
    Lease,
    RankReport,
    ReplicaOrders,
    ReplicaReport,
    RoutingTable,
)
from ebbtide.ledger.errors import LedgerError
from ebbtide.pool.events import Decision, Event, Fact, JobEnded, Move, NodeFound, NodeLost, Slot, SlotFound
from ebbtide.pool.ids import JobName, NodeId, SeatId, SlotId, slot_id
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from ebbtide_autoscaler.core.decide.idle_cache import IdleCache
from ebbtide_autoscaler.core.demand.demand_watch import DemandWatch
from ebbtide_autoscaler.core.observe.gateway_routes import routes
from ebbtide_autoscaler.core.observe.observation import FenceView, Observation, Timestamped
from ebbtide_autoscaler.core.observe.settling import SETTLE_S, looked_too_early, settling
from ebbtide_autoscaler.core.observe.traffic import traffic
from ebbtide_autoscaler.core.observe.workload_orders import (
    controller_orders,
    lease,
    may_end_early,
    placed_slots,
    rank_directive,
    replica_orders,
)
from ebbtide_autoscaler.core.tick.instructions import (
    CloseSeat,
    DropFence,
    HoldFence,
    KillHolder,
    KillReplica,
    OpenSeat,
    RestoreJob,
    instruct,
)
from ebbtide_autoscaler.core.tick.tick import TickResult, World, tick
from ebbtide_autoscaler.journal.recovery import latest_s
from ebbtide_autoscaler.process.steady_clock import SteadyClock
from tests.autoscaler.sim_ledger import Torn
from tests.autoscaler.sim_provider import Sizing

if TYPE_CHECKING:
    from tests.autoscaler.closed_loop import Loop

MAY_HAVE_LEASE = frozenset({SeatState.PLACING, SeatState.STARTING, SeatState.READY})
LIVING_S = 0.25  # as the real shell
NODES_S = 1.0
RESTORE_S = 30.0
AWAY_S = 2.0  # as the real one: without a tick for so long it has been away
REOPEN_S = 2.0  # as the real one, after its ledger broke


class Died(Exception):
    """The arbiter was killed amid a tick."""


DEATHS = ("before it journals", "while it journals", "before it acts", "amid its acts")


class Arbiter:
    """One arbiter's life: the in-tray and the answers, as the real actor's."""

    def __init__(self, loop: "Loop", world: World) -> None:
        self.loop, self.world = loop, world
        self.name = f"{loop.clock.now_s}"  # one lives at a time
        self.clock = SteadyClock(lambda: loop.wall_s, lambda: loop.clock.now_s)
        self.clock.not_before(latest_s(world.state))
        self.started_s = self.now_s
        self.back_s, self._attended_s = -inf, 0.0
        self.doom = ""  # one of DEATHS: how its next tick ends
        self._broken_until_s = 0.0  # its ledger took no record
        self.ranks: dict[tuple[JobName, int], Timestamped[RankReport]] = {}
        self.controllers: dict[JobName, Timestamped[ControllerReport]] = {}
        self.replicas: dict[SeatId, Timestamped[ReplicaReport]] = {}
        self.gateways: dict[str, Timestamped[GatewayReport]] = {}
        self.agents: dict[NodeId, Timestamped[AgentReport]] = {}
        self.living: dict[SeatId, tuple[str, ...]] = {}
        self.living_at_s = 0.0
        self.inbox: list[Fact | Move] = []
        self.waits: dict[str, str] = {}
        self.decision = Decision()
        self.submitted: dict[JobName, str] = {}
        self.table = RoutingTable()
        self.watch = DemandWatch()
        self.idle = IdleCache()
        self.sizing = Sizing()
        self.misplaced: dict[SeatId, Timestamped[tuple[SlotId, ...]]] = {}
        self._looked_s = 0.0
        self._nodes_s = 0.0
        self._restored_s: dict[JobName, float] = {}

    @property
    def now_s(self) -> float:
        """By its own clock, which its machine's clock drives."""
        return self.clock.now_s()

    def forget(self, job: JobName) -> None:
        """What an earlier submission of the same name reported."""
        self.controllers.pop(job, None)
        for key in [key for key in self.ranks if key[0] == job]:
            del self.ranks[key]

    def report_rank(self, report: RankReport) -> JobDirective | None:
        key = (JobName(report.job), report.rank)
        last = self.ranks.get(key)
        if last is None or last.report.lease_epoch <= report.lease_epoch:
            self.ranks[key] = Timestamped(self.now_s, report)
        return rank_directive(self.world.state, report)

    def report_controller(self, report: ControllerReport) -> ControllerOrders:
        name = JobName(report.job)
        job = self.world.state.jobs.get(name)
        if job is not None and job.incarnation != report.incarnation:
            if self.submitted.get(name) == report.incarnation:
                return ControllerOrders(None, "just submitted")
            return ControllerOrders(None, "another submission of this job has taken over", cancelled=True)
        self.controllers[name] = Timestamped(self.now_s, report)
        if job is None:
            return ControllerOrders(None, "just submitted")
        ranks = [heard.report for (of, _), heard in self.ranks.items() if of == name]
        ends_early = may_end_early(job, ranks)
        return controller_orders(self.world.state, job, self.waits.get(name, ""), ends_early=ends_early)

    def job_ended(self, job: str, incarnation: str, outcome: str, detail: str) -> None:
        known = self.world.state.jobs.get(JobName(job))
        if known is not None and known.incarnation == incarnation and known.state is not JobState.ENDED:
            self.inbox.append(JobEnded(JobName(job), outcome, detail))  # type: ignore[arg-type]

    def report_replica(self, report: ReplicaReport) -> ReplicaOrders:
        seat = SeatId(report.seat)
        last = self.replicas.get(seat)
        if last is None or last.report.lease_epoch <= report.lease_epoch:
            self.replicas[seat] = Timestamped(self.now_s, report)
        return replica_orders(self.world.state, report)

    def seat_lease(self, seat: str, replica: str, node: str, gpu_ids: tuple[int, ...]) -> Lease | None:
        state = self.world.state
        record = state.seats.get(SeatId(seat))
        if record is None or record.state not in MAY_HAVE_LEASE:
            return None
        here = placed_slots(state, record, NodeId(node), gpu_ids)
        if here != frozenset(record.slots):
            self.misplaced[record.id] = Timestamped(self.now_s, tuple(sorted(here)))
            return None
        return lease(state, seat, record.epoch, record.slots)

    def report_gateway(self, report: GatewayReport) -> GatewayOrders:
        self.gateways[report.gateway] = Timestamped(self.now_s, report)
        young = self.now_s - self.started_s < SETTLE_S  # looked at first: all that is seen takes long to gather
        unsure = young and settling(self.world.state, self.seen(), self.now_s)
        return GatewayOrders(routes=None if unsure else self.table)

    def report_agent(self, report: AgentReport) -> AgentAnswer:
        if report.after is not None and report.after.arbiter != self.name:
            report = replace(report, after=None)
        last = self.agents.get(NodeId(report.node))
        if last is None or last.report.boot_id != report.boot_id or last.report.sent_boot_s <= report.sent_boot_s:
            self.agents[NodeId(report.node)] = Timestamped(self.now_s, report)
        return AgentAnswer(self.name, self.now_s, again=looked_too_early(self.world.state, report))

    def seen(self) -> Observation:
        """What this arbiter knows besides the ledger."""
        cluster, now_s = self.loop.cluster, self.loop.clock.now_s
        held, refused = cluster.scheduler.fences, cluster.scheduler.refused_until_s
        fences = {}
        for slot in cluster.machines.slots:
            if slot in held:
                fences[slot] = FenceView.HELD
            else:
                fences[slot] = FenceView.REFUSED if refused.get(slot, 0.0) > now_s else FenceView.ABSENT
        return Observation(
            started_s=self.started_s,
            back_s=self.back_s,
            ranks=dict(self.ranks),
            controllers=dict(self.controllers),
            replicas=dict(self.replicas),
            gateways=dict(self.gateways),
            agents=dict(self.agents),
            fences=fences,
            fencing=cluster.scheduler.fencing(),
            living=dict(self.living),
            living_at_s=self.living_at_s,
            restorable=frozenset(JobName(name) for name in self.loop.restorable),
            misplaced=dict(self.misplaced),
            routes_version=self.table.version,
            closing=self.loop.closing,
        )

    def tick(self) -> tuple[Event, ...]:
        """Observe, decide, journal, act; raises Died if that is its fate."""
        now_s = self.now_s
        if now_s < self._broken_until_s:
            return ()
        if self._broken_until_s and not self._reopened():
            return ()
        if self._attended_s and now_s - self._attended_s > AWAY_S:
            self.back_s = now_s
        self._attended_s = now_s
        if now_s - self._looked_s >= LIVING_S or now_s < self._looked_s:
            self._looked_s = now_s
            if not self.loop.blind:
                self._look(now_s, self.loop.cluster.serve.living())
        if now_s - self._nodes_s >= NODES_S or now_s < self._nodes_s:
            self._nodes_s = now_s
            if not self.loop.blind:
                self._look_at_nodes()
        seen = self.seen()
        bodies, self.inbox = tuple(self.inbox), []
        frozen = self.loop.knobs.frozen or settling(self.world.state, seen, now_s)
        knobs = replace(self.loop.knobs, frozen=True) if frozen else self.loop.knobs
        signals = traffic(self.world.state, seen, now_s)
        self.watch.hear(now_s, signals)
        before = self.world
        result = tick(before, seen, bodies, now_s, knobs, self.watch.outlooks, self.idle, signals)
        try:
            self._journal(result)
        except LedgerError:
            self.inbox = [*bodies, *self.inbox]
            self._broken_until_s = now_s + REOPEN_S
            return ()
        self.world, self.waits = result.world, dict(result.decision.waits)
        self.decision = result.decision
        self.loop.refused += result.refused
        self.loop.took(result.events)
        decides = not frozen and not self.world.state.frozen and not seen.closing
        if decides and not knobs.observe and self.loop.referee is not None:
            self.loop.referee.judge(now_s, before, result, seen, knobs.policy)
        self._die("before it acts")
        table = routes(self.world.state, seen)
        if table != self.table.endpoints or not self.table.version:
            self.table = RoutingTable(max(self.table.version, self.world.arbiter_epoch * 1_000_000) + 1, table)
        self._carry_out(seen)
        if self.loop.provider is not None and not frozen and not self.world.state.frozen:
            self.inbox += self.loop.provider.tick(self.sizing, now_s, self.world.state, self.world.memory)
        return result.events

    def _die(self, when: str) -> None:
        if self.doom == when:
            raise Died

    def _journal(self, result: TickResult) -> None:
        self._die("before it journals")
        ledger = self.loop.ledger
        if ledger is None:
            self._die("while it journals")
            return
        memory = result.world.memory if result.world.memory != self.world.memory else None
        if result.events or memory is not None:
            ledger.tears = self.doom == "while it journals"
            try:
                ledger.write(result.events, memory)
            except Torn:
                raise Died from None
        self._die("while it journals")

    def _reopened(self) -> bool:
        """A new epoch after the last one broke; what was heard is not forgotten, the world is as the ledger says."""
        assert self.loop.ledger is not None
        try:
            self.world = self.loop.recovered()
            self.clock.not_before(latest_s(self.world.state))
        except LedgerError:
            self._broken_until_s = self.now_s + REOPEN_S
            return False
        self._broken_until_s = 0.0
        return True

    def _look(self, asked_s: float, living: dict[SeatId, tuple[str, ...]]) -> None:
        def found() -> None:
            self.living, self.living_at_s = living, asked_s

        self.loop.clock.call_later(self.loop.random.uniform(0.0, 0.2), found)

    def _look_at_nodes(self) -> None:
        state, alive = self.world.state, self.loop.visible
        self.inbox += [NodeLost(node) for node in state.nodes if node not in alive]
        for node in [node for node in self.agents if node not in alive]:
            del self.agents[node]
        for node, gpus in alive.items():
            if node not in state.nodes:
                self.inbox.append(NodeFound(node, self.loop.host_bytes))
            for index in range(gpus):
                record = state.slots.get(slot_id(node, index))
                if record is None or record.state is SlotState.LOST:
                    self.inbox.append(SlotFound(Slot(slot_id(node, index), node, index)))

    def _restore(self, job: JobName) -> None:
        if self.now_s - self._restored_s.get(job, -RESTORE_S) >= RESTORE_S:
            self._restored_s[job] = self.now_s
            self.loop.clock.call_later(self.loop.random.uniform(3.0, 8.0), lambda: self.loop.restore(job))

    def _carry_out(self, seen: Observation) -> None:
        cluster, records = self.loop.cluster, self.world.state.slots
        to_hold: dict[NodeId, list[str]] = {}
        todo = instruct(self.world.state, seen, self.now_s)
        for done, instruction in enumerate(todo):
            if self.doom == "amid its acts" and done == (len(todo) + 1) // 2:
                raise Died
            match instruction:
                case HoldFence(slot):
                    to_hold.setdefault(NodeId(slot.rpartition(":")[0]), []).append(slot)
                case DropFence(slot):
                    cluster.scheduler.drop_fence(slot)
                case OpenSeat(seat):
                    known = self.world.state.seats[seat]
                    cluster.serve.set_target(seat, 1, records[known.slots[0]].slot.node, fenced=known.fenced)
                case CloseSeat(seat):
                    cluster.serve.set_target(seat, 0)
                case KillReplica(_, name):
                    actor = cluster.serve.actor(name)
                    if actor is not None:
                        cluster.serve.kill_actor(actor)
                case KillHolder(slot, epoch):
                    cluster.machines.kill_holder(slot, epoch)
                case RestoreJob(job):
                    self._restore(job)
        self._die("amid its acts")
        for node, slots in to_hold.items() if not self.loop.no_fences else ():
            cluster.scheduler.hold_fences(node, tuple(slots))  # type: ignore[arg-type]
