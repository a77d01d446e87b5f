"""The arbiter's metrics as its loop feeds them: after each tick, and around the ledger's writes.

Feeding costs nothing on a tick without events. Gauges are computed at a scrape, in the scrape's thread, from values
that the loop replaces whole.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.state import PoolState
from ebbtide.telemetry import arbiter, handover
from ebbtide.telemetry.metric_family import Sample
from ebbtide.telemetry.registry import Metrics
from ebbtide_autoscaler.core.observe.observation import Observation
from ebbtide_autoscaler.core.tick.tick import TickResult, World
from ebbtide_autoscaler.metrics.counter_state import CounterState
from ebbtide_autoscaler.metrics.event_counters import LEDGER_FAMILIES, Openings, opened_fences, time_event
from ebbtide_autoscaler.metrics.gauges import POOL_GAUGES, SELF_GAUGES, Condition, condition_gauges, gauges

COUNTED = (
    *handover.FAMILIES,
    arbiter.REFUSED,
    arbiter.TICK,
    arbiter.STEP,
    arbiter.TICK_FAILURES,
    arbiter.LEDGER_COMMIT,
    arbiter.LEDGER_FSYNC,
    arbiter.LEDGER_BYTES,
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a scrape is made from."""

    world: World
    seen: Observation | None  # None: the arbiter has just started
    condition: Condition


class ArbiterRecorder:
    """All metrics of one arbiter."""

    def __init__(self, read: Callable[[], Reading | None], clock: Callable[[], float] = time.time) -> None:
        """Args:
        read: the present world; None while there is none yet.
        clock: seconds since 1970.
        """
        self.tally = CounterState()
        self._read, self._clock = read, clock
        self._openings = Openings()
        self.metrics = Metrics(
            COUNTED, [(LEDGER_FAMILIES, lambda: self.tally.samples()), ((*POOL_GAUGES, *SELF_GAUGES), self._gauges)]
        )
        self._fsyncs = self.metrics.child(arbiter.LEDGER_FSYNC)
        self._commits = self.metrics.child(arbiter.LEDGER_COMMIT)
        self._bytes = self.metrics.child(arbiter.LEDGER_BYTES)
        self._ticks = self.metrics.child(arbiter.TICK)
        self._steps = self.metrics.child(arbiter.STEP)

    def recovered(self, tally: CounterState) -> None:
        """Take over what a replay of the ledger has counted."""
        self.tally = tally

    def committed(self, before: PoolState, result: TickResult, seen: Observation, now_s: float) -> None:
        """A step is durable: ``before`` is the state that it began with."""
        for event in result.events:
            for sample in time_event(before, event, self._openings):
                self.metrics.add(sample)
            self.tally.take(before, event)
            before = apply(before, event)
        for body, _ in result.refused:
            self.metrics.add(Sample(arbiter.REFUSED, 1, (body.kind,)))
        samples, self._openings = opened_fences(self._openings, result.world.state, seen, now_s)
        for sample in samples:
            self.metrics.add(sample)

    def started(self) -> None:
        """This arbiter's start is in the ledger."""
        self.tally.started()

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Around the pure part of a tick."""
        begun_s = time.perf_counter()
        yield
        self._steps.observe(time.perf_counter() - begun_s)

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Around an append, until it is acknowledged."""
        begun_s = time.perf_counter()
        yield
        self._commits.observe(time.perf_counter() - begun_s)

    def ticked(self, took_s: float) -> None:
        """A whole tick took so long."""
        self._ticks.observe(took_s)

    def tick_failed(self) -> None:
        """A tick ended in an error."""
        self.metrics.add(Sample(arbiter.TICK_FAILURES, 1))

    def fsync(self, fd: int) -> None:
        """``os.fsync``, timed; for the ledger's thread."""
        begun_s = time.perf_counter()
        os.fsync(fd)
        self._fsyncs.observe(time.perf_counter() - begun_s)

    def write(self, fd: int, data: bytes) -> int:
        """``os.write``, counted; for the ledger's thread."""
        written = os.write(fd, data)
        self._bytes.inc(written)
        return written

    def _gauges(self) -> Iterable[Sample]:
        reading = self._read()
        if reading is None:
            return
        yield from condition_gauges(reading.condition)
        if reading.seen is not None:
            yield from gauges(reading.world.state, reading.world.memory, reading.seen, self._clock())
