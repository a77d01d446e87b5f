"""A pool of any size in mid-life, made for measuring: jobs of all classes, replicas, parked gangs, and who waits.

Per node of 8 slots, in turns: three nodes that train, two that serve one slot a replica, one that serves two slots a
replica, one that is half free, and one whose gang is parked while replicas sit on half of its slots.
"""

from dataclasses import dataclass, replace
from random import Random

from ebbtide.client.messages import (
    AgentAnswer,
    AgentReport,
    ControllerPhase,
    ControllerReport,
    GatewayReport,
    LockHolder,
    RankPhase,
    RankReport,
    ReplicaPhase,
    ReplicaReport,
    Traffic,
)
from ebbtide.pool.events import Slot
from ebbtide.pool.ids import EndpointName, Epoch, JobName, NodeId, SeatId, SlotId, seat_id, slot_id
from ebbtide.pool.rules.promises import check
from ebbtide.pool.spec import EndpointSpec, JobSpec, WorkloadClass
from ebbtide.pool.state import EndpointRecord, JobRecord, PoolState, SeatRecord, SlotRecord
from ebbtide.pool.transitions import OCCUPIED, JobState, SeatState, SlotState
from ebbtide_autoscaler.core.observe.observation import FenceView, Observation, Timestamped
from ebbtide_autoscaler.core.plan.inputs import EndpointMemory, Memory
from ebbtide_autoscaler.core.tick.tick import World

GPUS = 8  # per node: the usual server
NOW_S = 1_000_000.0
OLD_S = NOW_S - 3600.0  # since when everything has stood as it does
REPLICAS = 8  # per endpoint, about: its name stands for a model of a team
CLASSES = (WorkloadClass.PREEMPTIBLE, WorkloadClass.PREEMPTIBLE, WorkloadClass.SEMI_PREEMPTIBLE)


@dataclass(frozen=True, slots=True)
class LargePool:
    """The world, what is seen of it, and the endpoints that have no replica."""

    world: World
    seen: Observation
    cold: tuple[EndpointName, ...]


