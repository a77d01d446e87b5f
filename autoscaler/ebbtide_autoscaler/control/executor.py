"""Carries instructions out: at most one of a kind per target at a time, failures tried again after a growing pause.

Instructions come again every tick until their effect is seen, so nothing here is remembered but what is under way,
what failed lately and what was sent lately; each of these is forgotten in time. Every call to Ray runs in a worker
thread with a deadline: a tick never waits for it.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from ebbtide.client.bounded_calls import BoundedCalls
from ebbtide.client.seat_actuator import SeatActuator, SeatPlan
from ebbtide.pool.ids import JobName, NodeId, SeatId, SlotId, node_of
from ebbtide_autoscaler.control import fence_placement_groups
from ebbtide_autoscaler.control.fence_table import FenceTable
from ebbtide_autoscaler.core.tick.instructions import (
    CloseSeat,
    DropFence,
    HoldFence,
    Instruction,
    KillHolder,
    KillReplica,
    OpenSeat,
    RestoreJob,
)

RETRY_S = 1.0  # after a first failure, before the same thing is tried again; doubled each time
RETRY_MAX_S = 15.0
RESEND_S = 30.0  # a wish that was sent is sent again: a restart of Serve may have lost it
REOPEN_S = 10.0  # the same for a seat with no actor at all: Serve makes one within 0.2-7 s, on a loaded machine too
REKILL_S = 5.0  # a killed actor is gone within 0.1 s (docs/origins.md): one that is still listed is killed again
RESTORE_S = 30.0  # a submitted driver's ranks take their first step within 12-17 s (docs/origins.md)
REFUSED_S = 3.0  # how long a slot counts as held by a stranger after its fence could not be had
HOLD_S = 60.0  # two times READY_S, a probe, and then some for a GCS that restarts
DROP_S = 10.0
LEAVE_S = 15.0  # READY_S and a probe on a node that is not overloaded; what comes later is a stray
OUR_MISTAKES = (TypeError, AttributeError, NameError, AssertionError, KeyError, IndexError)
"""Errors that do not tell of the cluster but of us, and are logged with their story; all are tried again."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ExecutorPorts:
    """What the executor works with; each may be exchanged by a test."""

    pool: str
    serve: SeatActuator
    plan: Callable[[SeatId], SeatPlan | None]
    node_slots: Callable[[NodeId], tuple[SlotId, ...]]
    replica_slots: Callable[[], frozenset[SlotId]]  # slots whose logical GPU a replica has
    kill_holder: Callable[[SlotId, int], Awaitable[None]]
    record_fence: Callable[[SlotId, str], Awaitable[None]]
    lives: Callable[[SeatId], bool]  # whether the seat has a replica's actor, be it pending or leaving
    strangers: Callable[[tuple[SlotId, ...]], Awaitable[Mapping[SlotId, str]]]  # who has logical GPUs, of one node
    restore_job: Callable[[JobName], Awaitable[object]]


@dataclass(slots=True)
class _Failing:
    """Something that failed lately."""

    times: int
    not_before_s: float


