"""Closed loops in mid-life, and what is read of them."""

from collections.abc import Callable
from dataclasses import replace

from ebbtide.pool.events import (
    Move,
)
from ebbtide.pool.ids import EndpointName, JobName, SeatId, SlotId
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState, SeatState
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals, Memory
from ebbtide_testing.cluster.fake_gang import FakeDriver
from tests.autoscaler.closed_loop import Loop, a_job, an_endpoint
from tests.autoscaler.referee import Books, Case
from tests.builders.policy import CONFIG, NOW

TRAIN, SEAT, S0 = JobName("train"), SeatId("chat/0"), SlotId("n0:0")


def training(seed: int = 1, *, workers: int = 3, in_place: bool = True) -> tuple[Loop, FakeDriver]:
    """A pool of three slots on which a job runs."""
    loop = Loop(seed)
    loop.run(3.0)
    driver = loop.submit(replace(a_job(workers_max=workers), in_place=in_place))
    loop.run(0.4)
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.RUNNING)
    loop.run(3.0)
    return loop, driver


def until(loop: Loop, true: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Let time pass until something holds."""
    end_s = loop.clock.now_s + limit_s
    while not true():
        assert loop.clock.now_s < end_s, loop.story("it did not come about")
        loop.run(0.2)


def serving(seed: int = 1) -> Loop:
    """A pool whose endpoint has one replica, and steady traffic."""
    loop = Loop(seed, endpoints=(an_endpoint(replicas_max=1),))
    loop.run(3.0)
    loop.gateways[0].steady = True
    loop.gateways[0].rates["chat"] = 0.5
    until(loop, lambda: SEAT in loop.state.seats and loop.state.seats[SEAT].state is SeatState.READY)
    return loop


def a_case(
    state: PoolState,
    *moves: Move,
    traffic: dict[EndpointName, EndpointSignals] | None = None,
    books: Books | None = None,
) -> Case:
    return Case(NOW, state, moves, {}, traffic or {}, Memory(), CONFIG, books or Books())
