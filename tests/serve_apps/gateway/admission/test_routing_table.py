"""The gateway's book of seats: whatever comes in whatever order, a seat that left the table gets nothing any more."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ebbtide.client.messages import RoutingTable, SeatRoute
from ebbtide_serve.gateway.admission.routing_table import Routes
from tests.examples import examples

SEATS = tuple(SeatRoute(f"m/{number}", f"r{number}", f"http://{number}") for number in range(3))


class Clock:
    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def epoch_s(self) -> float:
        return self.now_s


class Book(RuleBasedStateMachine):
    """Parked and woken seats leave the table and come back; requests come and end meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.routes = Routes(self.clock, 4)
        self.version = 0
        self.offered: frozenset[SeatRoute] = frozenset()
        self.running: list[SeatRoute] = []
        self.at_leaving: dict[SeatRoute, int] = {}

    @rule(seats=st.frozensets(st.sampled_from(SEATS)))
    def adopt(self, seats: frozenset[SeatRoute]) -> None:
        self.version += 1
        for seat in self.offered - seats:
            self.at_leaving[seat] = self.running.count(seat)
        for seat in seats:
            self.at_leaving.pop(seat, None)
        self.routes.adopt(RoutingTable(self.version, {"m": tuple(sorted(seats, key=lambda one: one.seat))}))
        self.offered = seats

    @rule()
    def choose(self) -> None:
        seat = self.routes.choose("m")
        if seat is not None:
            assert seat in self.offered, f"{seat.seat} is parked"
            self.running.append(seat)

    @rule(number=st.integers(0, 20))
    def end(self, number: int) -> None:
        if self.running:
            self.routes.release("m", self.running.pop(number % len(self.running)))

    @rule(seat=st.sampled_from(SEATS), for_s=st.sampled_from([0.5, 3.0]))
    def shun(self, seat: SeatRoute, for_s: float) -> None:
        self.routes.shun(seat, for_s)

    @rule()
    def wait(self) -> None:
        self.clock.now_s += 1.0

    @invariant()
    def what_a_drain_waits_for_is_true(self) -> None:
        """``routes_seen`` and ``seat_inflight``: a seat that left has only what was there then, and less and less."""
        assert self.routes.version == self.version
        told = self.routes.seat_inflight("m")
        for seat in SEATS:
            assert told.get(seat.seat, 0) == self.running.count(seat)
            if seat in self.at_leaving:
                assert told.get(seat.seat, 0) <= self.at_leaving[seat], f"{seat.seat} got one after it left"


TestBook = Book.TestCase
TestBook.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None, database=None, derandomize=True
)
