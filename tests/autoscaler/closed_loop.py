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
    EndpointDeclared,
    Event,
    Fact,
    GrantJob,
    GrantSeat,
    JobEnded,
    JobSubmitted,
    Move,
    NodeFound,
    ResumeJob,
    Slot,
    SlotFound,
)
from ebbtide.pool.ids import EndpointName, JobName, NodeId, SeatId, slot_id
from ebbtide.pool.promises import violations
from ebbtide.pool.spec import EndpointSpec, JobSpec, WorkloadClass
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from ebbtide.testing.fake_cluster import FakeCluster
from ebbtide.testing.fake_gang import FakeDriver
from ebbtide.testing.fake_gateway import FakeGateway
from ebbtide.testing.fake_link import FakeLink, Weather
from ebbtide.testing.virtual_clock import VirtualClock
from ebbtide_autoscaler.instruct import (
    CloseSeat,
    DropFence,
    HoldFence,
    KillHolder,
    KillReplica,
    OpenSeat,
    instruct,
)
from ebbtide_autoscaler.observe import directive, lease, orders, routes, unheard
from ebbtide_autoscaler.seen import FenceView, Heard, Limits, Seen
from ebbtide_autoscaler.signals import Memory, PolicyConfig
from ebbtide_autoscaler.step import MOVES, Knobs, World, step

MAY_HAVE_LEASE = frozenset({SeatState.PLACING, SeatState.STARTING, SeatState.READY})
LIVING_S = 0.25  # as the real shell
SETTLING_S = 10.0
KNOBS = Knobs(
    policy=PolicyConfig(restart_cost_s=10.0, grow_after_s=5.0),
    limits=Limits(placement_timeout_s=15.0, start_timeout_s=40.0, silence_s=10.0),
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
        self.table = RoutingTable()
        self._looked_s = 0.0

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
        record = self.world.state.seats.get(seat)
        draining = record is not None and record.state in (SeatState.DRAINING, SeatState.STOPPING)
        return ReplicaOrders(draining=draining)

    def seat_lease(self, seat: str, replica: str, node: str, gpu_ids: tuple[int, ...]) -> Lease | None:
        state = self.world.state
        record = state.seats.get(SeatId(seat))
        if record is None or record.state not in MAY_HAVE_LEASE:
            return None
        if {slot_id(NodeId(node), index) for index in gpu_ids} != set(record.slots):
            return None
        return lease(state, seat, record.epoch, record.slots)

    def report_gateway(self, report: GatewayReport) -> RoutingTable | None:
        self.gateways[report.gateway] = Heard(self.loop.clock.now_s, report)
        return None if self._settling(self.seen()) else self.table

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
        for slot in cluster.slots:
            refused = cluster.refused_until_s.get(slot, 0.0) > now_s
            fences[slot] = FenceView.REFUSED if refused else FenceView.ABSENT
            if slot in cluster.fences:
                fences[slot] = FenceView.HELD
        return Seen(
            started_s=self.started_s,
            ranks=dict(self.ranks),
            controllers=dict(self.controllers),
            replicas=dict(self.replicas),
            gateways=dict(self.gateways),
            agents=dict(self.agents),
            fences=fences,
            fencing=cluster.fencing(),
            living=dict(self.living),
            living_at_s=self.living_at_s,
            routes_version=self.table.version,
        )

    def tick(self) -> tuple[Event, ...]:
        """Observe, decide, act."""
        clock = self.loop.clock
        if clock.now_s - self._looked_s >= LIVING_S:
            self._looked_s = clock.now_s
            self._look(clock.now_s, self.loop.cluster.living())
        seen = self.seen()
        bodies, self.inbox = tuple(self.inbox), []
        knobs = replace(self.loop.knobs, frozen=self.loop.knobs.frozen or self._settling(seen))
        result = step(self.world, seen, bodies, clock.now_s, knobs)
        self.world, self.waits = result.world, dict(result.decision.waits)
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

    def _carry_out(self, seen: Seen) -> None:
        cluster = self.loop.cluster
        to_hold: dict[NodeId, list[str]] = {}
        for instruction in instruct(self.world.state, seen, self.loop.clock.now_s):
            match instruction:
                case HoldFence(slot):
                    to_hold.setdefault(NodeId(slot.rpartition(":")[0]), []).append(slot)
                case DropFence(slot):
                    cluster.drop_fence(slot)
                case OpenSeat(seat):
                    cluster.set_target(seat, 1)
                case CloseSeat(seat):
                    cluster.set_target(seat, 0)
                case KillReplica(_, name):
                    actor = cluster.actor(name)
                    if actor is not None:
                        cluster.kill_actor(actor)
                case KillHolder(slot, epoch):
                    cluster.kill_holder(slot, epoch)
        for node, slots in to_hold.items():
            cluster.hold_fences(node, tuple(slots))  # type: ignore[arg-type]


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
        self.drivers: dict[str, FakeDriver] = {}
        self.events: list[Event] = []
        self.refused: tuple[object, ...] = ()
        self.restarts = 0
        self.arbiter: Arbiter | None = None
        self.start(World(PoolState(), Memory(), 1))
        assert self.arbiter is not None
        for node, gpus in (nodes or {"n0": 3}).items():
            self.arbiter.inbox.append(NodeFound(NodeId(node), host_bytes))
            for index in range(gpus):
                name = slot_id(NodeId(node), index)
                self.arbiter.inbox.append(SlotFound(Slot(name, NodeId(node), index)))
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
            self.cluster.forget_asked()
            self.start(World(replay(self.events), Memory(), epoch + 1))

        self.clock.call_later(down_s, again)

    def submit(self, spec: JobSpec, *, total: int = 10**9) -> FakeDriver:
        """Start a driver for ``spec``."""
        assert self.arbiter is not None
        incarnation = f"{spec.name}-{len(self.events)}"
        self.arbiter.inbox.append(JobSubmitted(spec, incarnation))
        self.arbiter.controllers.pop(spec.name, None)
        for key in [key for key in self.arbiter.ranks if key[0] == spec.name]:
            del self.arbiter.ranks[key]
        driver = FakeDriver(self.cluster, self.random, spec.name, incarnation, total=total)
        self.drivers[spec.name] = driver
        return driver

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
        assert not cluster.faults, self.story(cluster.faults)
        granted: set[str] = set()
        for event in events:
            if isinstance(event.body, GrantJob | GrantSeat):
                granted.update(event.body.slots)
            elif isinstance(event.body, ResumeJob):
                granted.update(state.jobs[event.body.job].gang)
        for slot in cluster.slots:
            record = state.slots[slot]
            present = cluster.memory[slot]
            assert len(present) <= 1, self.story(f"{present} on {slot}")
            assert not (slot in granted and present), self.story(f"granted {slot} with {present} on it")
            if record.state in (SlotState.LEASED, SlotState.OPENING):
                assert all(p.workload == record.occupant for p in present), self.story(f"{present} on {record}")
            if record.occupant in state.jobs and record.state is SlotState.LEASED:
                assert cluster.logical.get(slot) == "fence", self.story(f"{slot}: {cluster.logical.get(slot)}")

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
        for seat, actors in self.cluster.actors.items():
            lines += [f"  actor {seat} {a.name} {a.slots} ready={a.ready} stopping={a.stopping}" for a in actors]
        lines.append(f"  logical {self.cluster.logical} fences {self.cluster.fences}")
        lines.append(f"  locks { {s: (p.workload, p.epoch, p.rank) for s, p in self.cluster.locks.items()} }")
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
