"""A model of Ray Serve as the arbiter uses it: a target of 0 or 1 per seat, and the replicas' actors that follow.

What it takes from the runs on Ray (facts: 2.60): Serve starts a dead replica again at once while its target is 1, bound
to the same node even when that is dead; a pending actor whose target went to 0 haunts for its shutdown time and may
still grab a GPU; an engine's process outlives its actor by a moment and keeps the slot lock until it is gone.

Not modelled: Serve's own controller.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random

from ebbtide.client.messages import Lease, RankLoad, ReplicaOrders, ReplicaPhase, ReplicaReport
from ebbtide.pool.ids import NodeId, SeatId, SlotId, slot_id
from ebbtide_testing.cluster.fake_link import FakeLink
from ebbtide_testing.cluster.fake_machines import FakeMachines, Process
from ebbtide_testing.cluster.fake_scheduler import Claim, FakeScheduler
from ebbtide_testing.cluster.virtual_clock import VirtualClock

LEASE_WAIT_S = 30.0  # a replica without a lease gives up after this


@dataclass(eq=False, slots=True)
class Actor:
    """One replica's actor."""

    name: str
    seat: SeatId
    claim: Claim
    lease: Lease | None = None
    engine: Process | None = None
    ready: bool = False
    stopping: bool = False
    alive: bool = True
    inflight: int = 0
    refuses: bool = False
    error: str = ""
    permanent: bool = False  # the error is
    asked_s: float = 0.0
    placed: bool = False
    phase: ReplicaPhase | None = None  # while it parks, is parked or wakes

    @property
    def slots(self) -> tuple[SlotId, ...]:
        """Its logical GPUs, () while it is pending, and always if it leaves them to the fences."""
        return self.claim.slots


