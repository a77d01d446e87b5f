"""The arbiter's pure core in a closed loop with the fake cluster, under a virtual clock; used by several tests.

`Loop` does what the real arbiter's shell does around `step` and `instruct`, without Ray and without a ledger on disk,
and checks after every tick the promises in the ledger and in the cluster's physical truth.
"""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Protocol, get_args

from ebbtide.ledger.errors import LedgerError
from ebbtide.pool.events import (
    CancelJob,
    EndpointDeclared,
    Event,
    Fact,
    GrantJob,
    GrantSeat,
    JobSubmitted,
    Move,
    ResumeJob,
    WakeSeat,
)
from ebbtide.pool.handlers.apply import replay
from ebbtide.pool.ids import EndpointName, JobName, NodeId, SeatId, SlotId
from ebbtide.pool.rules.promises import violations
from ebbtide.pool.spec import EndpointSpec, JobSpec, WorkloadClass
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from ebbtide_autoscaler.cluster.size import SizeConfig
from ebbtide_autoscaler.core.observe.observation import Limits, Observation
from ebbtide_autoscaler.core.plan.inputs import Memory, PolicyConfig
from ebbtide_autoscaler.core.tick.tick import TickResult, TickSettings, World
from ebbtide_testing.cluster.fake_cluster import FakeCluster
from ebbtide_testing.cluster.fake_gang import FakeDriver
from ebbtide_testing.cluster.fake_gateway import FakeGateway
from ebbtide_testing.cluster.fake_link import FakeLink, Weather
from ebbtide_testing.cluster.virtual_clock import VirtualClock
from tests.autoscaler.sim_arbiter import Arbiter, Died
from tests.autoscaler.sim_ledger import SimLedger
from tests.autoscaler.sim_provider import SimProvider

__all__ = ["KNOBS", "Arbiter", "Loop", "a_job", "an_endpoint", "moves"]

