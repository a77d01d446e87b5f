"""How fake processes reach the fake arbiter: calls that may be lost, repeated or late, by seeded chance.

A caller sends one call at a time and gives up waiting after ``TIMEOUT_S``; a reply that comes later than that is
dropped, as `ebbtide.client.link.ArbiterLink` does. A repeated call is taken in a second time, later, with the content
it had: stale news.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeVar

from ebbtide.client.messages import (
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
from ebbtide.testing.virtual_clock import VirtualClock

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
    def report_agent(self, report: AgentReport) -> None: ...


@dataclass(slots=True)
class Weather:
    """How bad the network is; may be changed at any time. Probabilities are per call."""

    lost: float = 0.0
    late: float = 0.0
    repeated: float = 0.0
    late_s: float = 2.0  # at most; a repeated call comes up to this much later still


class FakeLink:
    """The way to the arbiter; ``arbiter`` is None while it is dead."""

    def __init__(self, clock: VirtualClock, random: Random, weather: Weather) -> None:
        self._clock, self._random, self._weather = clock, random, weather
        self.arbiter: ArbiterCalls | None = None

    def call(self, ask: Callable[[ArbiterCalls], R], then: Callable[[R | None], None]) -> None:
        """Call the arbiter; ``then`` is called once, with its answer or None."""
        answered = False

        def answer(reply: R | None) -> None:
            nonlocal answered
            if not answered:
                answered = True
                then(reply)

        def arrive() -> None:
            if self.arbiter is None:
                return
            reply = ask(self.arbiter)
            if self._random.random() >= self._weather.lost / 2:
                self._clock.call_later(self._random.uniform(0.001, 0.01), lambda: answer(reply))

        def arrive_again() -> None:
            if self.arbiter is not None:
                ask(self.arbiter)

        late = self._random.random() < self._weather.late
        delay_s = self._random.uniform(0.001, self._weather.late_s if late else 0.02)
        if self._random.random() >= self._weather.lost / 2:
            self._clock.call_later(delay_s, arrive)
        if self._random.random() < self._weather.repeated:
            self._clock.call_later(delay_s + self._random.uniform(0.0, self._weather.late_s), arrive_again)
        self._clock.call_later(TIMEOUT_S, lambda: answer(None))
