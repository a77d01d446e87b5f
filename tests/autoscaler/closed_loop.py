"""The arbiter's pure core in a closed loop with the fake cluster, under a virtual clock; used by several tests.

`Loop` does what the real arbiter's shell does around `step` and `instruct`, without Ray and without a ledger on disk,
and checks after every tick the promises in the ledger and in the cluster's physical truth.
"""

from dataclasses import replace
from random import Random

from ebbtide.client.messages import (
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
from ebbtide.pool.apply import replay
from ebbtide.pool.events import (
    CancelJob,
    Decision,
    EndpointDeclared,
    Event,
    Fact,
    GrantJob,
    GrantSeat,
    JobEnded,
    JobSubmitted,
    Move,
    NodeFound,
    NodeLost,
    ResumeJob,
    Slot,
    SlotFound,
    WakeSeat,
)
from ebbtide.pool.ids import EndpointName, JobName, NodeId, SeatId, SlotId, slot_id
from ebbtide.pool.promises import violations
from ebbtide.pool.spec import EndpointSpec, JobSpec, WorkloadClass
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from ebbtide.testing.fake_cluster import FakeCluster
from ebbtide.testing.fake_gang import FakeDriver
from ebbtide.testing.fake_gateway import FakeGateway
from ebbtide.testing.fake_link import FakeLink, Weather
from ebbtide.testing.virtual_clock import VirtualClock
from ebbtide_autoscaler.forecast.watch import Watch
from ebbtide_autoscaler.instruct import (
    CloseSeat,
    DropFence,
    HoldFence,
    KillHolder,
    KillReplica,
    OpenSeat,
    RestoreJob,
    instruct,
)
from ebbtide_autoscaler.observe import directive, lease, orders, placed, replica_orders, routes, traffic, unheard
from ebbtide_autoscaler.seen import FenceView, Heard, Limits, Seen
from ebbtide_autoscaler.signals import Memory, PolicyConfig
from ebbtide_autoscaler.step import MOVES, Knobs, World, step

MAY_HAVE_LEASE = frozenset({SeatState.PLACING, SeatState.STARTING, SeatState.READY})
LIVING_S = 0.25  # as the real shell
NODES_S = 1.0
RESTORE_S = 30.0
SETTLING_S = 10.0
KNOBS = Knobs(
    policy=PolicyConfig(restart_cost_s=10.0, grow_after_s=5.0),
    limits=Limits(placement_timeout_s=15.0, start_timeout_s=40.0, gang_timeout_s=50.0, silence_s=10.0),
)


def an_endpoint(name: str = "chat", **changes: object) -> EndpointSpec:
    """An endpoint with short times."""
    spec = EndpointSpec(
        name=EndpointName(name),
        owner="o",
        team="t",
        workload_class=WorkloadClass.NON_PREEMPTIBLE,
        priority=10,
        replicas_min=0,
        replicas_max=3,
        slots_per_replica=1,
        target_requests=4,
        ttft_slo_s=1.0,
        tpot_slo_s=0.1,
        idle_after_s=5.0,
        down_after_s=3.0,
        min_uptime_factor=1.0,
        drain_s=10.0,
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


def a_job(name: str = "train", **changes: object) -> JobSpec:
    """A job with short times."""
    spec = JobSpec(
        name=JobName(name),
        owner="o",
        team="t",
        workload_class=WorkloadClass.PREEMPTIBLE,
        priority=0,
        workers_min=1,
        workers_max=3,
        grace_s=5.0,
        min_runtime_s=2.0,
        max_preemptions_per_h=1000,
        in_place=True,
        host_bytes_per_worker=10,
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


class Arbiter:
    """One arbiter's life: the in-tray and the answers, as the real actor's."""

    def __init__(self, loop: "Loop", world: World) -> None:
        self.loop, self.world = loop, world
        self.started_s = loop.clock.now_s
        self.ranks: dict[tuple[JobName, int], Heard[RankReport]] = {}
        self.controllers: dict[JobName, Heard[ControllerReport]] = {}
        self.replicas: dict[SeatId, Heard[ReplicaReport]] = {}
        self.gateways: dict[str, Heard[GatewayReport]] = {}
        self.agents: dict[NodeId, Heard[AgentReport]] = {}
        self.living: dict[SeatId, tuple[str, ...]] = {}
        self.living_at_s = 0.0
        self.inbox: list[Fact | Move] = []
        self.waits: dict[str, str] = {}
        self.decision = Decision()
        self.submitted: dict[JobName, str] = {}
        self.table = RoutingTable()
        self.watch = Watch()
        self.misplaced: dict[SeatId, Heard[tuple[SlotId, ...]]] = {}
        self._looked_s = 0.0
        self._nodes_s = 0.0
        self._restored_s: dict[JobName, float] = {}

    def forget(self, job: JobName) -> None:
        """What an earlier submission of the same name reported."""
        self.controllers.pop(job, None)
        for key in [key for key in self.ranks if key[0] == job]:
            del self.ranks[key]

    def report_rank(self, report: RankReport) -> JobDirective | None:
        key = (JobName(report.job), report.rank)
        last = self.ranks.get(key)
        if last is None or last.report.lease_epoch <= report.lease_epoch:
            self.ranks[key] = Heard(self.loop.clock.now_s, report)
        return directive(self.world.state, report)

    def report_controller(self, report: ControllerReport) -> ControllerOrders:
        name = JobName(report.job)
        job = self.world.state.jobs.get(name)
        if job is not None and job.incarnation != report.incarnation:
            if self.submitted.get(name) == report.incarnation:
                return ControllerOrders(None, "just submitted")
            return ControllerOrders(None, "another submission of this job has taken over", cancelled=True)
        self.controllers[name] = Heard(self.loop.clock.now_s, report)
        if job is None:
            return ControllerOrders(None, "just submitted")
        return orders(self.world.state, job, self.waits.get(name, ""))

    def job_ended(self, job: str, incarnation: str, outcome: str, detail: str) -> None:
        known = self.world.state.jobs.get(JobName(job))
        if known is not None and known.incarnation == incarnation and known.state is not JobState.ENDED:
            self.inbox.append(JobEnded(JobName(job), outcome, detail))  # type: ignore[arg-type]

    def report_replica(self, report: ReplicaReport) -> ReplicaOrders:
        seat = SeatId(report.seat)
        last = self.replicas.get(seat)
        if last is None or last.report.lease_epoch <= report.lease_epoch:
            self.replicas[seat] = Heard(self.loop.clock.now_s, report)
        return replica_orders(self.world.state, report)

    def seat_lease(self, seat: str, replica: str, node: str, gpu_ids: tuple[int, ...]) -> Lease | None:
        state = self.world.state
        record = state.seats.get(SeatId(seat))
        if record is None or record.state not in MAY_HAVE_LEASE:
            return None
        here = placed(state, record, NodeId(node), gpu_ids)
        if here != frozenset(record.slots):
            self.misplaced[record.id] = Heard(self.loop.clock.now_s, tuple(sorted(here)))
            return None
        return lease(state, seat, record.epoch, record.slots)

    def report_gateway(self, report: GatewayReport) -> GatewayOrders:
        self.gateways[report.gateway] = Heard(self.loop.clock.now_s, report)
        return GatewayOrders(routes=None if self._settling(self.seen()) else self.table)

    def report_agent(self, report: AgentReport) -> None:
        last = self.agents.get(NodeId(report.node))
        if last is None or last.report.boot_id != report.boot_id or last.report.sent_boot_s <= report.sent_boot_s:
            self.agents[NodeId(report.node)] = Heard(self.loop.clock.now_s, report)

    def _settling(self, seen: Seen) -> bool:
        return self.loop.clock.now_s - self.started_s < SETTLING_S and unheard(self.world.state, seen)

    def seen(self) -> Seen:
        """What this arbiter knows besides the ledger."""
        cluster, now_s = self.loop.cluster, self.loop.clock.now_s
        fences = {}
        for slot in cluster.machines.slots:
            refused = cluster.scheduler.refused_until_s.get(slot, 0.0) > now_s
            fences[slot] = FenceView.REFUSED if refused else FenceView.ABSENT
            if slot in cluster.scheduler.fences:
                fences[slot] = FenceView.HELD
        return Seen(
            started_s=self.started_s,
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
        )

    def tick(self) -> tuple[Event, ...]:
        """Observe, decide, act."""
        clock = self.loop.clock
        if clock.now_s - self._looked_s >= LIVING_S:
            self._looked_s = clock.now_s
            self._look(clock.now_s, self.loop.cluster.serve.living())
        if clock.now_s - self._nodes_s >= NODES_S:
            self._nodes_s = clock.now_s
            self._look_at_nodes()
        seen = self.seen()
        bodies, self.inbox = tuple(self.inbox), []
        knobs = replace(self.loop.knobs, frozen=self.loop.knobs.frozen or self._settling(seen))
        self.watch.hear(clock.now_s, traffic(self.world.state, seen, clock.now_s))
        result = step(self.world, seen, bodies, clock.now_s, knobs, self.watch.outlooks)
        self.world, self.waits = result.world, dict(result.decision.waits)
        self.decision = result.decision
        self.loop.refused += result.refused
        table = routes(self.world.state, seen)
        if table != self.table.endpoints or not self.table.version:
            self.table = RoutingTable(max(self.table.version, self.world.arbiter_epoch * 1_000_000) + 1, table)
        self._carry_out(seen)
        return result.events

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
        if self.loop.clock.now_s - self._restored_s.get(job, -RESTORE_S) >= RESTORE_S:
            self._restored_s[job] = self.loop.clock.now_s
            self.loop.clock.call_later(self.loop.random.uniform(3.0, 8.0), lambda: self.loop.restore(job))

    def _carry_out(self, seen: Seen) -> None:
        cluster, records = self.loop.cluster, self.world.state.slots
        to_hold: dict[NodeId, list[str]] = {}
        for instruction in instruct(self.world.state, seen, self.loop.clock.now_s):
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
        for node, slots in to_hold.items() if not self.loop.no_fences else ():
            cluster.scheduler.hold_fences(node, tuple(slots))  # type: ignore[arg-type]


class Loop:
    """The pool: a cluster, its traffic, its jobs, and the arbiter that is alive or dead."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: dict[str, int] | None = None,
        endpoints: tuple[EndpointSpec, ...] = (an_endpoint(),),
        knobs: Knobs = KNOBS,
        host_bytes: int = 1000,
    ) -> None:
        self.seed, self.random, self.knobs = seed, Random(seed), knobs
        self.clock = VirtualClock()
        self.weather = Weather()
        self.link = FakeLink(self.clock, self.random, self.weather)
        self.specs = {spec.name: spec for spec in endpoints}
        self.cluster = FakeCluster(self.clock, self.random, self.link, nodes or {"n0": 3}, self._gpus_of)
        self.gateways = [FakeGateway(self.cluster, self.random, "g0")]
        self.host_bytes = host_bytes
        self.visible = {
            NodeId(node): gpus for node, gpus in (nodes or {"n0": 3}).items()
        }  # as Ray says, some time late
        self.restorable: set[str] = set()
        self.no_fences = False  # as while a pool only observes
        self.drivers: dict[str, FakeDriver] = {}
        self.events: list[Event] = []
        self.refused: tuple[object, ...] = ()
        self.restarts = 0
        self.arbiter: Arbiter | None = None
        self.start(World(PoolState(), Memory(), 1))
        assert self.arbiter is not None
        self.arbiter.inbox += [EndpointDeclared(spec) for spec in endpoints]

    def _gpus_of(self, seat: SeatId) -> int:
        return self.specs[EndpointName(seat.rpartition("/")[0])].slots_per_replica

    @property
    def state(self) -> PoolState:
        """What the ledger says."""
        return self.arbiter.world.state if self.arbiter is not None else replay(self.events)

    def start(self, world: World) -> None:
        """A new arbiter takes over."""
        self.arbiter = self.link.arbiter = Arbiter(self, world)

    def kill_arbiter(self, down_s: float) -> None:
        """SIGKILL; after ``down_s`` its successor replays the ledger."""
        if self.arbiter is None:
            return
        epoch = self.arbiter.world.arbiter_epoch
        assert replay(self.events) == self.arbiter.world.state
        self.arbiter = self.link.arbiter = None

        def again() -> None:
            self.cluster.scheduler.forget_asked()
            self.start(World(replay(self.events), Memory(), epoch + 1))

        self.clock.call_later(down_s, again)

    def submit(self, spec: JobSpec, *, total: int = 10**9) -> FakeDriver:
        """Start a driver for ``spec``."""
        assert self.arbiter is not None
        incarnation = f"{spec.name}-{len(self.events)}"
        self.arbiter.inbox.append(JobSubmitted(spec, incarnation))
        self.arbiter.forget(spec.name)
        driver = FakeDriver(self.cluster, self.random, spec.name, incarnation, total=total)
        self.drivers[spec.name] = driver
        return driver

    def restore(self, job: JobName) -> None:
        """A driver started from the archived submission registers its job."""
        known = self.state.jobs[job]
        if self.arbiter is None or known.state is not JobState.ENDED:
            return
        incarnation = f"{job}-again-{len(self.events)}"
        self.arbiter.inbox.append(JobSubmitted(known.spec, incarnation, restored=True))
        self.arbiter.submitted[job] = incarnation
        self.arbiter.forget(job)
        old = self.drivers[job]
        self.drivers[job] = FakeDriver(self.cluster, self.random, job, incarnation, total=old.total, step=old.durable)

    def lose_node(self, name: str, *, seen_after_s: float = 3.0) -> int:
        """A machine dies; Ray says so a while later. Returns how many GPUs it had."""
        node = NodeId(name)
        gpus = self.visible[node]
        self.cluster.lose_node(node)
        self.clock.call_later(seen_after_s, lambda: self._unseen(node))
        return gpus

    def _unseen(self, node: NodeId) -> None:
        self.visible.pop(node, None)

    def add_node(self, name: str, gpus: int) -> None:
        """A machine joins, or comes back under another id."""
        self.cluster.add_node(NodeId(name), gpus)
        self.visible[NodeId(name)] = gpus

    def tell(self, body: Fact | Move) -> None:
        """What a person asks of the arbiter."""
        if self.arbiter is not None:
            self.arbiter.inbox.append(body)

    def cancel(self, job: str) -> None:
        """What `ebbtide cancel` does."""
        if self.arbiter is not None:
            self.arbiter.inbox.append(CancelJob(JobName(job), "test"))

    def run(self, duration_s: float, tick_s: float = 0.2) -> list[Event]:
        """Let time pass; every tick is checked."""
        events: list[Event] = []
        end_s = self.clock.now_s + duration_s
        while self.clock.now_s < end_s:
            self.clock.run_for(tick_s)
            if self.arbiter is not None:
                found = self.arbiter.tick()
                events += found
                self.events += found
                self._check(found)
        return events

    def _check(self, events: tuple[Event, ...]) -> None:
        state, cluster = self.state, self.cluster
        assert not violations(state), self.story()
        assert not cluster.machines.faults, self.story(cluster.machines.faults)
        granted: set[str] = set()
        for event in events:
            if isinstance(event.body, GrantJob | GrantSeat):
                granted.update(event.body.slots)
            elif isinstance(event.body, ResumeJob):
                granted.update(state.jobs[event.body.job].gang)
            elif isinstance(event.body, WakeSeat):
                granted.update(state.seats[event.body.seat].slots)
        self._check_warm(state)
        for slot in cluster.machines.slots:
            if slot not in state.slots:
                continue  # its node has just joined
            record = state.slots[slot]
            present = cluster.machines.memory[slot]
            assert len(present) <= 1, self.story(f"{present} on {slot}")
            assert not (slot in granted and present), self.story(f"granted {slot} with {present} on it")
            if record.state in (SlotState.LEASED, SlotState.OPENING):
                assert all(p.workload == record.occupant for p in present), self.story(f"{present} on {record}")
            if record.state is SlotState.LEASED and self._fenced(state, str(record.occupant)):
                assert cluster.scheduler.logical.get(slot) == "fence", self.story(
                    f"{slot}: {cluster.scheduler.logical.get(slot)}"
                )

    def _check_warm(self, state: PoolState) -> None:
        """A warm replica has nothing on any GPU, and no request is at it."""
        actors = {a.name: a for found in self.cluster.serve.actors.values() for a in found}
        for seat in state.seats.values():
            actor = actors.get(seat.replica)
            if seat.state is not SeatState.WARM or actor is None:
                continue
            assert not any(actor.engine in there for there in self.cluster.machines.memory.values()), self.story(actor)
            assert not actor.inflight and actor.refuses, self.story(f"a request may come to {actor}")

    def _fenced(self, state: PoolState, occupant: str) -> bool:
        """Whether the occupant leaves the logical GPUs of its slots to the fences."""
        return occupant in state.jobs or (occupant in state.seats and state.seats[SeatId(occupant)].fenced)

    def story(self, why: object = "") -> str:
        """What to print when something is wrong."""
        lines = [f"seed {self.seed}, t={self.clock.now_s:.1f}: {why}"]
        lines += [f"  {e.at_s:.1f} {e.id} {e.body}" for e in self.events[-60:]]
        state = self.state
        lines += [f"  {record}" for record in state.slots.values()]
        lines += [
            f"  {j.spec.name} {j.state} {j.gang} e{j.epoch}/{j.gang_epoch} d{j.directive}" for j in state.jobs.values()
        ]
        lines += [f"  {s}" for s in state.seats.values() if s.state is not SeatState.COLD]
        for seat, actors in self.cluster.serve.actors.items():
            lines += [f"  actor {seat} {a.name} {a.slots} ready={a.ready} stopping={a.stopping}" for a in actors]
        lines.append(f"  logical {self.cluster.scheduler.logical} fences {self.cluster.scheduler.fences}")
        lines.append(f"  locks { {s: (p.workload, p.epoch, p.rank) for s, p in self.cluster.machines.locks.items()} }")
        for driver in self.drivers.values():
            gang = driver.gang
            ranks = [(r.phase.value, r.directive, r.lease_epoch) for r in gang.ranks] if gang else None
            lines.append(f"  driver {driver.job} alive={driver.alive} {ranks} epoch {driver.gang_epoch}")
        if self.arbiter is not None:
            lines.append(f"  waits {self.arbiter.waits}")
        lines.append(f"  held { {g.name: {e: len(q) for e, q in g.held.items()} for g in self.gateways} }")
        return "\n".join(lines)


def moves(events: list[Event]) -> list[Event]:
    """The decisions among ``events``."""
    return [event for event in events if isinstance(event.body, MOVES)]