SHM = "/dev/shm"
KNOBS = TickSettings(
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


class Judge(Protocol):
    """Who looks at each decision."""

    def judge(self, now_s: float, before: World, result: TickResult, seen: Observation, config: PolicyConfig) -> None:
        """Raise AssertionError for one that breaks a promise."""

    def found(self, state: PoolState, events: Sequence[Event]) -> None:
        """A successor finds ``events`` in the ledger, after ``state``, of an arbiter that died as it wrote them."""


class Loop:
    """The pool: a cluster, its traffic, its jobs, and the arbiter that is alive or dead."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: dict[str, int] | None = None,
        endpoints: tuple[EndpointSpec, ...] = (an_endpoint(),),
        knobs: TickSettings = KNOBS,
        host_bytes: int = 1000,
        on_disk: bool = False,
        referee: Judge | None = None,
        size: SizeConfig | None = None,
    ) -> None:
        """``on_disk``: with a ledger of real files, which `close` removes. ``size``: all nodes but the first may go."""
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
        self.provider = SimProvider(self, size, set(list(self.visible)[1:])) if size is not None else None
        self.restorable: set[str] = set()
        self.no_fences = False  # as while a pool only observes
        self.closing = ""  # who takes the pool down
        self.drivers: dict[str, FakeDriver] = {}
        self.events: list[Event] = []
        self.refused: tuple[object, ...] = ()
        self.referee = referee
        self.skew_s = 0.0  # by so much the arbiter's clock is wrong
        self.blind = False  # nobody answers when the arbiter asks who lives
        self._folder = Path(tempfile.mkdtemp(dir=SHM if Path(SHM).is_dir() else None)) if on_disk else None
        self.ledger = SimLedger(self._folder) if self._folder is not None else None
        self._paused: Arbiter | None = None
        self._submissions: dict[JobName, JobSubmitted] = {}
        self._restores = 0
        self._last = PoolState()
        self._held = PoolState()  # that the promises were checked of last; kept, so that its id is its own
        self._checked: tuple[int, ...] = ()
        self._logical: dict[SlotId, str] = {}
        self.arbiter: Arbiter | None = None
        self.start(self.recovered() if self.ledger is not None else World(PoolState(), Memory(), 1))
        assert self.arbiter is not None
        self.arbiter.inbox += [EndpointDeclared(spec) for spec in endpoints]

    def _gpus_of(self, seat: SeatId) -> int:
        return self.specs[EndpointName(seat.rpartition("/")[0])].slots_per_replica

    @property
    def state(self) -> PoolState:
        """What the ledger says."""
        return self.arbiter.world.state if self.arbiter is not None else self._last

    @property
    def wall_s(self) -> float:
        """By the clock of the arbiter's machine, which may be wrong, and set."""
        return self.clock.now_s + self.skew_s

    @property
    def now_s(self) -> float:
        """By the arbiter."""
        return self.arbiter.now_s if self.arbiter is not None else self.wall_s

    def close(self) -> None:
        """Remove the ledger's files."""
        if self.ledger is not None and self._folder is not None:
            self.ledger.close()
            shutil.rmtree(self._folder)

    def recovered(self) -> World:
        """What the ledger says, to go on from; raises LedgerUnusable."""
        assert self.ledger is not None
        known = self.ledger.open()
        assert self.ledger.events[: len(self.events)] == self.events, self.story("an acknowledged record is gone")
        if self.referee is not None:
            self.referee.found(self.state, self.ledger.events[len(self.events) :])
        self.events = list(self.ledger.events)
        return World(known.state, known.memory, self.ledger.epoch)

    def took(self, events: tuple[Event, ...]) -> None:
        """The ledger has them."""
        self.events += events

    def start(self, world: World) -> None:
        """A new arbiter takes over."""
        self._last = world.state
        self.arbiter = self.link.arbiter = Arbiter(self, world)
        for name, body in self._submissions.items():  # who had no answer asks again
            if name not in world.state.jobs and self.drivers[name].alive:
                self.arbiter.inbox.append(body)

    def kill_arbiter(self, down_s: float) -> None:
        """SIGKILL; after ``down_s`` its successor replays the ledger."""
        if self.arbiter is None:
            return
        epoch, self._last = self.arbiter.world.arbiter_epoch, self.arbiter.world.state
        if self.ledger is None:
            assert replay(self.events) == self._last
        self.arbiter = self.link.arbiter = None

        def again() -> None:
            self.cluster.scheduler.forget_asked()
            if self.ledger is None:
                self.start(World(replay(self.events), Memory(), epoch + 1))
                return
            try:
                self.start(self.recovered())
            except LedgerError:
                self.clock.call_later(2.0, again)

        self.clock.call_later(down_s, again)

    def doom_arbiter(self, death: str) -> bool:
        """It dies amid its next tick; see `sim_arbiter.DEATHS`."""
        if self.arbiter is None or self._paused is not None:
            return False
        self.arbiter.doom = death
        return True

    def pause_arbiter(self, for_s: float) -> bool:
        """SIGSTOP: nothing reaches it, and it does not notice."""
        paused = self.arbiter
        if paused is None or self._paused is not None:
            return False
        self._paused, self.link.arbiter = paused, None

        def wakes() -> None:
            self._paused = None
            if self.arbiter is paused:
                self.link.arbiter = paused

        self.clock.call_later(for_s, wakes)
        return True

    def submit(self, spec: JobSpec, *, total: int = 10**9) -> FakeDriver:
        """Start a driver for ``spec``."""
        assert self.arbiter is not None
        incarnation = f"{spec.name}-{len(self.events)}"
        self._submissions[spec.name] = JobSubmitted(spec, incarnation)
        self.arbiter.inbox.append(self._submissions[spec.name])
        self.arbiter.forget(spec.name)
        driver = FakeDriver(self.cluster, self.random, spec.name, incarnation, total=total)
        self.drivers[spec.name] = driver
        return driver

    def restore(self, job: JobName) -> None:
        """A driver started from the archived submission registers its job."""
        known = self.state.jobs[job]
        if self.arbiter is None or known.state is not JobState.ENDED:
            return
        self._restores += 1  # an arbiter that dies may have had it restored already: each has an identity of its own
        incarnation = f"{job}-again-{self._restores}"
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
            if self.arbiter is not None and self._paused is None:
                try:
                    found = self.arbiter.tick()
                except Died:
                    self._dies()
                    continue
                events += found
                self._check(found)
        return events

    def _dies(self) -> None:
        """The arbiter is dead amid a tick; what it had carried out has happened."""
        if self.ledger is not None:
            self.ledger.close()
        self.kill_arbiter(self.random.uniform(0.2, 6.0))

    def _check(self, events: tuple[Event, ...]) -> None:
        """All promises, in the ledger and physically; what is as it was when they held last holds still."""
        state, machines, logical = self.state, self.cluster.machines, self.cluster.scheduler.logical
        assert not machines.faults, self.story(machines.faults)
        self._check_warm(state)
        if self._checked == (id(state), machines.changes) and self._logical == logical:
            return
        self._held, self._checked, self._logical = state, (id(state), machines.changes), dict(logical)
        assert not violations(state), self.story(violations(state))
        granted: set[str] = set()
        for event in events:
            if isinstance(event.body, GrantJob | GrantSeat):
                granted.update(event.body.slots)
            elif isinstance(event.body, ResumeJob):
                granted.update(state.jobs[event.body.job].gang)
            elif isinstance(event.body, WakeSeat):
                granted.update(state.seats[event.body.seat].slots)
        for slot in machines.slots:
            if slot not in state.slots:
                continue  # its node has just joined
            record = state.slots[slot]
            present = machines.memory[slot]
            assert len(present) <= 1, self.story(f"{present} on {slot}")
            assert not (slot in granted and present), self.story(f"granted {slot} with {present} on it")
            if record.state in (SlotState.LEASED, SlotState.OPENING):
                assert all(p.workload == record.occupant for p in present), self.story(f"{present} on {record}")
            if record.state is SlotState.LEASED and self._fenced(state, str(record.occupant)):
                assert logical.get(slot) == "fence", self.story(f"{slot}: {logical.get(slot)}")

    def _check_warm(self, state: PoolState) -> None:
        """A warm replica has nothing on any GPU, and no request is at it."""
        warm = [seat for seat in state.seats.values() if seat.state is SeatState.WARM]
        for seat in warm:
            actor = self.cluster.serve.actor(seat.replica)
            if actor is None:
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
    return [event for event in events if isinstance(event.body, get_args(Move))]
