"""The heart of a replica, without Ray: one engine, its HTTP face inside the pool, and what it tells the arbiter.

Order of a start: ask for the lease (no lease: leave, the GPU untouched), start the engine under it, open the port.
Order of a stop: refuse what is new, wait for what runs, end the engine, see the slot lock gone.

It tells the arbiter its whole state five times a second from its first moment on, while the engine starts too; when
nobody answers it goes on serving (fail static).

Not guaranteed: that the arbiter hears of the last state; the slot lock says when the slot is free.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ebbtide.client.messages import RankLoad, ReplicaOrders, ReplicaPhase, ReplicaReport
from ebbtide_serve.engine.fault_record import one_line
from ebbtide_serve.engine.port import Engine, EngineStats
from ebbtide_serve.engine.start_report import TellsOfItsStart, sound
from ebbtide_serve.errors import EngineFailed, EngineRefused
from ebbtide_serve.process.lease_devices import locks_gone
from ebbtide_serve.process.lease_env import EngineLease
from ebbtide_serve.replica.http_app import ReplicaApp
from ebbtide_serve.replica.http_server import PortServer
from ebbtide_serve.replica.parking import LOCK_GONE_S, Parking

REPORT_PERIOD_S = 0.2  # the arbiter ticks ten times a second; a replica's start takes seconds
ENGINE_STOP_S = 3.0  # vLLM ends by itself in 1 to 5 s, or is killed then


class ReplicaReports(Protocol):
    """What a replica tells the arbiter (``ArbiterLink`` behind it)."""

    async def report_replica(self, report: ReplicaReport) -> ReplicaOrders | None:
        """None: nobody answered."""


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """Who and where this replica is."""

    seat: str
    replica: str
    node: str
    pid: int


@dataclass
class StageClock:
    """Where the start-up time goes: seconds per stage, in order."""

    clock: Callable[[], float] = time.monotonic
    stages_s: dict[str, float] = field(default_factory=dict)
    _since_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._since_s = self.clock()

    def done(self, stage: str) -> None:
        """The stage that began when the last one ended is done."""
        now_s = self.clock()
        self.stages_s[stage] = round(now_s - self._since_s, 3)
        self._since_s = now_s

    def done_in(self, stages_s: Mapping[str, float], otherwise: str) -> None:
        """Several stages are done, of which somebody else took the time; one called ``otherwise`` if there are none."""
        if not stages_s:
            return self.done(otherwise)
        self.stages_s |= {stage: round(seconds, 3) for stage, seconds in stages_s.items()}
        self._since_s = self.clock()


class ReplicaServer:
    """Runs one replica from lease to end. All methods on one event loop."""

    def __init__(self, identity: ReplicaIdentity, reports: ReplicaReports, *, token: str, host: str) -> None:
        self._identity = identity
        self._reports = reports
        self._host = host
        self._app = ReplicaApp(token=token)
        self._port = PortServer(self._app, host)
        self._stages = StageClock()
        self._phase = ReplicaPhase.STARTING
        self._lease: EngineLease | None = None
        self._engine: Engine | None = None
        self._parking: Parking | None = None  # once it is up
        self._loads: tuple[RankLoad, ...] = ()
        self._error = ""
        self._permanent = False
        self._reporter: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def engine(self) -> Engine | None:
        """The engine, once it is up."""
        return self._engine

    async def start(
        self,
        lease: EngineLease,
        make_engine: Callable[[], Awaitable[Engine]],
        prepare: Callable[[Callable[[str], None]], Awaitable[None]] | None = None,
    ) -> None:
        """Bring the engine up under ``lease`` and open the port.

        Args:
            prepare: called before the engine is made, with what it calls at the end of each of its own stages.

        Raises:
            EngineFailed: the engine does not start; nothing of it is left. What else its start raises is told of too.
        """
        self._lease = lease
        self._stages.done("lease")  # from the construction of this object on
        self._reporter = asyncio.create_task(self._report_for_ever())
        try:
            if prepare is not None:
                await prepare(self._stages.done)
            engine = await make_engine()
            self._stages.done("import")
            await engine.start()
            self._note_start(engine)
        # An engine of one's own may raise anything; without its word the reason why the replica is gone would be lost.
        except Exception as error:
            self._error = str(error) if isinstance(error, EngineFailed) else one_line(error)
            self._permanent = isinstance(error, EngineRefused)
            await self._report()
            raise
        self._engine = engine
        self._app.serve(engine)
        await self._port.start()
        self._stages.done("server")
        self._parking = Parking(engine, self._app, lease)
        self._phase = ReplicaPhase.READY
        await self._report()

    def _note_start(self, engine: Engine) -> None:
        if isinstance(engine, TellsOfItsStart):
            told = sound(engine.start_report())
            self._loads = told.loads
            self._stages.done_in(told.stages_s, "engine")
        else:
            self._stages.done("engine")

    def report(self) -> ReplicaReport:
        """The whole present state."""
        stats = EngineStats() if self._engine is None else self._engine.stats()
        parking, lease, phase = self._parking, self._lease, self._phase
        if parking is not None:
            lease, phase = parking.lease, (phase if phase is ReplicaPhase.STOPPING else parking.phase or phase)
        return ReplicaReport(
            seat=self._identity.seat,
            replica=self._identity.replica,
            node=self._identity.node,
            pid=self._identity.pid,
            lease_epoch=0 if lease is None else lease.lease.epoch,
            phase=phase,
            url=self._port.url if phase is ReplicaPhase.READY else "",
            inflight=self._app.inflight,
            running=stats.running,
            waiting=stats.waiting,
            kv_usage=stats.kv_usage,
            stages_s=dict(self._stages.stages_s),
            loads=self._loads,
            error=self._error or ("" if parking is None else parking.error),
            permanent=self._permanent,
            park_bytes=0 if parking is None else parking.can.host_bytes,
            cannot_park="" if parking is None else parking.can.why_not,
        )

    async def check_health(self) -> None:
        """Raises EngineFailed when the engine is dead or was never started."""
        if self._engine is None:
            raise EngineFailed(f"replica {self._identity.replica} has no engine: {self._error or 'starting'}")
        try:
            await self._engine.check_health()
        except EngineFailed as error:
            self._error = str(error)
            raise

    async def stop(self, drain_s: float) -> None:
        """Let running requests finish for at most ``drain_s`` seconds, then end the engine. Safe to call twice."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(drain_s))
        await asyncio.shield(self._stopping)

    async def _stop(self, drain_s: float) -> None:
        self._phase = ReplicaPhase.STOPPING
        self._app.draining = True
        if self._parking is not None:
            await self._parking.stop()
        await self._app.until_idle(drain_s)
        await self._port.stop()
        if self._engine is not None:
            await self._engine.stop(ENGINE_STOP_S)
        lease = self._lease if self._parking is None or self._parking.lease_is_held else None
        if lease is not None and not await locks_gone(lease, LOCK_GONE_S):
            # Not ours to force: the engine's processes die with this one, and the arbiter waits for the lock.
            self._error = f"a slot lock of {self._identity.seat} is still held after the engine's end"
        await self._report()
        if self._reporter is not None:
            self._reporter.cancel()

    async def _report_for_ever(self) -> None:
        while True:
            await self._report()
            await asyncio.sleep(REPORT_PERIOD_S)

    async def _report(self) -> None:
        orders = await self._reports.report_replica(self.report())
        if orders is not None and self._phase is not ReplicaPhase.STOPPING:
            self._app.draining = orders.draining
            if self._parking is not None:
                self._parking.obey(orders)
