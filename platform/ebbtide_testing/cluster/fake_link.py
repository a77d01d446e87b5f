"""How fake processes reach the fake arbiter: calls that may be lost, repeated or late, by seeded chance.

A caller sends one call at a time and gives up waiting after ``TIMEOUT_S``; a reply that comes later than that is
dropped, as `ebbtide.client.arbiter_link.ArbiterLink` does. A repeated call is taken in a second time, later, with the
content it had: stale news.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeVar

from ebbtide.client.messages import (
    AgentAnswer,
    AgentReport,
    ControllerOrders,
    ControllerReport,
    GatewayOrders,
    GatewayReport,
    JobDirective,
    Lease,
    RankReport,
    ReplicaOrders,
    ReplicaReport,
)
from ebbtide_testing.cluster.virtual_clock import VirtualClock

TIMEOUT_S = 2.0  # as the real link
R = TypeVar("R")


class ArbiterCalls(Protocol):
    """What the fake processes call; `ebbtide.client.messages` says what each means."""

    def report_rank(self, report: RankReport) -> JobDirective | None: ...
    def report_controller(self, report: ControllerReport) -> ControllerOrders: ...
    def job_ended(self, job: str, incarnation: str, outcome: str, detail: str) -> None: ...
    def report_replica(self, report: ReplicaReport) -> ReplicaOrders: ...
    def seat_lease(self, seat: str, replica: str, node: str, gpu_ids: tuple[int, ...]) -> Lease | None: ...
    def report_gateway(self, report: GatewayReport) -> GatewayOrders: ...
    def report_agent(self, report: AgentReport) -> AgentAnswer: ...


@dataclass(slots=True)
class Weather:
    """How bad the network is; may be changed at any time. Probabilities are per call."""

    lost: float = 0.0
    late: float = 0.0
    repeated: float = 0.0
    late_s: float = 2.0  # at most; a repeated call comes up to this much later still
    struck: int = 0  # calls of a living arbiter that were lost, late or repeated so far


class FakeLink:
    """The way to the arbiter; ``arbiter`` is None while it is dead."""

    def __init__(self, clock: VirtualClock, random: Random, weather: Weather) -> None:
        self._clock, self._random, self._weather = clock, random, weather
        self.arbiter: ArbiterCalls | None = None

    def call(self, ask: Callable[[ArbiterCalls], R], then: Callable[[R | None], None]) -> None:
        """Call the arbiter; ``then`` is called once, with its answer or None."""
        clock, random, weather = self._clock, self._random, self._weather
        deadline_s = clock.now_s + TIMEOUT_S

        def unanswered() -> None:
            clock.call_later(max(0.0, deadline_s - clock.now_s), lambda: then(None))

        def arrive() -> None:
            if self.arbiter is None:
                unanswered()
                return
            reply = ask(self.arbiter)
            back_s = random.uniform(0.001, 0.01)
            if random.random() < weather.lost / 2:
                weather.struck += 1
                unanswered()
            elif clock.now_s + back_s > deadline_s:
                unanswered()
            else:
                clock.call_later(back_s, lambda: then(reply))

        def arrive_again() -> None:
            if self.arbiter is not None:
                ask(self.arbiter)

        late = random.random() < weather.late
        delay_s = random.uniform(0.001, weather.late_s if late else 0.02)
        there = self.arbiter is not None
        if random.random() < weather.lost / 2:
            weather.struck += there
            unanswered()
        else:
            weather.struck += late and there
            clock.call_later(delay_s, arrive)
        if random.random() < weather.repeated:
            weather.struck += there
            clock.call_later(delay_s + random.uniform(0.0, weather.late_s), arrive_again)
