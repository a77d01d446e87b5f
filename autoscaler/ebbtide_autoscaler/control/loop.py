"""The arbiter's loop: observe, decide, journal the intent, act; in a thread of its own, with its own event loop.

What others are told comes from ``world``, which is replaced only after the ledger has confirmed the events that lead
to it: nobody acts on a move that a crash could undo. While the ledger does not answer nothing moves, and ``frozen``
says why and since when (promise 8); everything that runs goes on.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ebbtide.client.messages import RoutingTable
from ebbtide.config.pool import PoolMode
from ebbtide.config.root import PoolFile
from ebbtide.ledger.errors import LedgerError
from ebbtide.ledger.log import EpochLog
from ebbtide.pool.errors import PoolError
from ebbtide.pool.events import Body
from ebbtide.pool.ids import JobName
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.cluster.keeper import SizeKeeper
from ebbtide_autoscaler.control import settings
from ebbtide_autoscaler.control.cluster_watch import Surroundings, cluster_name, load_serve, load_train
from ebbtide_autoscaler.control.config_in_force import FileDesk
from ebbtide_autoscaler.control.fence_table import FenceBook
from ebbtide_autoscaler.control.inbox import Reports
from ebbtide_autoscaler.control.key_changes import KeyDesk
from ebbtide_autoscaler.control.reconcile import Acting
from ebbtide_autoscaler.control.steady_clock import clock, latest_s
from ebbtide_autoscaler.core.decide.idle_cache import IdleCache
from ebbtide_autoscaler.core.decide.lookahead import foreseen
from ebbtide_autoscaler.core.observe.alerts import FreezeCause, Standstill, standstill
from ebbtide_autoscaler.core.observe.observation import Limits, Seen
from ebbtide_autoscaler.core.observe.observe import next_routes, settling, traffic
from ebbtide_autoscaler.core.observe.reconcile_config import agree
from ebbtide_autoscaler.core.plan.inputs import Memory, PolicyConfig
from ebbtide_autoscaler.core.tick.tick import Knobs, Step, World, shown, step
from ebbtide_autoscaler.forecast.record import demand_record
from ebbtide_autoscaler.forecast.watch import Watch
from ebbtide_autoscaler.journal.annotations import Remarks
from ebbtide_autoscaler.journal.halt import Brake
from ebbtide_autoscaler.journal.ledger_io import LedgerDoor, OpenLedger
from ebbtide_autoscaler.journal.ledger_session import LedgerKeeper
from ebbtide_autoscaler.metrics.exporter import MetricsDoor
from ebbtide_autoscaler.metrics.gauges import Condition
from ebbtide_autoscaler.metrics.recorder import ArbiterMeter, Reading

LEAST_TICK_S = 0.02  # reports may wake the loop at most this often

log = logging.getLogger(__name__)


class Loop:
    """One arbiter's life. Public attributes are replaced whole and may be read from any thread."""

    def __init__(self, pool: str, shared_dir: Path, *, lock_dir: str, writer: str) -> None:
        self.reports = Reports(started_s=clock.now_s())
        self.waits: dict[str, str] = {}
        self.settling_since_s = 0.0  # a new arbiter does not decide before everybody was heard; 0: it has
        self.seen: Seen | None = None
        self.routing_table = RoutingTable()
        self.tick_took_s = 0.0
        self._writer = writer
        self._book = FenceBook()
        self._brake = Brake()
        self._remarks = Remarks()
        self._watch = Watch()
        self._idle = IdleCache()
        self.meter = ArbiterMeter(self._reading)
        self.metrics_door = MetricsDoor(self.meter.metrics, Path(lock_dir).parent)
        self.world = World(PoolState(), Memory(), 0)
        opener = partial(EpochLog.open, writer=writer, fsync=self.meter.fsync, write=self.meter.write)
        memory = Path(lock_dir).parent / "ledger.json"
        door = LedgerDoor(shared_dir, memory=memory, cluster=cluster_name(), open_log=opener)
        self.ledger = LedgerKeeper(door, shared_dir, self._brake, self._take_over)
        self.keys = KeyDesk(self.ledger.record)
        self.file = FileDesk(shared_dir, self.keys, self.ledger.record)
        serve, self._jobs = load_serve(), load_train(str(shared_dir))
        self._surroundings = Surroundings(pool, self.reports, self._book, serve, self._jobs, lock_dir)
        self.acting = Acting(
            pool,
            lock_dir,
            serve=serve,
            jobs=self._jobs,
            file=self.file,
            ledger=self.ledger,
            reports=self.reports,
            book=self._book,
            surroundings=self._surroundings,
            state=lambda: self.world.state,
        )
        self.size = SizeKeeper()
        self._stopping = False  # nothing is decided any more
        self._stopped = False  # and the loop ends
        self._wake: asyncio.Event | None = None
        self._asyncio: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()

    @property
    def opened(self) -> bool:
        """Until the ledger was read for the first time, nothing is known and nobody is told a thing."""
        return self.ledger.opened

    @property
    def configured(self) -> bool:
        """Whether a file is in force."""
        return self.file.config is not None

    @property
    def frozen(self) -> str:
        """Why nothing moves, a person's freeze apart; "" if it does."""
        return self._brake.on.why

    @property
    def still(self) -> Standstill:
        """Why nothing is decided now, whatever the cause."""
        return standstill(self.world.state, self._brake.on, self.settling_since_s)

    # ---- called from other threads

    def start(self) -> None:
        """Run until the process ends; returns when the ledger is open, or after some seconds without it."""
        threading.Thread(target=lambda: asyncio.run(self._main()), name="arbiter-loop", daemon=True).start()
        self._ready.wait()
        self.ledger.wait_opened()

    def submit(self, body: Body) -> None:
        """Have a fact taken in at the next tick."""
        self.reports.inbox.append(body)
        self.wake()

    def withdraw(self, body: Body) -> bool:
        """Take back what was submitted; False: it is on its way into the ledger already."""
        with contextlib.suppress(ValueError, IndexError):  # not there any more, or changed while we looked
            self.reports.inbox.remove(body)
            return True
        return False

    def wake(self) -> None:
        """Have the next tick come now."""
        if self._asyncio is not None and self._wake is not None:
            self._asyncio.call_soon_threadsafe(self._wake.set)

    def forget_submission(self, job: JobName) -> None:
        """Have what was kept of a job's submission removed; returns at once. What cannot be removed is only litter."""

        async def forget() -> None:
            try:
                await self._jobs.forget(job)
            except Exception as error:  # noqa: BLE001 - outermost; the ledger says it is over: nobody restores it
                log.warning("what was kept of job %s's submission stays: %r", job, error)

        self._run(forget())

    def configure(self, config: PoolFile) -> "Future[dict[str, Any]]":
        """Put a file into force."""
        self.must_be_open()
        return self._run(self._configure(config))

    def foresee(self, at_s: float) -> dict[str, Any]:
        """What the policy would come to at ``at_s`` (seconds since 1970), if demand is then as it is expected to be."""
        now_s, state, seen = clock.now_s(), self.world.state, self.seen
        if seen is None:
            return {"at_s": at_s, "endpoints": [], "free_slots": 0, "moves": []}
        memory = self.world.memory
        policy = settings.knobs(self.file.config, frozen=False).policy if self.file.config else PolicyConfig()
        signals = traffic(state, seen, now_s)
        world = shown(state, seen, now_s, memory, policy, signals, self._watch.outlooks)
        return foreseen(now_s, max(now_s, at_s), world, memory, policy)

    def change_keys(self, change: Coroutine[Any, Any, Any]) -> "Future[dict[str, Any]]":
        """Carry out one of ``keys``' changes."""
        try:
            self.must_be_open()
        except ValueError:
            change.close()
            raise
        return self._run(change)

    def must_be_open(self) -> None:
        """Raise ValueError for a person if the ledger has not been read and is not within some seconds."""
        if not self.ledger.wait_opened():  # guard: a person is told that the ledger is not open
            raise ValueError(f"the arbiter has not read its ledger yet, nothing was changed: {self.frozen}")

    def stop(self) -> "Future[None]":
        """Take the pool down."""
        return self._run(self._stop())

    def _run(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        assert self._asyncio is not None
        return asyncio.run_coroutine_threadsafe(work, self._asyncio)

    # ---- the loop's own thread

    async def _main(self) -> None:
        self._asyncio = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._brake.freeze("the arbiter has just started; it reads its ledger", by=FreezeCause.START)
        self._ready.set()
        await self.ledger.open_first(lambda: self._stopped)
        if not self.opened:
            return
        await self._surroundings.adopt()
        watching = asyncio.create_task(
            self._surroundings.watch(self._host_bytes, lambda: self.world.state, self.acting.fencing)
        )
        self.ledger.write((), extra=[{"type": "arbiter_started", "at_s": clock.now_s(), "writer": self._writer}])
        self.meter.started()
        while not self._stopped:
            started_s = time.monotonic()
            try:
                await self._tick()
            except PoolError as error:
                self._brake.freeze(
                    f"the next state would break a promise, so nothing moves: {error}", by=FreezeCause.PROMISE
                )
            except LedgerError as error:
                await self.ledger.reopen(error)
            except Exception as error:  # outermost: state unchanged, the next tick starts afresh
                log.exception("tick failed")
                self.meter.tick_failed()
                self._brake.freeze(f"a tick failed: {error!r}", by=FreezeCause.PROMISE)
            self.tick_took_s = time.monotonic() - started_s
            self.meter.ticked(self.tick_took_s)
            if self.file.config is not None and not self._stopping:
                urls = [one.report.url for one in list(self.reports.gateways.values())]
                self.metrics_door.keep(self.file.config.metrics, self.file.config.pool.name, urls)
            await self._pause()
        watching.cancel()

    async def _pause(self) -> None:
        assert self._wake is not None
        await asyncio.sleep(LEAST_TICK_S)
        tick_s = self.file.config.policy.tick_s if self.file.config else 0.2
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(0.0, tick_s - LEAST_TICK_S))
        self._wake.clear()

    async def _tick(self) -> None:
        now_s = clock.now_s()
        self.reports.attend(now_s)  # guard: the loop notices that it was away
        seen = self.reports.seen(self.world.state, self._book, self.acting.fencing(), self.routing_table.version)
        bodies = self.reports.take_inbox()
        try:
            knobs = self._knobs(seen)
            with self.meter.stepping():
                signals = traffic(self.world.state, seen, now_s)
                closed = self._watch.hear(now_s, signals)
                submitted, expected = (*bodies, *self._agree(knobs)), self._watch.outlooks
                result = step(self.world, seen, submitted, now_s, knobs, expected, self._idle, signals)
            before = self.world.state
            await self._commit(result, [demand_record(one) for one in closed])
            self.meter.committed(before, result, seen, now_s)
        except BaseException:
            # guard: what was submitted while the ledger failed is not lost
            self.reports.inbox.extendleft(reversed(bodies))
            raise
        for body, why in result.refused:
            log.info("refused %s: %s", body, why)
        self.seen = seen
        self.routing_table = next_routes(self.routing_table, self.world.state, seen, self.ledger.epoch)
        self.acting.act(seen, now_s)
        self._keep_size(now_s, may_move=not (knobs.frozen or knobs.observe))
        if await self.ledger.keep_short():
            self.world = replace(self.world, arbiter_epoch=self.ledger.epoch, next_number=1)

    def _keep_size(self, now_s: float, *, may_move: bool) -> None:
        """Have the cluster grow or shrink, where the file lets it; what follows is taken in at the next tick."""
        config, state = self.file.config, self.world.state
        if config is None or self._stopping:
            return
        aims = {name: one.aim for name, one in self.world.memory.endpoints.items()}
        bounds, elastic = settings.cluster_size(config), self._surroundings.elastic
        may_move = may_move and not state.frozen
        self.reports.inbox.extend(self.size.tick(now_s, state, aims, bounds, elastic, may_move=may_move))

    def _agree(self, knobs: Knobs) -> tuple[Body, ...]:
        if self.file.config is None or self._stopping:
            return ()
        state = self.world.state
        return agree(
            self.file.config,
            state,
            may_move=not (
                knobs.frozen
                or knobs.observe  # guard: an observing pool drains nothing for its file
                or state.frozen
            ),
        )

    def _knobs(self, seen: Seen) -> Knobs:
        if self.file.config is None:
            return Knobs(PolicyConfig(), Limits(), frozen=True)
        settles = settling(self.world.state, seen, clock.now_s())
        self.settling_since_s = seen.started_s if settles else 0.0
        return settings.knobs(
            self.file.config,
            frozen=(
                self._stopping
                # guard: a new arbiter decides when every replica has reported
                or settles
            ),
        )

    async def _commit(self, result: Step, records: list[dict[str, Any]]) -> None:
        memory = result.world.memory if result.world.memory != self.world.memory else None
        waits = self.size.explained(dict(result.decision.waits))
        observing = self.file.mode is PoolMode.OBSERVE
        would = self._remarks.would(
            result.decision.moves if observing else (), epoch=self.ledger.epoch, now_s=clock.now_s()
        )
        extra = [*records, *self._remarks.waits(waits, clock.now_s()), *would]
        if result.events or memory is not None or extra:
            written = self.ledger.write(result.events, memory=memory, extra=extra)
            with self.meter.committing():
                await self.ledger.durable(written)  # guard: others hear only of what the ledger has confirmed
        self.world = result.world
        self.waits = waits
        self._brake.thaw()
        for event in result.events:
            log.info("%s %s", event.id, event.body)

    def _take_over(self, ledger: OpenLedger) -> None:
        """Go on from what the ledger says, which was opened just now."""
        found = ledger.found
        clock.not_before(latest_s(found.state, found.demand.values()))
        self.world = World(found.state, found.memory, ledger.epoch)
        self._watch = Watch(found.demand)
        self.meter.recovered(found.tally)
        self._book.names = dict(found.fences)
        self.keys.recover(found.keys, ledger.epoch)
        self.file.recover(ledger)

    def _reading(self) -> Reading | None:
        if not self.opened:
            return None
        health, still = self.ledger.health(), self.still
        condition = Condition(
            epoch=self.ledger.epoch,
            frozen_by=still.by,
            frozen_since_s=still.since_s,
            mode=self.file.mode,
            waiting=len(self.waits),
            nodes_wanted=self.size.wish.nodes if self.size.wish else len(self.world.state.nodes),
            cluster_untold=bool(self.size.trouble),
            pending=health.pending,
            oldest_pending_s=health.oldest_pending_s,
        )
        return Reading(self.world, self.seen, condition)

    def _host_bytes(self) -> int | None:
        """None: nothing is to be looked at, for what is found could not be taken in, and must not pile up."""
        if self.file.config is None or self._brake.on.by is FreezeCause.LEDGER:
            return None
        return self.file.config.pool.host_memory_per_node

    async def _configure(self, config: PoolFile) -> dict[str, Any]:
        """Journal the file, then obey it; what follows from it is made to hold tick by tick (``reconcile_config``)."""
        before = self.world.state
        await self.file.put(config)
        self.wake()
        return {
            "changed": [type(body).__name__ for body in agree(config, before, may_move=False)],
            "gateway": await self.acting.tell_gateway(config),
        }

    async def _stop(self) -> None:
        self._stopping = True
        self.metrics_door.close()
        await self.size.leave()
        await self.acting.leave()
        self.ledger.close()
        self._stopped = True
