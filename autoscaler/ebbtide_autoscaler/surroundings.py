"""What the arbiter looks at by itself: the cluster's nodes, its fences, and which replica actors exist."""

import asyncio
import logging
import time
from collections.abc import Callable
from importlib.metadata import entry_points

import ray
from ray.exceptions import RayError

from ebbtide.agent.node_agent import start_agent
from ebbtide.client.messages import SlotRef
from ebbtide.client.seats import SeatActuator
from ebbtide.pool.events import NodeFound, NodeLost, Slot, SlotFound
from ebbtide.pool.ids import NodeId, SlotId, slot_id
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import SlotState
from ebbtide_autoscaler import fences
from ebbtide_autoscaler.executor import FenceBook
from ebbtide_autoscaler.reports import Reports

LIVING_S = 0.25  # between two looks at the list of replica actors, one call to Ray's GCS
NODES_S = 2.0
FENCES_S = 5.0

log = logging.getLogger(__name__)


def load_serve() -> SeatActuator:
    """The serving port that the installed packages offer.

    Raises:
        LookupError: none is installed.
    """
    for entry in entry_points(group="ebbtide.actuators", name="serve"):
        port: SeatActuator = entry.load()()
        return port
    raise LookupError("no package offers an entry point 'serve' in the group ebbtide.actuators")


class Surroundings:
    """Looks around at its own pace and writes what it finds into the in-tray."""

    def __init__(self, reports: Reports, book: FenceBook, serve: SeatActuator, lock_dir: str) -> None:
        self._reports, self._book, self._serve, self._lock_dir = reports, book, serve, lock_dir
        self._due_s = {"living": 0.0, "nodes": 0.0, "fences": time.monotonic() + FENCES_S}

    async def adopt(self) -> None:
        """Find again the fences that an earlier arbiter made."""
        alive = await asyncio.to_thread(fences.standing, dict(self._book.names))
        for slot in [slot for slot in self._book.names if slot not in alive]:
            del self._book.names[slot]
        await asyncio.to_thread(fences.remove_strays, alive)

    async def watch(self, host_bytes: Callable[[], int | None], state: Callable[[], PoolState]) -> None:
        """Look around for ever."""
        while True:
            try:
                await self._look(host_bytes(), state())
            except (RayError, TimeoutError, OSError, RuntimeError) as error:
                log.warning("looking around failed, what was known stays: %r", error)
            await asyncio.sleep(LIVING_S)

    def _due(self, what: str, every_s: float) -> bool:
        now_s = time.monotonic()
        if now_s < self._due_s[what]:
            return False
        self._due_s[what] = now_s + every_s
        return True

    async def _look(self, host_bytes: int | None, state: PoolState) -> None:
        if host_bytes is None:
            return
        if self._due("nodes", NODES_S):
            await self._nodes(host_bytes, state)
        asked_s = time.time()
        living = await self._serve.living()
        self._reports.living = dict(living)
        self._reports.living_at_s = asked_s
        if self._due("fences", FENCES_S):
            before = dict(self._book.names)
            alive = await asyncio.to_thread(fences.standing, before)
            gone = {slot for slot in before if slot not in alive and self._book.names.get(slot) == before[slot]}
            for slot in gone:
                self._book.names.pop(slot, None)

    async def _nodes(self, host_bytes: int, state: PoolState) -> None:
        alive: set[NodeId] = set()
        for entry in await asyncio.to_thread(ray.nodes):
            gpus = int(entry["Resources"].get("GPU", 0))
            if not entry["Alive"] or not gpus:
                continue
            node = NodeId(entry["NodeID"])
            alive.add(node)
            slots = [Slot(slot_id(node, index), node, index) for index in range(gpus)]
            if state.nodes.get(node) != host_bytes:
                self._reports.inbox.append(NodeFound(node, host_bytes))
            for slot in slots:
                record = state.slots.get(slot.id)
                if record is None or record.state is SlotState.LOST:
                    self._reports.inbox.append(SlotFound(slot))
            agent = await asyncio.to_thread(start_agent, str(node), self._lock_dir)
            agent.watch.remote([SlotRef(slot.node, slot.index, slot.uuid) for slot in slots])
        for node in state.nodes:
            if node not in alive:
                self._reports.inbox.append(NodeLost(node))

    async def kill_holder(self, slot: Slot, epoch: int) -> None:
        """Have the slot's node kill whoever holds its lock under a lease not newer than ``epoch``."""
        agent = await asyncio.to_thread(start_agent, str(slot.node), self._lock_dir)
        await agent.kill_holder.remote(slot.index, epoch)

    async def leave(self) -> None:
        """Drop every fence."""
        for slot, name in list(self._book.names.items()):
            await asyncio.to_thread(fences.drop, name)
            self._book.names.pop(SlotId(slot), None)
