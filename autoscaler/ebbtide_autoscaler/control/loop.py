"""The arbiter's loop: observe, decide, journal the intent, act; in a thread of its own, with its own event loop.

Other threads are told of ``published``, which is replaced only after the ledger has confirmed the events that lead to
it: no process acts on a move that a crash could undo. While the ledger does not answer nothing moves, and ``frozen``
says why (promise 8); everything that runs goes on.
"""

import asyncio
import logging
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ebbtide.config.pool_file import PoolFile
from ebbtide.config.sections.pool_section import PoolMode
from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.ledger.errors import LedgerError
from ebbtide.pool.errors import PoolError
from ebbtide.pool.events import Body
from ebbtide.pool.ids import JobName
from ebbtide_autoscaler.cluster.node_scaler import NodeScaler
from ebbtide_autoscaler.control import settings
from ebbtide_autoscaler.control.cluster_watch import ClusterWatch, cluster_name, load_serve, load_train
from ebbtide_autoscaler.control.config_in_force import ConfigInForce
from ebbtide_autoscaler.control.fence_sync import FenceSync
from ebbtide_autoscaler.control.fence_table import FenceTable
from ebbtide_autoscaler.control.inbox import Inbox
from ebbtide_autoscaler.control.key_changes import KeyChanges
from ebbtide_autoscaler.control.published import Published
from ebbtide_autoscaler.control.reconcile import Reconciler
from ebbtide_autoscaler.core.decide.idle_cache import IdleCache
from ebbtide_autoscaler.core.demand.demand_watch import DemandWatch
from ebbtide_autoscaler.core.observe.alerts import FreezeCause
from ebbtide_autoscaler.core.observe.config_agreement import config_events
from ebbtide_autoscaler.core.observe.gateway_routes import next_routes
from ebbtide_autoscaler.core.observe.observation import Limits, Observation
from ebbtide_autoscaler.core.observe.settling import settling
from ebbtide_autoscaler.core.observe.traffic import traffic
from ebbtide_autoscaler.core.plan.inputs import PolicyConfig
from ebbtide_autoscaler.core.replicas.unavailable_endpoints import unavailable_endpoints
from ebbtide_autoscaler.core.tick.tick import TickResult, TickSettings, World, tick
from ebbtide_autoscaler.journal.annotations import Annotations
from ebbtide_autoscaler.journal.demand_records import demand_record
from ebbtide_autoscaler.journal.halt import Halt
from ebbtide_autoscaler.journal.ledger_io import LedgerIO, OpenLedger
from ebbtide_autoscaler.journal.ledger_session import LedgerSession
from ebbtide_autoscaler.journal.recovery import latest_s, still_left
from ebbtide_autoscaler.metrics.exporter import MetricsExporter
from ebbtide_autoscaler.metrics.gauges import Condition
from ebbtide_autoscaler.metrics.recorder import ArbiterRecorder, Reading
from ebbtide_autoscaler.process.loop_thread import LoopThread
from ebbtide_autoscaler.process.steady_clock import clock

LEAST_TICK_S = 0.02  # reports may wake the loop at most this often

log = logging.getLogger(__name__)


