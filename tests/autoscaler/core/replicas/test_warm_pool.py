"""Which replica parks, which wakes, and which gives way; and that no request is ever sent to a parked one."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.client.messages import ReplicaPhase, ReplicaReport
from ebbtide.pool.events import (
    Body,
    DrainSeat,
    EndpointDeclared,
    GrantSeat,
    JobSubmitted,
    NodeDraining,
    ParkSeat,
    WakeSeat,
)
from ebbtide.pool.ids import NodeId, SeatId, SlotId
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import SeatState
from ebbtide_autoscaler.core.observe.gateway_routes import routes
from ebbtide_autoscaler.core.observe.observation import FenceView, Observation, Timestamped
from ebbtide_autoscaler.core.observe.workload_orders import replica_orders, slots_of_replicas
from ebbtide_autoscaler.core.tick.instructions import DropFence, HoldFence, OpenSeat, instruct
from tests.autoscaler.closed_loop import a_job, an_endpoint
from tests.builders.policy import (
    CHAT,
    HELD,
    IDLE,
    NOW,
    S0,
    S1,
    S2,
    SEAT0,
    SEAT1,
    TRAIN,
    WARMS,
    a_pool,
    fold,
    kinds,
    look,
    ready,
    signals,
    warm,
    way,
    with_job,
)
from tests.examples import examples


def test_an_idle_replica_parks_instead_of_ending() -> None:
    assert kinds(look(ready(a_pool(endpoints=(WARMS,))), for_s=5.0)) == ["ParkSeat"]


@pytest.mark.proves("a replica stays warm only where there is host memory for it")
@pytest.mark.parametrize(
    ("state", "why"),
    [
        (ready(a_pool(endpoints=(WARMS,)), park_bytes=0, cannot_park="on a CPU"), "on a CPU"),
        (ready(a_pool(endpoints=(WARMS,), host=29)), "no 30 bytes"),
        (warm(ready(a_pool(endpoints=(WARMS,)), SEAT1, S1)), "1 of 1 are warm already"),
        (with_job(ready(a_pool(endpoints=(WARMS,), host=49)), a_job(), (S1, S2)), "beside what its jobs may need"),
        (
            fold(ready(a_pool(endpoints=(WARMS,))), *way(SEAT0, S0)[SeatState.STOPPING]),
            "",
        ),
    ],
)
def test_where_it_cannot_park_it_ends_and_the_move_says_why(state: PoolState, why: str) -> None:
    found = look(state, for_s=5.0)
    assert not any(isinstance(move, ParkSeat) for move in found.moves)
    assert not why or any(isinstance(move, DrainSeat) and why in move.reason for move in found.moves), found


def test_after_a_failure_no_replica_parks_for_a_while() -> None:
    state = a_pool(endpoints=(WARMS,))
    failed = replace(state.endpoints[CHAT], park_failed_s=NOW - 60.0, park_error="it did not let go")
    state = ready(replace(state, endpoints={CHAT: failed}))
    (move,) = look(state, for_s=5.0).moves
    assert isinstance(move, DrainSeat) and "it did not let go" in move.reason


def test_waking_goes_before_a_cold_start() -> None:
    found = look(warm(a_pool(endpoints=(WARMS,)), SEAT1, S2), traffic=HELD)
    assert [move for move in found.moves if not isinstance(move, ParkSeat)] == [
        WakeSeat(SEAT1, "1 held and 0 running requests, 4 per replica: 1 replica instead of 0, and it is warm")
    ]


def test_what_still_parks_is_waited_for() -> None:
    state = fold(ready(a_pool(endpoints=(WARMS,))), *way(SEAT0, S0)[SeatState.PARKING])
    found = look(state, traffic=HELD)
    assert kinds(found) == [] and "as soon as it has parked" in dict(found.waits)[SEAT0]


def test_a_cold_start_takes_over_where_the_warm_ones_slot_is_taken_for_good() -> None:
    one = an_endpoint(warm_replicas=1, replicas_max=1)
    state = with_job(warm(a_pool(endpoints=(one,))), a_job(workers_max=1), (S0,), at_s=NOW)
    found = look(state, traffic=HELD)
    (move,) = [move for move in found.moves if isinstance(move, GrantSeat)]
    assert move.seat == SEAT1 and S0 not in move.slots, "the warm one keeps its seat"


def test_of_equal_jobs_the_one_on_the_warm_slot_steps_aside() -> None:
    state = a_pool(nodes={"n0": 2}, endpoints=(WARMS,))
    state = with_job(warm(state, SEAT0, S1), a_job("other", workers_max=1), (S0,), at_s=NOW - 10.0)
    state = with_job(state, a_job(workers_max=1), (S1,), at_s=NOW - 20.0)
    (move,) = look(state, traffic=HELD).moves
    assert getattr(move, "job", "") == TRAIN


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (EndpointDeclared(replace(WARMS, revision="b")), "b is in force"),
        (EndpointDeclared(replace(WARMS, warm_replicas=0)), "asks for 0 warm"),
        (NodeDraining(NodeId("n0"), "r"), "drains"),
    ],
)
def test_it_ends_when_nobody_may_wake_it(after: Body, why: str) -> None:
    (move,) = look(fold(warm(a_pool(endpoints=(WARMS,))), after)).moves
    assert isinstance(move, DrainSeat) and why in move.reason


@pytest.mark.proves("warm replicas give way")
def test_what_a_job_may_need_goes_before_a_warm_replica() -> None:
    state = with_job(warm(a_pool(endpoints=(WARMS,), host=49)), a_job(workers_max=2), (S1, S2))
    (move,) = look(state).moves
    assert isinstance(move, DrainSeat) and "30 bytes of host memory are needed" in move.reason


def test_a_job_that_starts_this_very_moment_counts() -> None:
    state = fold(warm(a_pool(endpoints=(WARMS,), host=49)), JobSubmitted(a_job(workers_max=2), "i"))
    assert kinds(look(state)) == ["GrantJob", "DrainSeat"]


def test_the_fence_stays_and_comes_back_whoever_of_those_that_may_park_is_there() -> None:
    granted = fold(a_pool(nodes={"n0": 1}, endpoints=(WARMS,)), GrantSeat(SEAT0, (S0,), "r"))
    for state in (granted, ready(a_pool(nodes={"n0": 1}, endpoints=(WARMS,))), warm(a_pool(endpoints=(WARMS,)))):
        held = instruct(state, Observation(started_s=0.0, fences=dict.fromkeys(state.slots, FenceView.HELD)), NOW)
        assert not any(isinstance(one, DropFence) for one in held)
        assert HoldFence(S0) in instruct(state, Observation(started_s=0.0), NOW), "it vanished"
        assert not slots_of_replicas(state, {SEAT0: ("a",)}), "no replica has its logical GPU"
    assert OpenSeat(SEAT0) in instruct(granted, Observation(started_s=0.0, fences={S0: FenceView.HELD}), NOW)


STATES = list(way(SEAT0, S0))


@settings(max_examples=examples(200), deadline=None, database=None, derandomize=True)
@given(
    st.lists(st.sampled_from(STATES), min_size=1, max_size=3),
    st.lists(st.sampled_from(ReplicaPhase), min_size=3, max_size=3),
    st.lists(st.integers(-1, 1), min_size=3, max_size=3),
)
def test_only_ready_replicas_that_say_so_are_ever_sent_requests(
    stages: list[SeatState], phases: list[ReplicaPhase], late: list[int]
) -> None:
    """The routing table, and the orders of whoever reports, from any state of the books and any late report."""
    state, seats = a_pool(endpoints=(an_endpoint(warm_replicas=3),)), (SEAT0, SEAT1, SeatId("chat/2"))
    heard = {}
    for stage, seat, slot, phase, off in zip(stages, seats, (S0, S1, S2), phases, late, strict=False):
        state = fold(ready(state, seat, slot), *way(seat, slot)[stage])
        report = ReplicaReport(seat, "a", "n0", 1, state.seats[seat].epoch + off, phase, url="http://a")
        heard[seat] = Timestamped(NOW, report)
        orders = replica_orders(state, report)
        assert orders.park == (stage in (SeatState.PARKING, SeatState.WARM) and not off)
        assert (orders.wake is not None) == (stage is SeatState.WAKING)
        assert orders.draining or stage in (SeatState.READY, SeatState.WAKING)
        other = replica_orders(state, replace(report, replica="b"))
        assert not other.park and other.wake is None, "its successor never heard of it"
    table = routes(state, Observation(started_s=0.0, replicas=heard))
    for route in table["chat"]:
        record, told = state.seats[SeatId(route.seat)], heard[SeatId(route.seat)].report
        assert record.state is SeatState.READY and told.phase is ReplicaPhase.READY
        assert told.lease_epoch == record.epoch


@settings(max_examples=examples(150), deadline=None, database=None, derandomize=True)
@given(
    st.lists(st.sampled_from(STATES), min_size=0, max_size=3),
    st.integers(0, 3),
    st.sampled_from([0, 29, 49, 60, 1000]),
    st.sampled_from([IDLE, HELD, signals(held=9, last_arrival_s=NOW), signals(known=False)]),
    st.integers(0, 2),
)
def test_warm_memory_and_the_jobs_always_fit(
    stages: list[SeatState], workers: int, host: int, traffic: object, wanted: int
) -> None:
    """Every decision can be carried out; what is overdrawn is given back at once, as far as replicas are warm."""
    spec = an_endpoint(warm_replicas=3)
    state = a_pool(nodes={"n0": 6}, endpoints=(spec,), host=host)
    for number, stage in enumerate(stages):
        seat, slot = SeatId(f"chat/{number}"), SlotId(f"n0:{number}")
        lent = state.warm_bytes(NodeId("n0")) + 30 <= host
        state = fold(ready(state, seat, slot), *way(seat, slot)[stage if lent else SeatState.READY])
    if workers:
        job = a_job(workers_max=3)
        state = with_job(state, job, tuple(SlotId(f"n0:{3 + n}") for n in range(workers)))
    state = fold(state, EndpointDeclared(replace(spec, warm_replicas=wanted)))
    found = look(state, traffic=traffic, for_s=5.0)  # type: ignore[arg-type]
    after = fold(state, *found.moves, at_s=NOW)
    node = NodeId("n0")
    needed = sum(
        job.spec.host_bytes_per_worker * len(job.gang) for job in after.jobs.values() if job.state.value != "ended"
    )
    left = [seat for seat in after.seats.values() if seat.state is SeatState.WARM]
    coming = [s for s in after.seats.values() if s.parks and s.state.value in ("draining", "parking", "waking")]
    assert not left or needed + sum(s.park_bytes for s in [*left, *coming]) <= after.nodes[node]
    assert len(left) <= wanted
