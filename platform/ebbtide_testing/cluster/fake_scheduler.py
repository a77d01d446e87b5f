"""A model of Ray's scheduler: who has which logical GPU, and the fences, replicas and strangers that ask for one.

What it takes from the runs on Ray (facts: 2.60): a freed logical GPU goes to any pending taker that fits, a fence or a
replica's actor, in no order that we may rely on; fences and replicas are bound to their nodes, not to an index, so a
fence may get another GPU than the one that it was asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from ebbtide.pool.ids import NodeId, SlotId
from ebbtide_testing.cluster.fake_machines import FakeMachines
from ebbtide_testing.cluster.virtual_clock import VirtualClock

FENCE_READY_S = 2.0  # a fence that is not there by then is given up, as the arbiter's executor does
REFUSED_S = 3.0


@dataclass(eq=False, slots=True)
class Claim:
    """A replica's wish for GPUs of one node, all at once; ``slots`` are those it got, () while it is pending."""

    name: str
    node: NodeId
    gpus: int
    placed: Callable[[], None]
    slots: tuple[SlotId, ...] = ()


@dataclass(eq=False, slots=True)
class Asked:
    """Fences asked for on one node, until all are there or the time is over."""

    node: NodeId
    slots: tuple[SlotId, ...]
    got: list[SlotId] = field(default_factory=list)
    over: bool = False


class FakeScheduler:
    """The logical GPUs of all nodes."""

    def __init__(self, clock: VirtualClock, random: Random, machines: FakeMachines) -> None:
        self.logical: dict[SlotId, str] = {}  # who has it: "fence", "stranger" or a claim's name
        self.fences: set[SlotId] = set()  # that the arbiter knows of
        self.refused_until_s: dict[SlotId, float] = {}
        self._clock, self._random, self._machines = clock, random, machines
        self._asked: dict[NodeId, Asked] = {}
        self._dropping: set[SlotId] = set()
        self._claims: list[Claim] = []
        self._strangers: list[float] = []

    # ---- fences

    def fencing(self) -> frozenset[NodeId]:
        """Nodes on which fences are being asked for."""
        return frozenset(self._asked)

    def hold_fences(self, node: NodeId, slots: tuple[SlotId, ...]) -> None:
        """Ask for the fences of ``slots``; which GPUs they get is found out by a probe."""
        if node in self._asked or node not in self._machines.nodes:
            return
        asked = self._asked[node] = Asked(node, slots)
        self._clock.call_later(FENCE_READY_S, lambda: self._probe(asked))
        self._clock.call_later(self._random.uniform(0.0, 0.1), self.place)

        def early() -> None:
            if len(asked.got) == len(asked.slots):
                self._settle(asked)

        self._clock.call_later(self._random.uniform(0.2, 0.5), early)

    def _probe(self, asked: Asked) -> None:
        self._clock.call_later(self._random.uniform(0.05, 1.0), lambda: self._settle(asked))

    def _settle(self, asked: Asked) -> None:
        """Keep the fences that got the right GPUs, give back the others."""
        if asked.over:
            return
        asked.over = True
        self._asked.pop(asked.node, None)
        for slot in asked.got:
            if slot in asked.slots:
                self.fences.add(slot)
            else:
                self._free(slot)
        for slot in asked.slots:
            if slot not in self.fences:
                self.refused_until_s[slot] = self._clock.now_s + REFUSED_S

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

        self._clock.call_later(self._random.uniform(0.01, 0.2), gone)

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

    # ---- nodes that die

    def give_up(self, node: NodeId) -> None:
        """No fence is asked for on this node any more."""
        asked = self._asked.pop(node, None)
        if asked is not None:
            asked.over = True

    def forget(self, node: NodeId) -> None:
        """Nobody has a logical GPU of this node any more."""
        for slot in self._machines.slots_of(node):
            self.logical.pop(slot, None)
            self.fences.discard(slot)

    # ---- replicas and strangers

    def claim(self, claim: Claim) -> None:
        """A replica's actor is created."""
        self._claims.append(claim)
        self.place()

    def end(self, claim: Claim) -> None:
        """The actor is gone, whether it had its GPUs or waited for them."""
        if claim in self._claims:
            self._claims.remove(claim)
        for slot in claim.slots:
            self.logical.pop(slot, None)
        self.place()

    def stranger(self, stays_s: float) -> None:
        """Somebody who is not of the pool asks Ray for one GPU, anywhere, and keeps it for a while once it has it."""
        self._strangers.append(stays_s)
        self.place()

    def strangers_leave(self) -> None:
        """All of them, also those that still wait."""
        self._strangers.clear()
        for slot in [slot for slot, who in self.logical.items() if who == "stranger"]:
            self._free(slot)

    # ---- placing

    def place(self) -> None:
        """Pending takers get free logical GPUs, in no particular order."""
        takers: list[Asked | Claim | float] = []
        for asked in self._asked.values():
            takers += [asked] * (len(asked.slots) - len(asked.got))
        takers += self._claims
        takers += self._strangers
        self._random.shuffle(takers)
        for taker in takers:
            match taker:
                case Asked():
                    self._place_fence(taker)
                case Claim():
                    self._place_claim(taker)
                case float():
                    self._place_stranger(taker)

    def _place_fence(self, asked: Asked) -> None:
        free = self._free_on(asked.node)
        if free:
            slot = self._random.choice(free)
            self.logical[slot] = "fence"
            asked.got.append(slot)

    def _place_claim(self, claim: Claim) -> None:
        free = self._free_on(claim.node)
        if claim.node in self._machines.nodes and len(free) >= claim.gpus:
            claim.slots = tuple(self._random.sample(free, claim.gpus))
            for slot in claim.slots:
                self.logical[slot] = claim.name
            self._claims.remove(claim)
            claim.placed()

    def _place_stranger(self, stays_s: float) -> None:
        anywhere = [slot for slot in self._machines.slots if slot not in self.logical]
        if anywhere:
            slot = self._random.choice(anywhere)
            self.logical[slot] = "stranger"
            self._strangers.remove(stays_s)
            self._clock.call_later(stays_s, lambda: self._stranger_goes(slot))

    def _stranger_goes(self, slot: SlotId) -> None:
        if self.logical.get(slot) == "stranger":
            self._free(slot)

    def _free(self, slot: SlotId) -> None:
        self.logical.pop(slot, None)
        self.place()

    def _free_on(self, node: NodeId) -> list[SlotId]:
        return [slot for slot in self._machines.slots_of(node) if slot not in self.logical]
