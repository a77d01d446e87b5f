"""A closed loop that is scraped."""

from collections.abc import Sequence
from dataclasses import replace

from ebbtide.config.sections.pool_section import PoolMode
from ebbtide.pool.events import Decision, Event
from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.ids import JobName
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState
from ebbtide_autoscaler.core.tick.tick import TickResult, World
from ebbtide_autoscaler.metrics.counter_state import CounterState
from ebbtide_autoscaler.metrics.gauges import Condition
from ebbtide_autoscaler.metrics.recorder import ArbiterRecorder, Reading
from tests.autoscaler.closed_loop import KNOBS, Loop, a_job
from tests.platform.telemetry.scrapes import values

TRAIN = JobName("train")


CONDITION = Condition(
    epoch=3,
    frozen_by=None,
    frozen_since_s=0.0,
    mode=PoolMode.MANAGE,
    waiting=0,
    nodes_wanted=2,
    cluster_untold=False,
    pending=0,
    oldest_pending_s=0.0,
)


def take_all(tally: CounterState, before: PoolState, events: Sequence[Event]) -> PoolState:
    """Count ``events`` in order; returns the state after them."""
    for event in events:
        tally.take(before, event)
        before = apply(before, event)
    return before


class Metered(Loop):
    """The closed loop with a meter that hears of each step, as the arbiter's shell does it."""

    def __init__(self, seed: int, **options: object) -> None:
        self.meter = ArbiterRecorder(self._reading, clock=lambda: self.clock.now_s)
        self.condition = CONDITION
        self.starts = 0
        super().__init__(seed, **options)  # type: ignore[arg-type]

    def _reading(self) -> Reading | None:
        return Reading(self.arbiter.world, self.arbiter.seen(), self.condition) if self.arbiter else None

    def start(self, world: World) -> None:
        super().start(world)
        recovered = CounterState()
        take_all(recovered, PoolState(), self.events)
        self.starts += 1
        for _ in range(self.starts):  # as many as the ledger has records of starts
            recovered.started()
        self.meter.recovered(recovered)

    def run(self, duration_s: float, tick_s: float = 0.2) -> list[Event]:
        found: list[Event] = []
        end_s = self.clock.now_s + duration_s
        while self.clock.now_s < end_s:
            if self.arbiter is None:
                self.clock.run_for(tick_s)
                continue
            before = self.arbiter.world.state
            events = super().run(tick_s, tick_s)
            if self.arbiter is not None:
                result = TickResult(tuple(events), self.arbiter.world, Decision(), ())
                self.meter.committed(before, result, self.arbiter.seen(), self.clock.now_s)
            found += events
        return found

    def scrape(self) -> dict[tuple[str, ...], float]:
        return values(self.meter.metrics.text()[0])


def one_tide() -> Metered:
    """Train, serve one request, train again."""
    loop = Metered(1)
    loop.knobs = replace(KNOBS, policy=replace(KNOBS.policy, restart_cost_s=60.0))
    loop.run(3.0)
    loop.submit(a_job())
    loop.run(10.0)
    loop.gateways[0].offer("chat")
    loop.run(60.0)
    assert loop.state.jobs[TRAIN].state is JobState.RUNNING, loop.story()
    return loop
