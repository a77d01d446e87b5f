"""The hold and the routes under any order of events, by a model that knows only the promises."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ebbtide.client.messages import RoutingTable, SeatRoute, Unavailable
from ebbtide_serve.gateway.admission.held_requests import Hold, HoldLimits, Seated
from ebbtide_serve.gateway.admission.routing_table import Routes
from ebbtide_serve.gateway.clock import Clock, SystemClock
from ebbtide_serve.gateway.errors import Refusal
from tests.examples import examples

SEATS = [SeatRoute(f"m/{number}", "r", f"http://127.0.0.1:{number}") for number in range(3)]
LIMITS = HoldLimits(max_requests=4, max_bytes=1000, max_age_s=60, retry_after_s=5)
MAX_INFLIGHT = 2

_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(1, 400)),
        st.tuples(st.just("hang up"), st.integers(0, 10)),
        st.tuples(st.just("finish"), st.integers(0, 10)),
        st.tuples(st.just("table"), st.sets(st.integers(0, 2))),
        # All of these in one instant, before anybody could run:
        st.tuples(st.just("finish and hang up"), st.integers(0, 10)),
    ),
    max_size=40,
)


@pytest.mark.proves(
    "a request that gives up leaves the line at once",
    "a seat that is given in the instant of giving up goes to the next",
    "a seat that left the table gets nothing new",
    "no seat gets more requests than its share",
    "what still runs at a seat that left the table is told until it ends",
)
@hypothesis_settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(events=_EVENTS)
def test_seats_are_never_overfilled_or_leaked_and_waiters_go_in_order(events: list[tuple[str, Any]]) -> None:
    asyncio.run(_play(events))


async def _play(events: list[tuple[str, Any]]) -> None:
    clock = SystemClock()
    routes = Routes(clock, MAX_INFLIGHT)
    hold = Hold(routes, LIMITS, clock)
    waiting: list[asyncio.Task[Seated]] = []
    seated: list[SeatRoute] = []
    table: set[SeatRoute] = set()
    version = 0
    for event, value in events:
        if event == "arrive":
            waiting.append(asyncio.create_task(hold.seat("m", value)))
        if event == "table":
            version += 1
            table = {SEATS[number] for number in value}
            hold.adopt(RoutingTable(version, {"m": tuple(table)}))
            assert routes.version == version
        if "finish" in event and seated:
            hold.release("m", seated.pop(value % len(seated)))
        if "hang up" in event and waiting:
            waiting[value % len(waiting)].cancel()
        before = list(seated)
        await _settle()
        still = []
        for task in waiting:
            if not task.done():
                still.append(task)
            elif not task.cancelled() and task.exception() is None:
                assert not still, "a later request was served before an earlier one"
                assert task.result().seat in table, "a seat outside the table got a request"
                seated.append(task.result().seat)
            elif not task.cancelled():
                refusal = task.exception()
                assert isinstance(refusal, Refusal) and refusal.status == 429
        waiting = still
        assert hold.held("m") == len(waiting) <= LIMITS.max_requests
        assert hold.held_bytes("m") <= LIMITS.max_bytes
        assert routes.inflight("m") == len(seated)
        load = routes.seat_inflight("m")
        assert load == {seat.seat: seated.count(seat) for seat in set(seated)}
        assert all(count <= MAX_INFLIGHT for count in load.values())
        if waiting:
            full = all(load.get(seat.seat, 0) == MAX_INFLIGHT for seat in table)
            assert full, "a request waits though a seat is free"
        assert len(before) <= len(seated) or not waiting
    for task in waiting:
        task.cancel()
    await _settle()
    assert hold.held("m") == 0 and hold.held_bytes("m") == 0


async def _settle() -> None:
    for _ in range(5):  # each wake-up costs a turn or two of the loop
        await asyncio.sleep(0)


@pytest.mark.proves("a request that lost its seat comes first")
async def test_a_request_that_lost_its_seat_comes_before_those_that_wait() -> None:
    clock = SystemClock()
    hold = Hold(Routes(clock, 1), LIMITS, clock)
    order: list[str] = []

    async def wait(name: str, *, again: bool) -> None:
        seated = await hold.seat("m", 1, again=again)
        order.append(name)
        hold.release("m", seated.seat)

    tasks = [asyncio.create_task(wait("new", again=False))]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(wait("lost its seat", again=True)))
    await asyncio.sleep(0)
    hold.adopt(RoutingTable(1, {"m": (SEATS[0],)}))
    await asyncio.gather(*tasks)
    assert order == ["lost its seat", "new"]


@pytest.mark.proves("a place that frees in the instant of giving up goes to the next")
async def test_a_place_that_frees_in_the_instant_in_which_the_first_gives_up_goes_to_the_next() -> None:
    clock = SystemClock()
    routes = Routes(clock, 1)
    hold = Hold(routes, LIMITS, clock)
    hold.adopt(RoutingTable(1, {"m": (SEATS[0],)}))
    running = await hold.seat("m", 1)
    first, second = (asyncio.create_task(hold.seat("m", 1)) for _ in range(2))
    await _settle()
    first.cancel()
    hold.release("m", running.seat)  # before the first could run and leave the line
    await _settle()
    assert first.cancelled() and second.result().seat == SEATS[0]
    hold.release("m", SEATS[0])
    assert (hold.held("m"), hold.held_bytes("m"), routes.inflight("m")) == (0, 0, 0)


@pytest.mark.proves("a request that lost its seat is held even when the room is full")
async def test_a_request_that_lost_its_seat_is_taken_though_the_room_is_full() -> None:
    clock = SystemClock()
    hold = Hold(Routes(clock, 1), HoldLimits(1, 10, 60.0, 5.0), clock)
    waiting = [asyncio.create_task(hold.seat("m", 10, again=again)) for again in (False, True)]
    await _settle()
    assert hold.held("m") == 2 and not any(task.done() for task in waiting)
    with pytest.raises(Refusal, match="already wait"):
        await asyncio.wait_for(hold.seat("m", 10), 5)
    for task in waiting:
        task.cancel()
    await _settle()


@dataclass
class SetClock:
    """Stands still until told."""

    now_s: float = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def epoch_s(self) -> float:
        return self.now_s


@pytest.mark.proves("a newcomer does not overtake those who wait")
async def test_a_newcomer_does_not_overtake_those_who_wait_when_a_shunned_replica_is_good_again() -> None:
    """The clock says so a moment before the line is looked at again."""
    clock = SetClock()
    hold = Hold(Routes(clock, 1), LIMITS, clock)
    hold.adopt(RoutingTable(1, {"m": (SEATS[0],)}))
    hold.shun("m", SEATS[0], 60.0)
    first = asyncio.create_task(hold.seat("m", 1))
    await _settle()
    clock.now_s += 61.0
    newcomer = asyncio.create_task(hold.seat("m", 1))
    await _settle()
    hold.adopt(RoutingTable(2, {"m": (SEATS[0],)}))
    await _settle()
    assert first.done() and not newcomer.done()
    hold.release("m", first.result().seat)
    hold.release("m", (await newcomer).seat)
    assert (await asyncio.wait_for(hold.seat("m", 1), 5)).seat == SEATS[0], (
        "where no one waits it has its place at once"
    )


@pytest.mark.proves("requests go where the table says")
async def test_the_least_busy_seat_is_chosen_and_equals_take_turns() -> None:
    routes = Routes(SystemClock(), 8)
    routes.adopt(RoutingTable(1, {"m": tuple(SEATS)}))
    chosen = [routes.choose("m") for _ in range(6)]
    assert [seat.seat for seat in chosen if seat] == ["m/0", "m/1", "m/2"] * 2
    routes.release("m", SEATS[1])
    assert routes.choose("m") == SEATS[1]


@pytest.mark.proves("a seat that did not answer gets nothing for a while")
async def test_a_shunned_replica_is_tried_again_after_its_time() -> None:
    clock = SystemClock()
    hold = Hold(Routes(clock, 1), LIMITS, clock)
    hold.adopt(RoutingTable(1, {"m": (SEATS[0],)}))
    first = await hold.seat("m", 1)
    hold.shun("m", first.seat, 0.05)
    hold.release("m", first.seat)
    again = await asyncio.wait_for(hold.seat("m", 1, again=True), 2)
    assert again.seat == SEATS[0] and 0.03 < again.lacked_s < 30


async def test_who_waits_for_an_endpoint_that_goes_hears_so_at_once_and_nobody_else_does() -> None:
    clock = SystemClock()
    routes = Routes(clock, 1)
    hold = Hold(routes, LIMITS, clock)
    hold.serve_only(["m", "other"])
    hold.adopt(RoutingTable(1, {"m": (SEATS[0],)}))
    running = await hold.seat("m", 1)
    waits = [
        asyncio.create_task(hold.seat("m", 10, key=key, again=again)) for key, again in (("a", False), ("b", True))
    ]
    hung_up = asyncio.create_task(hold.seat("m", 10, key="c"))
    other = asyncio.create_task(hold.seat("other", 10, key="a"))
    await _settle()
    hung_up.cancel()
    hold.serve_only(["other"])
    await _settle()
    for waiter in waits:
        refusal = waiter.exception()
        assert isinstance(refusal, Refusal) and (refusal.status, refusal.code) == (404, "model_not_found")
    assert hung_up.cancelled() and not other.done()
    assert (hold.held("m"), hold.held_bytes("m"), hold.held("other")) == (0, 0, 1)
    # What ran goes on to its end; that its seat is lost, or a place free, calls nobody back.
    late = asyncio.create_task(hold.seat("m", 10))
    await _settle()
    assert isinstance(late.exception(), Refusal)
    hold.release("m", running.seat)
    assert routes.inflight("m") == 0
    hold.serve_only(["m", "other"])
    assert (await hold.seat("m", 1)).seat == SEATS[0]
    other.cancel()
    await _settle()


def unavailable(clock: Clock, again_in_s: float, failure: str = "3.14") -> dict[str, Unavailable]:
    return {"m": Unavailable(failure, clock.epoch_s() + again_in_s)}


@pytest.mark.proves(
    "a request for an endpoint that does not start is answered at once",
    "a refusal of an endpoint says when it is tried again",
)
async def test_who_waits_or_comes_while_an_endpoint_does_not_start_hears_so_at_once() -> None:
    clock = SetClock()
    hold = Hold(Routes(clock, 1), LIMITS, clock)
    waiting = [asyncio.create_task(hold.seat("m", 1, again=again)) for again in (False, True)]
    other = asyncio.create_task(hold.seat("other", 1))
    await _settle()
    hold.adopt(RoutingTable(1, {"m": ()}, unavailable(clock, 7.2)))
    await _settle()
    refusals = [task.exception() for task in waiting]
    with pytest.raises(Refusal) as late:
        await hold.seat("m", 1)
    for refusal in (*refusals, late.value):
        assert isinstance(refusal, Refusal) and refusal.status == 503
        assert (refusal.kind, refusal.code, refusal.headers) == (
            "endpoint_unavailable",
            "start_failed",
            {"retry-after": "8"},
        )
        assert refusal.message.endswith("Tell its operator the id 3.14.")
    assert (hold.held("m"), hold.held_bytes("m"), hold.held("other")) == (0, 0, 1)
    other.cancel()
    await _settle()


@pytest.mark.proves("an endpoint whose next start is due is waited for, though no newer table has come")
async def test_from_the_next_try_on_requests_are_held_again_also_without_an_arbiter() -> None:
    clock = SetClock()
    hold = Hold(Routes(clock, 1), LIMITS, clock)
    hold.adopt(RoutingTable(1, {"m": ()}, unavailable(clock, 7.0)))
    clock.now_s += 7.0
    held = asyncio.create_task(hold.seat("m", 1))
    await _settle()
    assert hold.held("m") == 1
    hold.adopt(RoutingTable(2, {"m": (SEATS[0],)}))
    assert (await asyncio.wait_for(held, 5)).seat == SEATS[0]


async def test_a_replica_that_is_ready_counts_more_than_an_earlier_failure() -> None:
    clock = SetClock()
    hold = Hold(Routes(clock, 1), LIMITS, clock)
    hold.adopt(RoutingTable(1, {"m": (SEATS[0],)}, unavailable(clock, 7.0)))
    running = await hold.seat("m", 1)
    waiting = asyncio.create_task(hold.seat("m", 1))
    await _settle()
    assert hold.held("m") == 1
    hold.release("m", running.seat)
    assert (await asyncio.wait_for(waiting, 5)).seat == SEATS[0]


async def test_each_failure_is_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = SetClock()
    routes = Routes(clock, 1)
    for version, failure in enumerate(("3.14", "3.14", "3.20")):
        routes.adopt(RoutingTable(version, {"m": ()}, unavailable(clock, 7.0 + version, failure)))
    assert [record.getMessage().rpartition("; ")[2] for record in caplog.records] == [
        "ebbtide why 3.14",
        "ebbtide why 3.20",
    ]
