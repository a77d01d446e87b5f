"""A model of machines with GPUs: processes, the slot locks that they take, their memory, and the node agents.

``memory`` is the physical truth: which processes have memory on which GPU. A process takes the slot lock before it
touches its GPU, as all of ours do, and ``faults`` lists every time that was not enough.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random

from ebbtide.client.messages import AgentAnswer, AgentReport, LockHolder
from ebbtide.pool.ids import NodeId, SlotId, slot_id
from ebbtide_testing.cluster.fake_link import FakeLink
from ebbtide_testing.cluster.virtual_clock import VirtualClock


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


class FakeMachines:
    """The nodes that live, and what runs on them."""

    def __init__(self, clock: VirtualClock, random: Random, link: FakeLink) -> None:
        self.nodes: list[NodeId] = []
        self.slots: list[SlotId] = []
        self.locks: dict[SlotId, Process] = {}
        self.memory: dict[SlotId, set[Process]] = defaultdict(set)
        self.faults: list[str] = []
        self.changes = 0  # of memory
        self.silent_agents: set[NodeId] = set()
        self._answers: dict[NodeId, AgentAnswer] = {}  # the last one that each agent got
        self._clock, self._random, self._link = clock, random, link
        self._processes: list[Process] = []
        self._waiting: dict[SlotId, list[Callable[[], None]]] = defaultdict(list)
        self._pids = count(100)

    def join(self, node: NodeId, gpus: int) -> None:
        """A machine joins; one that comes back has a new id."""
        self.nodes.append(node)
        self.slots += [slot_id(node, index) for index in range(gpus)]
        self.changes += 1
        self._agent_beats(node)

    def remove_gpus(self, node: NodeId) -> None:
        """The GPUs of a node that died are gone; its processes are by now."""
        for slot in self.slots_of(node):
            self.slots.remove(slot)

    def slots_of(self, node: NodeId) -> list[SlotId]:
        """The slots of one node."""
        return [slot for slot in self.slots if slot.startswith(f"{node}:")]

    # ---- processes and slot locks

    def spawn(self, workload: str, epoch: int, node: str, rank: int = 0) -> Process:
        """A new process on ``node`` that may take slot locks."""
        process = Process(next(self._pids), workload, epoch, rank, node)
        self._processes = [p for p in self._processes if p.alive] + [process]
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
            self.changes += 1
            self._lock_changed(slot)
            then(True)

        def give_up() -> None:
            nonlocal settled
            if not settled:
                settled = True
                if process.alive:
                    then(False)

        self._waiting[slot].append(attempt)
        self._clock.call_later(timeout_s, give_up)
        attempt()

    def release(self, process: Process, slot: SlotId) -> None:
        """Free the memory, then let go of the lock."""
        if process in self.memory[slot]:
            self.memory[slot].discard(process)
            self.changes += 1
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

    def kill_all(self, node: NodeId) -> None:
        """Every process on a node."""
        for process in [p for p in self._processes if p.node == node]:
            self.kill(process)

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
        self._clock.call_later(1.0, lambda: self._agent_beats(node))

    def _lock_changed(self, slot: SlotId) -> None:
        node = NodeId(slot.rpartition(":")[0])
        self._clock.call_later(self._random.uniform(0.0, 0.1), lambda: self._agent_says(node))

    def _agent_says(self, node: NodeId) -> None:
        if node in self.silent_agents or node not in self.nodes:
            return
        holders: dict[int, LockHolder | None] = {}
        for slot in self.slots_of(node):
            p = self.locks.get(slot)
            index = int(slot.rpartition(":")[2])
            holders[index] = LockHolder(p.workload, p.epoch, p.pid, 0, p.rank) if p else None
        report = AgentReport(node, "boot", holders, self._clock.now_s, after=self._answers.get(node))

        def answered(answer: AgentAnswer | None) -> None:
            if answer is not None:
                self._answers[node] = answer
                if answer.again:
                    self._agent_says(node)

        self._link.call(lambda arbiter: arbiter.report_agent(report), answered)