class Executor:
    """Runs in the arbiter's event loop."""

    def __init__(self, hands: ExecutorPorts, book: FenceTable) -> None:
        self.book = book
        self._hands = hands
        self._calls = BoundedCalls("executor")
        self._running: dict[Hashable, asyncio.Task[None]] = {}
        self._failing: dict[Hashable, _Failing] = {}
        self._sent: dict[Hashable, tuple[str, float]] = {}  # what was sent last, and when; old entries go
        self._leaving = False

    def fencing(self) -> frozenset[NodeId]:
        """Nodes on which fences are being asked for, by calls that nobody waits for any more as well."""
        keys = {*self._running, *self._calls.under_way()}
        return frozenset(key[1] for key in keys if isinstance(key, tuple) and key[0] == "hold")

    async def leave(self) -> None:
        """Take no fence any more; returns when none is being asked for, or after a while."""
        self._leaving = True
        deadline_s = time.monotonic() + LEAVE_S
        while self.fencing() and time.monotonic() < deadline_s:
            await asyncio.sleep(0.05)

    def carry_out(self, instructions: Iterable[Instruction]) -> None:
        """Start whatever is not under way; returns at once."""
        self._forget()
        to_hold: dict[NodeId, list[SlotId]] = defaultdict(list)
        for instruction in instructions:
            match instruction:
                case HoldFence(slot) if not self._leaving:
                    to_hold[node_of(slot)].append(slot)
                case DropFence(slot):
                    self._start(("drop", slot), partial(self._drop, slot))
                case OpenSeat(seat):
                    # guard: a seat without any actor is opened again soon
                    # guard: a seat that has an actor is not opened again soon
                    again_s = RESEND_S if self._hands.lives(seat) else REOPEN_S
                    self._once(("seat", seat), "open", again_s, partial(self._open, seat))
                case CloseSeat(seat):
                    self._once(("seat", seat), "close", RESEND_S, partial(self._hands.serve.close_seat, seat))
                case KillReplica(_, actor):
                    self._once(("kill", actor), "kill", REKILL_S, partial(self._hands.serve.kill, actor))
                case KillHolder(slot, epoch):
                    self._start(("holder", slot), partial(self._hands.kill_holder, slot, epoch))
                case RestoreJob(job):
                    self._once(("restore", job), "restore", RESTORE_S, partial(self._hands.restore_job, job))
        for node, slots in to_hold.items():
            self._start(("hold", node), partial(self._hold, node, slots))

    def _forget(self) -> None:
        """What is remembered is bounded by what happened lately, not by what ever happened."""
        now_s = time.monotonic()
        for key in [key for key, (_, at_s) in self._sent.items() if now_s - at_s > RESEND_S]:
            del self._sent[key]
        for key in [key for key, one in self._failing.items() if now_s - one.not_before_s > RETRY_MAX_S]:
            del self._failing[key]

    def _once(self, key: Hashable, wish: str, again_s: float, work: Callable[[], Awaitable[object]]) -> None:
        """Do it when the wish is new, and again when that is a while ago."""
        sent, at_s = self._sent.get(key, ("", 0.0))
        if sent == wish and time.monotonic() - at_s < again_s:  # guard: a job is restored once per start of a driver
            return

        async def send() -> None:
            await work()
            self._sent[key] = (wish, time.monotonic())

        self._start(key, send)

    def _start(self, key: Hashable, work: Callable[[], Awaitable[object]]) -> None:
        failing = self._failing.get(key)
        if key in self._running or (failing is not None and time.monotonic() < failing.not_before_s):
            return

        async def run() -> None:
            try:
                await work()
                self._failing.pop(key, None)
            except Exception as error:  # noqa: BLE001 - outermost: nothing was assumed done, the next tick asks again
                self._failed(key, error)
            finally:
                self._running.pop(key, None)

        self._running[key] = asyncio.get_running_loop().create_task(run())

    def _failed(self, key: Hashable, error: Exception) -> None:
        before = self._failing.get(key)
        times = before.times + 1 if before is not None else 1
        pause_s = min(RETRY_MAX_S, RETRY_S * 2 ** min(times - 1, 10))
        self._failing[key] = _Failing(times, time.monotonic() + pause_s)
        story = error if isinstance(error, OUR_MISTAKES) else None
        log.warning("%s failed (%d in a row, again in %.0f s): %r", key, times, pause_s, error, exc_info=story)

    async def _open(self, seat: SeatId) -> None:
        plan = self._hands.plan(seat)
        if plan is not None:
            await self._hands.serve.open_seat(plan)

    async def _hold(self, node: NodeId, slots: list[SlotId]) -> None:
        taken = self._hands.replica_slots()
        unknown = [
            slot
            for slot in self._hands.node_slots(node)
            if slot not in self.book.names and slot not in taken and slot not in slots
        ]
        # A replica that dies right now frees its logical GPU as well: beside replicas, the index is asked for.
        sole = not unknown and not any(slot in taken for slot in self._hands.node_slots(node))
        key = ("hold", node)
        held = await self._calls(key, HOLD_S, fence_placement_groups.hold, self._hands.pool, node, slots, sole=sole)
        for slot, name in held.names.items():
            await self._hands.record_fence(slot, name)
            self.book.held(slot, name)
        if held.refused:
            who = await self._hands.strangers(held.refused)
            for slot in held.refused:
                self.book.refused(slot, time.time() + REFUSED_S, who.get(slot, ""))

    async def _drop(self, slot: SlotId) -> None:
        name = self.book.names.get(slot)
        if name is None:
            return
        await self._hands.record_fence(slot, "")
        await self._calls(("drop", slot), DROP_S, fence_placement_groups.drop, name)
        self.book.names.pop(slot, None)
