"""A replica's way off its GPUs and back, as the arbiter orders it.

The order to park comes when no gateway sends anything any more and nothing is in flight. It is not believed: from the
moment that parking begins every request is refused before it is read, so that its gateway sends it elsewhere, and the
engine sleeps only when the last one has ended.

Orders come again and again; each is carried out once. A failure is the end of this replica: it is reported, and the
arbiter has it stopped.
"""

import asyncio
import contextlib
import logging
from dataclasses import replace

from ebbtide.client.messages import Lease, ReplicaOrders, ReplicaPhase
from ebbtide_serve.engine.port import Engine
from ebbtide_serve.engine.sleep import CanSleep, Sleeps, can_sleep
from ebbtide_serve.errors import EngineFailed, NotGranted
from ebbtide_serve.process.lease_devices import in_device_order, locks_gone
from ebbtide_serve.process.lease_env import EngineLease
from ebbtide_serve.replica.http_app import ReplicaApp

IDLE_S = 5.0  # nothing should be in flight when the order comes; what is, is of a gateway that the arbiter lost
LOCK_GONE_S = 5.0  # from the engine's word until its locks must be free

_log = logging.getLogger(__name__)


class Parking:
    """Of one replica that is up; all on one event loop."""

    def __init__(self, engine: Engine, app: ReplicaApp, lease: EngineLease) -> None:
        self.lease = lease  # under which it has its GPUs, or had them last
        self.phase: ReplicaPhase | None = None  # None: it serves
        self.error = ""
        self.can: CanSleep = can_sleep(engine)
        self._engine, self._app = engine, app
        self._turn: asyncio.Task[None] | None = None
        self._over = False

    @property
    def lease_is_held(self) -> bool:
        """Whether its slots may still be its own; those of a parked one are somebody else's."""
        return self.phase is not ReplicaPhase.PARKED

    def obey(self, orders: ReplicaOrders) -> None:
        """Begin what is ordered, unless it is under way or done; returns at once."""
        if self._over or self.error or (self._turn is not None and not self._turn.done()):
            return
        if orders.park and self.phase is None:
            self._app.parked, self.phase = True, ReplicaPhase.PARKING
            self._turn = asyncio.create_task(self._guarded(ReplicaPhase.PARKED))
        elif self.phase is ReplicaPhase.PARKED and orders.wake is not None and self._is_newer(orders.wake):
            self.phase = ReplicaPhase.WAKING
            self._turn = asyncio.create_task(self._guarded(None, orders.wake))

    async def stop(self) -> None:
        """Begin nothing any more, and leave what is under way."""
        self._over = True
        if self._turn is not None:
            self._turn.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._turn

    async def _guarded(self, then: ReplicaPhase | None, lease: Lease | None = None) -> None:
        try:
            await (self._sleep() if lease is None else self._wake(lease))
        except (EngineFailed, NotGranted) as error:
            self.error = str(error)
        except Exception as error:  # noqa: BLE001 - outermost: engines are anybody's, the arbiter must hear of it
            _log.exception("the engine failed to %s", "sleep" if lease is None else "wake")
            self.error = repr(error)
        else:
            self.phase = then
            self._app.parked = then is not None

    def _is_newer(self, lease: Lease) -> bool:
        return lease.epoch > self.lease.lease.epoch

    async def _sleep(self) -> None:
        engine = self._engine
        if not isinstance(engine, Sleeps) or self.can.why_not:
            raise EngineFailed(f"it was told to park and cannot: {self.can.why_not}")
        if not await self._app.until_idle(IDLE_S):
            left = f"{self._app.inflight} requests are still in flight"
            raise EngineFailed(f"{left} {IDLE_S:g} s after the order to park")
        await engine.sleep()
        if not await locks_gone(self.lease, LOCK_GONE_S):
            raise EngineFailed("its engine sleeps and still holds a slot lock")

    async def _wake(self, lease: Lease) -> None:
        engine, before = self._engine, self.lease.lease.slots
        assert isinstance(engine, Sleeps), "it was put to sleep"
        # Its processes have mapped these GPUs and no others, in this order.
        gpu_ids = tuple(slot.index for slot in before)
        granted = in_device_order(replace(self.lease, lease=lease), before[0].node, gpu_ids)
        await engine.wake(granted)
        self.lease, self.can = granted, can_sleep(engine)