class Loop:
    """One arbiter's life. Other threads read ``published``, write into ``inbox``, and hand work to ``thread``."""

    def __init__(self, pool: str, shared_dir: Path, *, lock_dir: str, writer: str) -> None:
        self._halt = Halt()
        self.thread = LoopThread("arbiter-loop")
        self.published = Published(self._halt)
        self.inbox = Inbox(started_s=clock.now_s(), wake=self.thread.wake)
        self._writer = writer
        self._book = FenceTable()
        self._annotations = Annotations()
        self._watch = DemandWatch()
        self._idle = IdleCache()
        self.meter = ArbiterRecorder(self._reading)
        self.exporter = MetricsExporter(self.meter.metrics, Path(lock_dir).parent)
        opener = partial(EpochLog.open, writer=writer, fsync=self.meter.fsync, write=self.meter.write)
        memory = Path(lock_dir).parent / "ledger.json"
        door = LedgerIO(shared_dir, memory=memory, cluster=cluster_name(), open_log=opener)
        self.ledger = LedgerSession(door, shared_dir, self._halt, self._take_over)
        self.keys = KeyChanges(self.ledger.record)
        self.file = ConfigInForce(shared_dir, self.keys, self.ledger.record)
        serve, self._jobs = load_serve(), load_train(str(shared_dir))
        self._fences = FenceSync(pool, self._book)
        self._cluster_watch = ClusterWatch(self.inbox, self._book, self._fences, serve, self._jobs, lock_dir)
        self.reconciler = Reconciler(
            pool,
            lock_dir,
            serve=serve,
            jobs=self._jobs,
            file=self.file,
            ledger=self.ledger,
            inbox=self.inbox,
            book=self._book,
            cluster_watch=self._cluster_watch,
            fences=self._fences,
            state=lambda: self.published.state,
        )
        self.node_scaler = NodeScaler()
        self._stopping = False  # nothing is decided any more
        self._stopped = False  # and the loop ends

    def start(self) -> None:
        """Run until the process ends; returns when the ledger is open, or after some seconds without it."""
        self.thread.start(self._main)
        self.ledger.wait_opened()

    def forget_submission(self, job: JobName) -> None:
        """Have what was kept of a job's submission removed; returns at once. What cannot be removed is only litter."""

        async def forget() -> None:
            try:
                await self._jobs.forget(job)
            except Exception as error:  # noqa: BLE001 - outermost; the ledger says that the job is over: it stays so
                log.warning("what was kept of job %s's submission stays: %r", job, error)

        self.thread.run(forget())

    # ---- for the loop's own thread, by ``thread.run``

    async def configure(self, config: PoolFile) -> dict[str, Any]:
        """Journal a file, then obey it; what follows from it is made to hold tick by tick (``config_events``)."""
        before = self.published.state
        await self.file.put(config)
        self.thread.wake()
        return {
            "changed": [type(body).__name__ for body in config_events(config, before, may_move=False)],
            "gateway": await self.reconciler.tell_gateway(config),
        }

    async def stop(self) -> None:
        """Take the pool down: remove gateway and seats, drop the fences, and stop deciding."""
        self._stopping = True
        self.exporter.close()
        await self.node_scaler.leave()
        await self.reconciler.leave()
        if self.ledger.opened:
            self.ledger.write((), extra=[{"type": "pool_stopped", "at_s": clock.now_s()}])
        self.ledger.close()
        self._stopped = True

    # ---- the loop itself

    async def _main(self) -> None:
        self._halt.freeze("the arbiter has just started; it reads its ledger", by=FreezeCause.START)
        await self.ledger.open_first(lambda: self._stopped)
        if not self.ledger.opened:
            return
        await self._fences.adopt()
        watching = asyncio.create_task(
            self._cluster_watch.watch(
                self._host_bytes, lambda: self.published.state, self.reconciler.fencing, lambda: self.published.left
            )
        )
        self.ledger.write((), extra=[{"type": "arbiter_started", "at_s": clock.now_s(), "writer": self._writer}])
        self.meter.started()
        while not self._stopped:
            started_s = time.monotonic()
            try:
                await self._tick()
            except PoolError as error:
                self._halt.freeze(
                    f"the next state would break a promise, so nothing moves: {error}", by=FreezeCause.PROMISE
                )
            except LedgerError as error:
                await self.ledger.reopen(error)
            except Exception as error:  # outermost: state unchanged, the next tick starts afresh
                log.exception("tick failed")
                self.meter.tick_failed()
                self._halt.freeze(f"a tick failed: {error!r}", by=FreezeCause.PROMISE)
            self.published.tick_took_s = time.monotonic() - started_s
            self.meter.ticked(self.published.tick_took_s)
            if self.file.config is not None and not self._stopping:
                urls = [gateway.report.url for gateway in list(self.inbox.gateways.values())]
                self.exporter.keep(self.file.config.metrics, self.file.config.pool.name, urls)
            tick_s = self.file.config.policy.tick_s if self.file.config else 0.2
            await self.thread.pause(LEAST_TICK_S, tick_s)
        watching.cancel()

    async def _tick(self) -> None:
        now_s = clock.now_s()
        self.inbox.attend(now_s)  # guard: the loop notices that it was away
        published = self.published
        routes = published.routing_table
        seen = self.inbox.seen(published.state, self._book, self.reconciler.fencing(), routes.version)
        bodies = self.inbox.take_submitted()
        try:
            knobs = self._knobs(seen)
            with self.meter.stepping():
                signals = traffic(published.state, seen, now_s)
                closed = self._watch.hear(now_s, signals)
                submitted, expected = (*bodies, *self._agree(knobs)), self._watch.outlooks
                result = tick(published.world, seen, submitted, now_s, knobs, expected, self._idle, signals)
            before = published.state
            await self._commit(result, [demand_record(one) for one in closed])
            self.meter.committed(before, result, seen, now_s)
        except BaseException:
            # guard: what was submitted while the ledger failed is not lost
            self.inbox.submitted.extendleft(reversed(bodies))
            raise
        for body, why in result.refused:
            log.info("refused %s: %s", body, why)
        published.seen, published.outlooks = seen, self._watch.outlooks
        unavailable = unavailable_endpoints(now_s, published.state)
        published.routing_table = next_routes(routes, published.state, seen, self.ledger.epoch, unavailable)
        self.reconciler.act(seen, now_s)
        self._keep_size(now_s, may_move=not (knobs.frozen or knobs.observe))
        if await self.ledger.keep_short():
            published.world = replace(published.world, arbiter_epoch=self.ledger.epoch, next_number=1)

    def _keep_size(self, now_s: float, *, may_move: bool) -> None:
        """Have the cluster grow or shrink, where the file lets it; what follows is taken in at the next tick."""
        config, state = self.file.config, self.published.state
        if config is None or self._stopping:
            return
        aims = {name: one.aim for name, one in self.published.world.memory.endpoints.items()}
        bounds, elastic = settings.cluster_size(config), self._cluster_watch.elastic
        may_move = may_move and not state.frozen and not self.inbox.closes()
        self.inbox.submitted.extend(self.node_scaler.tick(now_s, state, aims, bounds, elastic, may_move=may_move))

    def _agree(self, knobs: TickSettings) -> tuple[Body, ...]:
        if self.file.config is None or self._stopping:
            return ()
        state = self.published.state
        return config_events(
            self.file.config,
            state,
            may_move=not (
                knobs.frozen
                or knobs.observe  # guard: an observing pool drains nothing for its file
                or state.frozen
            ),
        )

    def _knobs(self, seen: Observation) -> TickSettings:
        if self.file.config is None:
            return TickSettings(PolicyConfig(), Limits(), frozen=True)
        settles = settling(self.published.state, seen, clock.now_s())
        self.published.settling_since_s = seen.started_s if settles else 0.0
        return settings.tick_settings(
            self.file.config,
            frozen=(
                self._stopping
                # guard: a new arbiter decides when every replica has reported
                or settles
            ),
        )

    async def _commit(self, result: TickResult, records: list[dict[str, Any]]) -> None:
        memory = result.world.memory if result.world.memory != self.published.world.memory else None
        waits = self.node_scaler.explained(dict(result.decision.waits))
        observing = self.file.mode is PoolMode.OBSERVE and not self.inbox.closes()
        would = self._annotations.would(
            result.decision.moves if observing else (), epoch=self.ledger.epoch, now_s=clock.now_s()
        )
        extra = [*records, *self._annotations.waits(waits, clock.now_s()), *would]
        if result.events or memory is not None or extra:
            written = self.ledger.write(result.events, memory=memory, extra=extra)
            with self.meter.committing():
                await self.ledger.durable(written)  # guard: others hear only of what the ledger has confirmed
        self.published.world = result.world
        self.published.waits = waits
        self._halt.thaw()
        for event in result.events:
            self.published.left = still_left(self.published.left, event.body)
            log.info("%s %s", event.id, event.body)

    def _take_over(self, ledger: OpenLedger) -> None:
        """Go on from what the ledger says, which was opened just now."""
        found = ledger.found
        clock.not_before(latest_s(found.state, found.demand.values()))
        self.published.world = World(found.state, found.memory, ledger.epoch)
        self.published.left = found.left
        self._watch = DemandWatch(found.demand)
        self.published.outlooks = self._watch.outlooks
        self.meter.recovered(found.tally)
        self._book.names = dict(found.fences)
        self.keys.recover(found.keys, ledger.epoch)
        self.file.recover(ledger)

    def _reading(self) -> Reading | None:
        if not self.ledger.opened:
            return None
        health, still = self.ledger.health(), self.published.still
        condition = Condition(
            epoch=self.ledger.epoch,
            frozen_by=still.by,
            frozen_since_s=still.since_s,
            mode=self.file.mode,
            waiting=len(self.published.waits),
            nodes_wanted=self.node_scaler.wish.nodes if self.node_scaler.wish else len(self.published.state.nodes),
            cluster_untold=bool(self.node_scaler.trouble),
            pending=health.pending,
            oldest_pending_s=health.oldest_pending_s,
        )
        return Reading(self.published.world, self.published.seen, condition)

    def _host_bytes(self) -> int | None:
        """None: nothing is to be looked at, for what is found could not be taken in, and must not pile up."""
        if self.file.config is None or self._halt.on.by is FreezeCause.LEDGER:
            return None
        return self.file.config.pool.host_memory_per_node
