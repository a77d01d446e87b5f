"""Carries instructions out: at most one of a kind per target at a time, failures tried again after a pause.

Instructions come again every tick until their effect is seen, so nothing here is remembered but what is under way.
Every call to Ray runs in a worker thread: a tick never waits for it.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, field

from ebbtide.client.seats import SeatActuator, SeatPlan
from ebbtide.pool.ids import NodeId, SeatId, SlotId
from ebbtide_autoscaler import fences
from ebbtide_autoscaler.instruct import (
    CloseSeat,
    DropFence,
    HoldFence,
    Instruction,
    KillHolder,
    KillReplica,
    OpenSeat,
)
from ebbtide_autoscaler.seen import FenceView

RETRY_S = 1.0  # after a failure, before the same thing is tried again
RESEND_S = 30.0  # a wish that was sent is sent again: the port compares first, so it costs Serve nothing
REFUSED_S = 3.0  # how long a slot counts as held by a stranger after its fence could not be had

log = logging.getLogger(__name__)


@dataclass(slots=True)
class FenceBook:
    """Which fences stand, as far as is known."""

    names: dict[SlotId, str] = field(default_factory=dict)
    refused_until_s: dict[SlotId, float] = field(default_factory=dict)

    def views(self, slots: Iterable[SlotId], now_s: float) -> dict[SlotId, FenceView]:
        """The view of each slot's fence."""

        def view(slot: SlotId) -> FenceView:
            if slot in self.names:
                return FenceView.HELD
            refused = self.refused_until_s.get(slot, 0.0) > now_s
            return FenceView.REFUSED if refused else FenceView.ABSENT

        return {slot: view(slot) for slot in slots}


@dataclass(slots=True)
class Hands:
    """What the executor works with; each may be exchanged by a test."""

    serve: SeatActuator
    plan: Callable[[SeatId], SeatPlan | None]
    node_slots: Callable[[NodeId], tuple[SlotId, ...]]
    replica_slots: Callable[[], frozenset[SlotId]]  # slots whose logical GPU a replica has
    kill_holder: Callable[[SlotId, int], Awaitable[None]]
    record_fence: Callable[[SlotId, str], Awaitable[None]]


class Executor:
    """Runs in the arbiter's event loop."""

    def __init__(self, hands: Hands, book: FenceBook) -> None:
        self.book = book
        self._hands = hands
        self._running: dict[Hashable, asyncio.Task[None]] = {}
        self._not_before_s: dict[Hashable, float] = {}
        self._sent: dict[SeatId, tuple[str, float]] = {}
        self._killed: set[str] = set()

    def fencing(self) -> frozenset[NodeId]:
        """Nodes on which fences are being asked for."""
        return frozenset(key[1] for key in self._running if isinstance(key, tuple) and key[0] == "hold")

    def carry_out(self, instructions: Iterable[Instruction]) -> None:
        """Start whatever is not under way; returns at once."""
        to_hold: dict[NodeId, list[SlotId]] = defaultdict(list)
        for instruction in instructions:
            match instruction:
                case HoldFence(slot):
                    to_hold[NodeId(slot.rpartition(":")[0])].append(slot)
                case DropFence(slot):
                    self._start(("drop", slot), self._drop(slot))
                case OpenSeat(seat):
                    self._scale(seat, "open")
                case CloseSeat(seat):
                    self._scale(seat, "close")
                case KillReplica(_, actor) if actor not in self._killed:
                    self._killed.add(actor)
                    self._start(("kill", actor), self._hands.serve.kill(actor))
                case KillHolder(slot, epoch):
                    self._start(("holder", slot), self._hands.kill_holder(slot, epoch))
        for node, slots in to_hold.items():
            self._start(("hold", node), self._hold(node, slots))

    def _start(self, key: Hashable, work: Awaitable[None]) -> None:
        if key in self._running or time.monotonic() < self._not_before_s.get(key, 0.0):
            if asyncio.iscoroutine(work):
                work.close()
            return

        async def run() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - outermost: nothing was assumed done, the next tick asks again
                log.warning("%s failed: %r", key, error)
                self._not_before_s[key] = time.monotonic() + RETRY_S
            finally:
                self._running.pop(key, None)

        self._running[key] = asyncio.get_running_loop().create_task(run())

    def _scale(self, seat: SeatId, wish: str) -> None:
        """Send a wish when it is new, and again now and then: a restart of Serve may have lost it."""
        sent, at_s = self._sent.get(seat, ("", 0.0))
        if sent == wish and time.monotonic() - at_s < RESEND_S:
            return
        self._start(("seat", seat), self._send(seat, wish))

    async def _send(self, seat: SeatId, wish: str) -> None:
        if wish == "open":
            plan = self._hands.plan(seat)
            if plan is None:
                return
            await self._hands.serve.open_seat(plan)
        else:
            await self._hands.serve.close_seat(seat)
        self._sent[seat] = (wish, time.monotonic())

    async def _hold(self, node: NodeId, slots: list[SlotId]) -> None:
        taken = self._hands.replica_slots()
        unknown = [
            slot
            for slot in self._hands.node_slots(node)
            if slot not in self.book.names and slot not in taken and slot not in slots
        ]
        # A replica that dies right now frees its logical GPU as well: beside replicas, the index is asked for.
        sole = not unknown and not any(slot in taken for slot in self._hands.node_slots(node))
        held = await asyncio.to_thread(fences.hold, node, slots, sole=sole)
        for slot, name in held.names.items():
            await self._hands.record_fence(slot, name)
            self.book.names[slot] = name
            self.book.refused_until_s.pop(slot, None)
        for slot in held.refused:
            self.book.refused_until_s[slot] = time.time() + REFUSED_S

    async def _drop(self, slot: SlotId) -> None:
        name = self.book.names.get(slot)
        if name is None:
            return
        await self._hands.record_fence(slot, "")
        await asyncio.to_thread(fences.drop, name)
        self.book.names.pop(slot, None)
