"""A model of the parts of a Ray cluster that the arbiter moves: logical GPUs, fences, seats, slot locks, node agents.

What it takes from the runs on Ray (facts: 2.60): a freed logical GPU goes to any pending taker that fits, a fence or a
replica's actor, in no order that we may rely on; fences and replicas are bound to their nodes, not to an index; Serve
starts a dead replica again at once while its target is 1; a pending actor whose target went to 0 haunts for its
shutdown time and may still grab a GPU; an engine's process outlives its actor by a moment and keeps the slot lock until
it is gone. A node that dies takes everything on it along; Serve starts the replicas of a dead node again, bound to it.

``memory`` is the physical truth: which processes have memory on which GPU. A process takes the slot lock before it
touches its GPU, as all of ours do, and `faults` lists every time that was not enough.

Not modelled: Serve's own controller, a full machine.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random

from ebbtide.client.messages import AgentReport, Lease, LockHolder, ReplicaPhase, ReplicaReport
from ebbtide.pool.ids import NodeId, SeatId, SlotId, slot_id
from ebbtide.testing.fake_link import FakeLink
from ebbtide.testing.virtual_clock import VirtualClock

FENCE_READY_S = 2.0  # a fence that is not there by then is given up, as the arbiter's executor does
REFUSED_S = 3.0
LEASE_WAIT_S = 30.0  # a replica without a lease gives up after this


@dataclass(eq=False, slots=True)
class Process:
    """A process that takes slot locks and has memory on GPUs."""

    pid: int
    workload: str
    epoch: int
    rank: int = 0
    node: str = ""
    alive: bool = True
    on_death: Callable[[], None] | None = None


@dataclass(eq=False, slots=True)
class Actor:
    """One replica's actor; ``slots`` are its logical GPUs, () while it is pending."""

    name: str
    seat: SeatId
    gpus: int
    node: NodeId
    slots: tuple[SlotId, ...] = ()
    lease: Lease | None = None
    engine: Process | None = None
    ready: bool = False
    stopping: bool = False
    alive: bool = True
    inflight: int = 0
    refuses: bool = False
    error: str = ""
    asked_s: float = 0.0


@dataclass(eq=False, slots=True)
class Asked:
    """Fences asked for on one node, until all are there or the time is over."""

    slots: tuple[SlotId, ...]
    got: list[SlotId] = field(default_factory=list)
    over: bool = False


