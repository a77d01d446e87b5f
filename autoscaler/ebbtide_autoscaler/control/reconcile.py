"""The acting half of the loop: what follows from the state that the ledger has confirmed is done, tick by tick.

``instructions`` says what is to be done and ``executor`` does it; here is what that takes of the pool's file, its
ledger and its cluster. The gateway is kept on the settings of the file as well.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from ebbtide.client.job_actuator import JobActuator
from ebbtide.client.seat_actuator import SeatActuator, SeatPlan
from ebbtide.config.pool_file import PoolFile
from ebbtide.config.sections.pool_section import PoolMode
from ebbtide.pool.ids import NodeId, SeatId, SlotId
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.control import settings
from ebbtide_autoscaler.control.cluster_watch import ClusterWatch
from ebbtide_autoscaler.control.config_in_force import ConfigInForce
from ebbtide_autoscaler.control.executor import Executor, ExecutorPorts
from ebbtide_autoscaler.control.fence_sync import FenceSync
from ebbtide_autoscaler.control.fence_table import FenceTable
from ebbtide_autoscaler.control.gateway_sync import GatewaySync
from ebbtide_autoscaler.control.inbox import Inbox
from ebbtide_autoscaler.core.observe.observation import Observation
from ebbtide_autoscaler.core.observe.workload_orders import slots_of_replicas
from ebbtide_autoscaler.core.tick.instructions import Instruction, instruct
from ebbtide_autoscaler.journal.dry_run import takes_a_slot
from ebbtide_autoscaler.journal.ledger_session import LedgerSession
from ebbtide_autoscaler.journal.records import fence_record

GATEWAY_S = 20.0  # a first start of Serve takes 3-14 s on 2 cores (docs/origins.md)


class Reconciler:
    """Runs in the arbiter's event loop."""

    def __init__(
        self,
        pool: str,
        lock_dir: str,
        *,
        serve: SeatActuator,
        jobs: JobActuator,
        file: ConfigInForce,
        ledger: LedgerSession,
        inbox: Inbox,
        book: FenceTable,
        cluster_watch: ClusterWatch,
        fences: FenceSync,
        state: Callable[[], PoolState],
    ) -> None:
        """Args:
        state: the pool as the ledger has confirmed it last.
        """
        self.gateway = GatewaySync(serve)
        self._lock_dir, self._serve, self._file, self._ledger = lock_dir, serve, file, ledger
        self._inbox, self._cluster_watch, self._fences, self._state = inbox, cluster_watch, fences, state
        self._leaving = False
        hands = ExecutorPorts(
            pool=pool,
            serve=serve,
            plan=self._plan,
            node_slots=self._node_slots,
            replica_slots=self._replica_slots,
            kill_holder=self._kill_holder,
            record_fence=lambda slot, name: ledger.record(fence_record(slot, name)),
            lives=lambda seat: bool(inbox.living.get(seat)),
            strangers=cluster_watch.strangers,
            restore_job=jobs.restore,
        )
        self._executor = Executor(hands, book)

    def fencing(self) -> frozenset[NodeId]:
        """Nodes on which fences are being asked for."""
        return self._executor.fencing()

    def act(self, seen: Observation, now_s: float) -> None:
        """Start whatever is to be done and not under way; returns at once."""
        if self._file.config is not None and not self._leaving and self._cluster_watch.nodes:  # else: not counted yet
            self.gateway.keep(self._gateway_json(self._file.config))
        self._executor.carry_out(self._allowed(instruct(self._state(), seen, now_s)))

    def _allowed(self, instructions: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        """In observe mode what was begun is finished, and no fence is taken that the pool does not have."""
        if self._file.mode is PoolMode.MANAGE:  # guard: the loop of an observing pool passes on no fence to be taken
            return instructions
        return tuple(instruction for instruction in instructions if not takes_a_slot(self._state(), instruction))

    async def tell_gateway(self, config: PoolFile) -> str:
        """Returns when the gateway was told of a file that is in force now, or after a while with why it was not."""

        def told() -> bool:
            return bool(self._cluster_watch.nodes) and self.gateway.has(self._gateway_json(config))

        deadline_s = time.monotonic() + GATEWAY_S
        while not told() and time.monotonic() < deadline_s:
            await asyncio.sleep(0.05)
        return "" if told() else self.gateway.trouble or "it has not taken its settings yet"

    def _gateway_json(self, config: PoolFile) -> str:
        return settings.gateway_json(config, token=self._ledger.token, nodes=self._cluster_watch.nodes)

    async def leave(self) -> None:
        """Remove gateway and seats, and drop the fences."""
        self._leaving = True
        await self._serve.stop()
        await self._executor.leave()  # else the next tick would take again what is dropped now
        await self._fences.leave()

    # ---- for the executor

    def _plan(self, seat: SeatId) -> SeatPlan | None:
        config = self._file.config
        if config is None:
            return None
        plan = settings.seat_plan(config, seat, token=self._ledger.token, cache_dir=f"{self._lock_dir}/../cache")
        state = self._state()
        record = state.seats.get(seat)
        node = str(state.slots[record.slots[0]].slot.node) if record is not None and record.slots else ""
        fenced = record is not None and record.fenced
        return replace(plan, node=node, fenced=fenced) if plan is not None else None

    def _node_slots(self, node: NodeId) -> tuple[SlotId, ...]:
        return tuple(name for name, record in self._state().slots.items() if record.slot.node == node)

    def _replica_slots(self) -> frozenset[SlotId]:
        return slots_of_replicas(self._state(), self._inbox.living)

    async def _kill_holder(self, slot: SlotId, epoch: int) -> None:
        await self._cluster_watch.kill_holder(self._state().slots[slot].slot, epoch)