def large_pool(slots: int, *, workloads: int = 0) -> LargePool:
    """A pool of ``slots`` slots, a multiple of 8; nothing has to move.

    With ``workloads`` so many jobs wait that these and all others, endpoints too, are as many.
    """
    maker = _Maker()
    for number in range(slots // GPUS):
        maker.node(number)
    maker.cold_endpoints(max(2, slots // 100))
    known = len(maker.jobs) + len(maker.endpoints)
    maker.waiting_jobs(max(1, workloads - known if workloads else slots // 200), needing=slots // 2)
    state = maker.state()
    check(state)
    memory = Memory({name: EndpointMemory(aim=maker.replicas.get(name, 0)) for name in maker.endpoints})
    return LargePool(World(state, memory, 1), maker.seen(state), tuple(maker.cold))


def with_demand(pool: LargePool, random: Random, surging: float) -> Observation:
    """Fresh gateway reports: every endpoint as busy as its replicas serve, a share of the cold ones with held requests.

    Args:
        pool: what it is about.
        random: where the numbers come from.
        surging: the share of cold endpoints that somebody asks for, 0..1.
    """
    traffic = {}
    for name, remembered in pool.world.memory.endpoints.items():
        busy = remembered.aim * 4
        arrivals = random.randrange(1_000_000)
        held = random.randrange(1, 9) if name in pool.cold and random.random() < surging else 0
        last_s = NOW_S if busy or held else 0.0
        ttft_s = tuple(random.uniform(0.05, 0.4) for _ in range(20)) if busy else ()
        traffic[str(name)] = Traffic(
            arrivals=arrivals, inflight=busy, held=held, last_arrival_s=last_s, recent_ttft_s=ttft_s
        )
    report = GatewayReport("g0", "n0", OLD_S, "", pool.seen.routes_version, traffic)
    return replace(pool.seen, gateways={"g0": Timestamped(NOW_S, report)})


class _Maker:
    """Grows the pool node by node."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, int] = {}
        self.slots: dict[SlotId, SlotRecord] = {}
        self.jobs: dict[JobName, JobRecord] = {}
        self.seats: dict[SeatId, SeatRecord] = {}
        self.endpoints: dict[EndpointName, EndpointRecord] = {}
        self.replicas: dict[EndpointName, int] = {}
        self.cold: list[EndpointName] = []
        self._epoch = 1

    def node(self, number: int) -> None:
        """One node more; its number says what it is used for."""
        node = NodeId(f"{number:056x}")  # as long as Ray's ids
        self.nodes[node] = 64 << 30
        names = tuple(slot_id(node, index) for index in range(GPUS))
        for index, name in enumerate(names):
            self.slots[name] = SlotRecord(Slot(name, node, index, uuid=f"m{number}-{index}"), SlotState.FREE)
        kind = number % 8
        if kind <= 2:
            self._job(names, JobState.RUNNING)
        elif kind <= 4:
            for name in names:
                self._seat("one", (name,))
        elif kind == 5:
            for place in range(0, GPUS, 2):
                self._seat("two", names[place : place + 2])
        elif kind == 6:
            self._job(names[: GPUS // 2], JobState.RUNNING)
        else:
            self._job(names, JobState.PARKED)
            for name in names[: GPUS // 2]:
                self._seat("one", (name,))

    def cold_endpoints(self, count: int) -> None:
        """Endpoints that nobody has asked for."""
        for number in range(count):
            name = self._endpoint(f"cold-{number}", 1 + number % 2)
            self.cold.append(name)

    def waiting_jobs(self, count: int, *, needing: int) -> None:
        """Jobs that need more than there is."""
        for number in range(count):
            self._put_job(f"waits-{number}", (), JobState.WAITING, workers_min=needing, workers_max=needing)

    def _job(self, slots: tuple[SlotId, ...], state: JobState) -> None:
        self._put_job(f"job-{len(self.jobs)}", slots, state, workers_min=len(slots) // 2, workers_max=len(slots))
        if state is JobState.RUNNING:
            self._occupy(slots, f"job-{len(self.jobs) - 1}")

    def _put_job(
        self, name: str, slots: tuple[SlotId, ...], state: JobState, *, workers_min: int, workers_max: int
    ) -> None:
        spec = JobSpec(
            name=JobName(name),
            owner="o",
            team="t",
            workload_class=CLASSES[len(self.jobs) % len(CLASSES)] if slots else WorkloadClass.PREEMPTIBLE,
            priority=len(self.jobs) % 3,
            workers_min=workers_min,
            workers_max=workers_max,
            grace_s=60.0,
            min_runtime_s=30.0,
            max_preemptions_per_h=10,
            in_place=True,
            host_bytes_per_worker=1 << 30,
        )
        epoch = self._next_epoch() if slots else Epoch(0)
        self.jobs[spec.name] = JobRecord(
            spec=spec,
            incarnation="i",
            state=state,
            gang=slots,
            epoch=epoch,
            gang_epoch=epoch,
            since_s=NOW_S - 1.0 if state is JobState.PARKED else OLD_S,
            submitted_s=OLD_S,
            ran_since_s=OLD_S,
            asked_s=NOW_S - 1.0 if state is JobState.PARKED else OLD_S,
            step=1000,
            durable_step=900,
        )

    def _seat(self, kind: str, slots: tuple[SlotId, ...]) -> None:
        taken = sum(count for name, count in self.replicas.items() if name.startswith(kind))
        name = self._endpoint(f"{kind}-{taken // REPLICAS}", len(slots))
        seat = seat_id(name, self.replicas.get(name, 0))
        self.replicas[name] = self.replicas.get(name, 0) + 1
        epoch = self._next_epoch()
        self.seats[seat] = SeatRecord(
            id=seat,
            endpoint=name,
            state=SeatState.READY,
            slots=slots,
            epoch=epoch,
            replica=f"r-{seat}",
            since_s=OLD_S,
            granted_s=OLD_S,
            ready_since_s=OLD_S,
            starts=1,
        )
        self._occupy(slots, str(seat), epoch)

    def _endpoint(self, text: str, slots: int) -> EndpointName:
        name = EndpointName(text)
        spec = EndpointSpec(
            name=name,
            owner="o",
            team="t",
            workload_class=WorkloadClass.NON_PREEMPTIBLE,
            priority=10,
            replicas_min=0,
            replicas_max=2 * REPLICAS,
            slots_per_replica=slots,
            target_requests=4,
            ttft_slo_s=1.0,
            tpot_slo_s=0.1,
            idle_after_s=60.0,
            down_after_s=30.0,
            min_uptime_factor=1.0,
            drain_s=30.0,
        )
        self.endpoints.setdefault(name, EndpointRecord(spec, start_s=20.0))
        return name

    def _next_epoch(self) -> Epoch:
        self._epoch += 1
        return Epoch(self._epoch)

    def _occupy(self, slots: tuple[SlotId, ...], who: str, epoch: Epoch | None = None) -> None:
        held = epoch if epoch is not None else self.jobs[JobName(who)].epoch
        for name in slots:
            before = self.slots[name]
            self.slots[name] = replace(before, state=SlotState.LEASED, occupant=JobName(who), epoch=held, since_s=OLD_S)

    def state(self) -> PoolState:
        """The ledger's view."""
        return PoolState(
            nodes=self.nodes,
            slots=self.slots,
            jobs=self.jobs,
            endpoints=self.endpoints,
            seats=self.seats,
            next_epoch=Epoch(self._epoch + 1),
        )

    def seen(self, state: PoolState) -> Observation:
        """Everybody has just reported that it is as the ledger says."""
        return Observation(
            started_s=OLD_S,
            ranks=_ranks(state),
            controllers=_controllers(state),
            replicas=_replicas(state),
            agents=_agents(state),
            fences={name: _fence(record, state) for name, record in state.slots.items()},
            living={seat: (f"actor-{seat}",) for seat in state.seats},
            living_at_s=NOW_S,
            routes_version=1,
        )


def _fence(record: SlotRecord, state: PoolState) -> FenceView:
    return FenceView.ABSENT if record.occupant in state.seats else FenceView.HELD


def _ranks(state: PoolState) -> dict[tuple[JobName, int], Timestamped[RankReport]]:
    phases = {JobState.RUNNING: RankPhase.RUNNING, JobState.PARKED: RankPhase.PARKED}
    return {
        (name, rank): Timestamped(
            NOW_S,
            RankReport(name, "i", rank, len(job.gang), "", 1000 + rank, job.epoch, 1, phases[job.state], 1000, 900),
        )
        for name, job in state.jobs.items()
        for rank in range(len(job.gang))
    }


def _controllers(state: PoolState) -> dict[JobName, Timestamped[ControllerReport]]:
    found = {}
    for name, job in state.jobs.items():
        phase = ControllerPhase.GANG if job.gang else ControllerPhase.NO_GANG
        found[name] = Timestamped(NOW_S, ControllerReport(name, "i", phase, job.epoch))
    return found


def _replicas(state: PoolState) -> dict[SeatId, Timestamped[ReplicaReport]]:
    return {
        name: Timestamped(
            NOW_S,
            ReplicaReport(
                name, seat.replica, "", 1, seat.epoch, ReplicaPhase.READY, url="http://127.0.0.1:1", inflight=4
            ),
        )
        for name, seat in state.seats.items()
    }


def _agents(state: PoolState) -> dict[NodeId, Timestamped[AgentReport]]:
    holders: dict[NodeId, dict[int, LockHolder | None]] = {node: {} for node in state.nodes}
    for record in state.slots.values():
        held = record.state in OCCUPIED
        holder = LockHolder(str(record.occupant), record.epoch, 1, 1) if held else None
        holders[record.slot.node][record.slot.index] = holder
    after = AgentAnswer("arbiter", NOW_S)
    return {node: Timestamped(NOW_S, AgentReport(node, "boot", held, after=after)) for node, held in holders.items()}