class FakeCluster:
    """Nodes with GPUs, and what runs on them."""

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        link: FakeLink,
        nodes: dict[str, int],
        gpus_of: Callable[[SeatId], int],
    ) -> None:
        self.clock, self.random, self.link = clock, random, link
        self._gpus_of = gpus_of
        self.slots = [slot_id(NodeId(node), index) for node, gpus in nodes.items() for index in range(gpus)]
        self.nodes = [NodeId(node) for node in nodes]
        self.logical: dict[SlotId, str] = {}  # who has the logical GPU: "fence" or an actor's name
        self.locks: dict[SlotId, Process] = {}
        self.memory: dict[SlotId, set[Process]] = defaultdict(set)
        self.fences: set[SlotId] = set()  # that the arbiter knows of
        self.refused_until_s: dict[SlotId, float] = {}
        self.targets: dict[SeatId, int] = {}
        self.bound: dict[SeatId, NodeId] = {}  # where a seat's next replica goes
        self.processes: list[Process] = []
        self.actors: dict[SeatId, list[Actor]] = defaultdict(list)
        self.faults: list[str] = []
        self.silent_agents: set[NodeId] = set()
        self.start_s = (1.0, 4.0)  # of a replica's process
        self.load_s = (1.0, 6.0)  # of its engine
        self.load_fails = False  # every engine runs out of memory instead
        self._asked: dict[NodeId, Asked] = {}
        self._dropping: set[SlotId] = set()
        self._waiting: dict[SlotId, list[Callable[[], None]]] = defaultdict(list)
        self._strangers: list[float] = []
        self._pids = count(100)
        self._numbers = count()
        for node in self.nodes:
            self._agent_beats(node)

    # ---- nodes

    def lose_node(self, node: NodeId) -> None:
        """The machine dies, with all that is on it."""
        self.nodes.remove(node)
        asked = self._asked.pop(node, None)
        if asked is not None:
            asked.over = True
        for process in [p for p in self.processes if p.node == node]:
            self.kill(process)
        for actor in [a for found in self.actors.values() for a in found if a.node == node and a.slots]:
            self.kill_actor(actor)
        for slot in [slot for slot in self.slots if slot.startswith(f"{node}:")]:
            self.slots.remove(slot)
            self.logical.pop(slot, None)
            self.fences.discard(slot)

    def add_node(self, node: NodeId, gpus: int) -> None:
        """A machine joins; one that comes back has a new id."""
        self.nodes.append(node)
        self.slots += [slot_id(node, index) for index in range(gpus)]
        self._agent_beats(node)
        self._place()

    # ---- fences

    def fencing(self) -> frozenset[NodeId]:
        """Nodes on which fences are being asked for."""
        return frozenset(self._asked)

    def hold_fences(self, node: NodeId, slots: tuple[SlotId, ...]) -> None:
        """Ask for the fences of ``slots``; which GPUs they get is found out by a probe."""
        if node in self._asked or node not in self.nodes:
            return
        asked = self._asked[node] = Asked(slots)

        def done() -> None:
            if asked.over:
                return
            asked.over = True
            self._asked.pop(node, None)
            for slot in asked.got:
                if slot in asked.slots:
                    self.fences.add(slot)
                else:
                    self._free(slot)
            for slot in asked.slots:
                if slot not in self.fences:
                    self.refused_until_s[slot] = self.clock.now_s + REFUSED_S

        def probe() -> None:
            self.clock.call_later(self.random.uniform(0.05, 1.0), done)

        self.clock.call_later(FENCE_READY_S, probe)
        self.clock.call_later(self.random.uniform(0.0, 0.1), self._place)

        def early() -> None:
            if len(asked.got) == len(asked.slots):
                done()

        self.clock.call_later(self.random.uniform(0.2, 0.5), early)

    def drop_fence(self, slot: SlotId) -> None:
        """Remove the fence of ``slot``."""
        if slot not in self.fences or slot in self._dropping:
            return
        self._dropping.add(slot)

        def gone() -> None:
            self._dropping.discard(slot)
            if slot in self.fences:
                self.fences.discard(slot)
                self._free(slot)

        self.clock.call_later(self.random.uniform(0.01, 0.2), gone)

    def forget_asked(self) -> None:
        """The arbiter died: what it was asking for is removed by its successor as a stray."""
        for asked in self._asked.values():
            asked.over = True
            for slot in asked.got:
                self._free(slot)
        self._asked.clear()
        for slot in self._dropping & self.fences:
            self.fences.discard(slot)
            self._free(slot)
        self._dropping.clear()

    def stranger(self, stays_s: float) -> None:
        """Somebody who is not of the pool asks Ray for one GPU, anywhere, and keeps it for a while once it has it."""
        self._strangers.append(stays_s)
        self._place()

    def strangers_leave(self) -> None:
        """All of them, also those that still wait."""
        self._strangers.clear()
        for slot in [slot for slot, who in self.logical.items() if who == "stranger"]:
            self._free(slot)

    def _free(self, slot: SlotId) -> None:
        self.logical.pop(slot, None)
        self._place()

    def _place(self) -> None:
        """Ray's scheduler: pending takers get free logical GPUs, in no particular order."""
        takers: list[Asked | Actor | float] = []
        for asked in self._asked.values():
            takers += [asked] * (len(asked.slots) - len(asked.got))
        takers += [a for actors in self.actors.values() for a in actors if a.alive and not a.slots]
        takers += self._strangers
        self.random.shuffle(takers)
        for taker in takers:
            if isinstance(taker, Asked):
                node = NodeId(taker.slots[0].rpartition(":")[0])
                free = self._free_on(node)
                if free:
                    slot = self.random.choice(free)
                    self.logical[slot] = "fence"
                    taker.got.append(slot)
                continue
            if isinstance(taker, float):
                anywhere = [slot for slot in self.slots if slot not in self.logical]
                if anywhere:
                    slot = self.random.choice(anywhere)
                    self.logical[slot] = "stranger"
                    self._strangers.remove(taker)
                    self.clock.call_later(taker, lambda slot=slot: self._stranger_goes(slot))  # type: ignore[misc]
                continue
            fitting = [node for node in self.nodes if node == taker.node and len(self._free_on(node)) >= taker.gpus]
            if fitting:
                free = self._free_on(self.random.choice(fitting))
                taker.slots = tuple(self.random.sample(free, taker.gpus))
                for slot in taker.slots:
                    self.logical[slot] = taker.name
                self.clock.call_later(self.random.uniform(*self.start_s), lambda actor=taker: self._up(actor))  # type: ignore[misc]

    def _stranger_goes(self, slot: SlotId) -> None:
        if self.logical.get(slot) == "stranger":
            self._free(slot)

    def _free_on(self, node: NodeId) -> list[SlotId]:
        return [slot for slot in self.slots if slot.startswith(f"{node}:") and slot not in self.logical]

    # ---- processes and slot locks

    def spawn(self, workload: str, epoch: int, node: str, rank: int = 0) -> Process:
        """A new process on ``node`` that may take slot locks."""
        process = Process(next(self._pids), workload, epoch, rank, node)
        self.processes = [p for p in self.processes if p.alive] + [process]
        process.alive = node in self.nodes
        return process

    def take(self, process: Process, slot: SlotId, timeout_s: float, then: Callable[[bool], None]) -> None:
        """Take the slot's lock, then memory on its GPU; ``then`` hears whether that came about in time."""
        settled = False

        def attempt() -> None:
            nonlocal settled
            if settled or not process.alive or slot in self.locks or slot not in self.slots:
                return
            settled = True
            self.locks[slot] = process
            if self.memory[slot]:
                self.faults.append(f"{process} and {self.memory[slot]} have memory on {slot}")
            self.memory[slot].add(process)
            self._lock_changed(slot)
            then(True)

        def give_up() -> None:
            nonlocal settled
            if not settled:
                settled = True
                if process.alive:
                    then(False)

        self._waiting[slot].append(attempt)
        self.clock.call_later(timeout_s, give_up)
        attempt()

    def release(self, process: Process, slot: SlotId) -> None:
        """Free the memory, then let go of the lock."""
        self.memory[slot].discard(process)
        if self.locks.get(slot) is process:
            del self.locks[slot]
            self._lock_changed(slot)
            waiting, self._waiting[slot] = self._waiting[slot], []
            for attempt in waiting:
                attempt()

    def kill(self, process: Process) -> None:
        """SIGKILL: memory and locks go with it."""
        if not process.alive:
            return
        process.alive = False
        for slot in self.slots:
            self.release(process, slot)
        if process.on_death is not None:
            process.on_death()

    def kill_holder(self, slot: SlotId, epoch: int) -> None:
        """What the node's helper does for the arbiter."""
        holder = self.locks.get(slot)
        if holder is not None and holder.epoch <= epoch:
            self.kill(holder)

    # ---- node agents

    def _agent_beats(self, node: NodeId) -> None:
        if node not in self.nodes:
            return
        self._agent_says(node)
        self.clock.call_later(1.0, lambda: self._agent_beats(node))

    def _lock_changed(self, slot: SlotId) -> None:
        node = NodeId(slot.rpartition(":")[0])
        self.clock.call_later(self.random.uniform(0.0, 0.1), lambda: self._agent_says(node))

    def _agent_says(self, node: NodeId) -> None:
        if node in self.silent_agents or node not in self.nodes:
            return
        holders: dict[int, LockHolder | None] = {}
        for slot in self.slots:
            if slot.startswith(f"{node}:"):
                p = self.locks.get(slot)
                index = int(slot.rpartition(":")[2])
                holders[index] = LockHolder(p.workload, p.epoch, p.pid, 0, p.rank) if p else None
        report = AgentReport(node, "boot", holders, self.clock.now_s)
        self.link.call(lambda arbiter: arbiter.report_agent(report), lambda _: None)

    # ---- seats

    def set_target(self, seat: SeatId, target: int, node: NodeId | None = None) -> None:
        """What the arbiter tells Serve; it is in force a moment later."""
        if node is not None:
            self.bound[seat] = node
        if self.targets.get(seat, 0) == target:
            return
        self.targets[seat] = target
        self.clock.call_later(self.random.uniform(0.01, 0.3), lambda: self._reconcile(seat))

    def living(self) -> dict[SeatId, tuple[str, ...]]:
        """Replica actors that exist, pending ones too."""
        return {seat: tuple(a.name for a in actors if a.alive) for seat, actors in self.actors.items()}

    def actor(self, name: str) -> Actor | None:
        """A living actor by name."""
        return next((a for actors in self.actors.values() for a in actors if a.name == name and a.alive), None)

    def _reconcile(self, seat: SeatId) -> None:
        """Serve's control loop for one deployment."""
        actors = self.actors[seat]
        target = self.targets.get(seat, 0)
        going = [a for a in actors if a.alive and not a.stopping]
        if target == 0:
            for actor in going:
                actor.stopping = True
                self.clock.call_later(self.random.uniform(0.2, 1.5), lambda actor=actor: self._leaves(actor))  # type: ignore[misc]
        elif not going:
            actor = Actor(f"{seat}#{next(self._numbers)}", seat, self._gpus_of(seat), self.bound[seat])
            actors.append(actor)
            self._place()

    def _leaves(self, actor: Actor) -> None:
        """A graceful stop: the engine first, then the actor."""
        if actor.alive and actor.engine is not None:
            self.kill(actor.engine)
        self.kill_actor(actor)

    def kill_actor(self, actor: Actor) -> None:
        """The actor's process dies; its engine notices by the closed pipe, Ray frees the GPU at once."""
        if not actor.alive:
            return
        actor.alive = False
        self.actors[actor.seat].remove(actor)
        if actor.engine is not None:
            engine = actor.engine
            self.clock.call_later(self.random.uniform(0.05, 2.0), lambda: self.kill(engine))
        for slot in actor.slots:
            self.logical.pop(slot, None)
        self._place()
        self.clock.call_later(self.random.uniform(0.1, 1.0), lambda: self._reconcile(actor.seat))

    def _up(self, actor: Actor) -> None:
        """The actor's process runs: it asks for its lease until it has one."""
        if not actor.alive:
            return
        actor.asked_s = self.clock.now_s
        self._ask_lease(actor)

    def _ask_lease(self, actor: Actor) -> None:
        if not actor.alive:
            return
        if self.clock.now_s - actor.asked_s > LEASE_WAIT_S:
            self.kill_actor(actor)
            return
        node = actor.slots[0].rpartition(":")[0]
        gpu_ids = tuple(int(slot.rpartition(":")[2]) for slot in actor.slots)

        def answered(lease: Lease | None) -> None:
            if not actor.alive:
                return
            if lease is None:
                self.clock.call_later(0.2, lambda: self._ask_lease(actor))
                return
            actor.lease = lease
            self._load(actor, lease)
            self._beats(actor)

        self.link.call(lambda arbiter: arbiter.seat_lease(actor.seat, actor.name, node, gpu_ids), answered)

    def _load(self, actor: Actor, lease: Lease) -> None:
        engine = actor.engine = self.spawn(actor.seat, lease.epoch, actor.node)
        engine.on_death = lambda: self.kill_actor(actor)
        left = set(actor.slots)

        def taken(slot: SlotId, came: bool) -> None:
            left.discard(slot)
            if not came:
                self.kill(engine)
            elif not left:
                self.clock.call_later(self.random.uniform(*self.load_s), loaded)

        def loaded() -> None:
            if self.load_fails and engine.alive:
                actor.error = "out of memory"
            actor.ready = engine.alive and actor.alive and not actor.error

        for slot in actor.slots:
            self.take(engine, slot, 20.0, lambda came, slot=slot: taken(slot, came))  # type: ignore[misc]

    def _beats(self, actor: Actor) -> None:
        if not actor.alive:
            return
        phase = ReplicaPhase.READY if actor.ready else ReplicaPhase.STARTING
        if actor.stopping:
            phase = ReplicaPhase.STOPPING
        report = ReplicaReport(
            seat=actor.seat,
            replica=actor.name,
            node=actor.slots[0].rpartition(":")[0],
            pid=0,
            lease_epoch=actor.lease.epoch if actor.lease else 0,
            phase=phase,
            url=actor.name if actor.ready else "",
            inflight=actor.inflight,
            error=actor.error,
        )

        def answered(orders: object) -> None:
            if orders is not None:
                actor.refuses = bool(getattr(orders, "draining", False))
            self.clock.call_later(0.3, lambda: self._beats(actor))

        self.link.call(lambda arbiter: arbiter.report_replica(report), answered)