class FakeServe:
    """One deployment per seat."""

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        link: FakeLink,
        machines: FakeMachines,
        scheduler: FakeScheduler,
        gpus_of: Callable[[SeatId], int],
    ) -> None:
        self.actors: dict[SeatId, list[Actor]] = defaultdict(list)
        self.start_s = (1.0, 4.0)  # of a replica's process
        self.load_s = (1.0, 6.0)  # of its engine
        self.load_fails = False  # every engine runs out of memory instead
        self.refuses = False  # no engine takes what it is told
        self.never_up = False  # actors are placed, and their processes never come up
        self.park_s = (0.1, 2.0)  # to give the GPUs up, and to take them back
        self.park_bytes = 0  # host memory that a replica needs to park; 0: no engine can
        self.park_fails = 0.0  # how often an engine fails to park or to wake
        self._clock, self._random, self._link = clock, random, link
        self._machines, self._scheduler, self._gpus_of = machines, scheduler, gpus_of
        self._targets: dict[SeatId, int] = {}
        self._bound: dict[SeatId, NodeId] = {}  # where a seat's next replica goes
        self._fenced: dict[SeatId, bool] = {}  # whether it takes no logical GPU
        self._numbers = count()

    def set_target(self, seat: SeatId, target: int, node: NodeId | None = None, *, fenced: bool = False) -> None:
        """What the arbiter tells Serve; it is in force a moment later. ``fenced``: it takes no logical GPU."""
        if node is not None:
            self._bound[seat] = node
            self._fenced[seat] = fenced
        if self._targets.get(seat, 0) == target:
            return
        self._targets[seat] = target
        self._clock.call_later(self._random.uniform(0.01, 0.3), lambda: self._reconcile(seat))

    def living(self) -> dict[SeatId, tuple[str, ...]]:
        """Replica actors that exist, pending ones too."""
        return {seat: tuple(a.name for a in actors if a.alive) for seat, actors in self.actors.items()}

    def actor(self, name: str) -> Actor | None:
        """A living actor by name."""
        return next((a for actors in self.actors.values() for a in actors if a.name == name and a.alive), None)

    # ---- actors come and go

    def _reconcile(self, seat: SeatId) -> None:
        """Serve's control loop for one deployment."""
        actors = self.actors[seat]
        going = [a for a in actors if a.alive and not a.stopping]
        if self._targets.get(seat, 0) == 0:
            for actor in going:
                actor.stopping = True
                self._clock.call_later(self._random.uniform(0.2, 1.5), lambda actor=actor: self._leaves(actor))  # type: ignore[misc]
        elif not going:
            self._create(seat)

    def _create(self, seat: SeatId) -> None:
        name = f"{seat}#{next(self._numbers)}"

        def placed() -> None:
            actor.placed = True
            if self.never_up:
                return
            self._clock.call_later(self._random.uniform(*self.start_s), lambda: self._up(actor))

        gpus = 0 if self._fenced.get(seat) else self._gpus_of(seat)
        actor = Actor(name, seat, Claim(name, self._bound[seat], gpus, placed))
        self.actors[seat].append(actor)
        self._scheduler.claim(actor.claim)

    def _leaves(self, actor: Actor) -> None:
        """A graceful stop: the engine first, then the actor."""
        if actor.alive and actor.engine is not None:
            self._machines.kill(actor.engine)
        self.kill_actor(actor)

    def kill_actor(self, actor: Actor) -> None:
        """The actor's process dies; its engine notices by the closed pipe, Ray frees the GPU at once."""
        if not actor.alive:
            return
        actor.alive = False
        self.actors[actor.seat].remove(actor)
        if actor.engine is not None:
            engine = actor.engine
            self._clock.call_later(self._random.uniform(0.05, 2.0), lambda: self._machines.kill(engine))
        self._scheduler.end(actor.claim)
        self._clock.call_later(self._random.uniform(0.1, 1.0), lambda: self._reconcile(actor.seat))

    def kill_all(self, node: NodeId) -> None:
        """Every actor that has GPUs on a node; one that is pending waits for the node for ever."""
        for actor in [a for found in self.actors.values() for a in found if a.claim.node == node and a.placed]:
            self.kill_actor(actor)

    # ---- one actor's life

    def _up(self, actor: Actor) -> None:
        """The actor's process runs: it asks for its lease until it has one."""
        if not actor.alive:
            return
        actor.asked_s = self._clock.now_s
        self._ask_lease(actor)

    def _ask_lease(self, actor: Actor) -> None:
        if not actor.alive:
            return
        if self._clock.now_s - actor.asked_s > LEASE_WAIT_S:
            self.kill_actor(actor)
            return
        gpu_ids = tuple(int(slot.rpartition(":")[2]) for slot in actor.slots)

        def answered(lease: Lease | None) -> None:
            if not actor.alive:
                return
            if lease is None:
                self._clock.call_later(0.2, lambda: self._ask_lease(actor))
                return
            actor.lease = lease
            self._load(actor, lease)
            self._beats(actor)

        self._link.call(lambda arbiter: arbiter.seat_lease(actor.seat, actor.name, actor.claim.node, gpu_ids), answered)

    def _load(self, actor: Actor, lease: Lease) -> None:
        engine = actor.engine = self._machines.spawn(actor.seat, lease.epoch, actor.claim.node)
        engine.on_death = lambda: self.kill_actor(actor)
        here = [slot_id(NodeId(one.node), one.index) for one in lease.slots]
        left = set(here)

        def taken(slot: SlotId, came: bool) -> None:
            left.discard(slot)
            if not came:
                self._machines.kill(engine)
            elif not left:
                self._clock.call_later(self._random.uniform(*self.load_s), loaded)

        def loaded() -> None:
            if (self.load_fails or self.refuses) and engine.alive:
                actor.error = "no such value" if self.refuses else "out of memory"
                actor.permanent = self.refuses
            actor.ready = engine.alive and actor.alive and not actor.error

        for slot in here:
            self._machines.take(engine, slot, 20.0, lambda came, slot=slot: taken(slot, came))  # type: ignore[misc]

    # ---- parking and waking

    def _obey(self, actor: Actor, orders: ReplicaOrders) -> None:
        """Order by order, each once: the same comes until its effect is reported."""
        if not actor.alive or actor.engine is None or actor.lease is None or actor.stopping:
            return
        if orders.park and actor.phase is None and actor.ready:
            actor.phase, actor.ready = ReplicaPhase.PARKING, False
            self._clock.call_later(self._random.uniform(*self.park_s), lambda: self._parked(actor))
        elif orders.wake is not None and actor.phase is ReplicaPhase.PARKED:
            actor.phase = ReplicaPhase.WAKING
            actor.lease = orders.wake
            self._clock.call_later(self._random.uniform(*self.park_s), lambda: self._wake(actor))

    def _parked(self, actor: Actor) -> None:
        assert actor.lease is not None and actor.engine is not None
        if actor.inflight and actor.alive:  # of a gateway that nobody has heard of lately
            self._clock.call_later(0.2, lambda: self._parked(actor))
            return
        if self._random.random() < self.park_fails:
            actor.error = "it does not let go"
        if not actor.error:
            for slot in actor.lease.slots:
                self._machines.release(actor.engine, slot_id(NodeId(slot.node), slot.index))
            actor.phase = ReplicaPhase.PARKED

    def _wake(self, actor: Actor) -> None:
        assert actor.lease is not None and actor.engine is not None
        if self._random.random() < self.park_fails:
            actor.error = "its state does not come back"
            return
        actor.engine.epoch = actor.lease.epoch
        left = {slot_id(NodeId(one.node), one.index) for one in actor.lease.slots}

        def taken(slot: SlotId, came: bool) -> None:
            left.discard(slot)
            if not came:
                actor.error = f"{slot} is held by somebody else"
            elif not left and actor.engine is not None and actor.engine.alive:
                actor.phase, actor.ready = None, True

        for slot in tuple(left):
            self._machines.take(actor.engine, slot, 5.0, lambda came, slot=slot: taken(slot, came))  # type: ignore[misc]

    def _beats(self, actor: Actor) -> None:
        if not actor.alive:
            return
        phase = actor.phase or (ReplicaPhase.READY if actor.ready else ReplicaPhase.STARTING)
        if actor.stopping:
            phase = ReplicaPhase.STOPPING
        report = ReplicaReport(
            seat=actor.seat,
            replica=actor.name,
            node=actor.claim.node,
            pid=0,
            lease_epoch=actor.lease.epoch if actor.lease else 0,
            phase=phase,
            url=actor.name if actor.ready else "",
            inflight=actor.inflight,
            error=actor.error,
            permanent=actor.permanent,
            stages_s={"lease": 0.1, "engine": 1.0} if actor.ready else {},
            loads=(RankLoad(0, "ebbtide_flat", {"buffered": 1000}, 0.1),) if actor.ready else (),
            park_bytes=self.park_bytes,
            cannot_park="" if self.park_bytes else "no engine can",
        )

        def answered(orders: ReplicaOrders | None) -> None:
            if orders is not None:
                actor.refuses = orders.draining
                self._obey(actor, orders)
            self._clock.call_later(0.3, lambda: self._beats(actor))

        self._link.call(lambda arbiter: arbiter.report_replica(report), answered)
