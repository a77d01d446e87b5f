"""What the policy decides, one situation at a time, and what it must never do in any."""

from dataclasses import replace

import pytest

from ebbtide.pool.events import (
    CancelJob,
    GrantJob,
    GrantSeat,
    JobCrashed,
    JobParked,
    JobRunning,
    JobStopped,
    JobSubmitted,
    NodeDraining,
    ParkJob,
    ResumeJob,
    SeatGone,
    SeatLanded,
    SeatReady,
    SeatStopped,
    SlotFreed,
    StopJob,
)
from ebbtide.pool.ids import EndpointName, JobName, NodeId, SeatId
from ebbtide.pool.spec import WorkloadClass
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals
from tests.autoscaler.closed_loop import a_job, an_endpoint
from tests.builders.policy import (
    CHAT,
    CONFIG,
    HELD,
    NOW,
    RUNNING3,
    S0,
    S1,
    S2,
    SEAT0,
    SEAT1,
    TRAIN,
    a_pool,
    fold,
    kinds,
    look,
    parked,
    signals,
    slots,
    with_job,
    with_ready,
)


def test_a_held_request_wakes_an_endpoint_from_zero_at_once() -> None:
    assert next(m for m in look(a_pool(), traffic=HELD).moves if isinstance(m, GrantSeat)).seat == SEAT0


def test_silence_starts_nothing() -> None:
    assert look(a_pool()).moves == ()


@pytest.mark.parametrize(
    ("quiet_s", "lasting_s", "drains"), [(4.0, 3.5, False), (6.0, 0.0, False), (20.0, 3.5, True), (20.0, 2.0, False)]
)
@pytest.mark.proves("less demand has to last", "the last replica stays until the endpoint has been idle")
def test_the_last_replica_goes_when_it_was_idle_and_lower_demand_has_lasted(
    quiet_s: float, lasting_s: float, drains: bool
) -> None:
    state = with_ready(a_pool(), SEAT0, (S0,))
    found = look(state, traffic=signals(last_arrival_s=NOW - quiet_s), for_s=lasting_s)
    assert kinds(found) == (["DrainSeat"] if drains else [])


@pytest.mark.proves("a replica lives a multiple of its start")
def test_a_replica_lives_a_multiple_of_its_measured_start() -> None:
    state = fold(a_pool(), GrantSeat(SEAT0, (S0,), "r"), SeatLanded(SEAT0, "a"), at_s=NOW - 70.0)
    state = fold(state, SeatReady(SEAT0, ()), at_s=NOW - 30.0)  # started for 40 s, up for 30 s
    assert look(state, for_s=5.0).moves == ()
    older = fold(a_pool(), GrantSeat(SEAT0, (S0,), "r"), SeatLanded(SEAT0, "a"), at_s=NOW - 100.0)
    assert kinds(look(fold(older, SeatReady(SEAT0, ()), at_s=NOW - 60.0), for_s=5.0)) == ["DrainSeat"]


@pytest.mark.proves("an endpoint keeps its least number of replicas")
def test_replicas_min_stays() -> None:
    state = with_ready(a_pool(endpoints=(an_endpoint(replicas_min=1),)), SEAT0, (S0,))
    assert look(state, for_s=100.0).moves == ()
    assert kinds(look(a_pool(endpoints=(an_endpoint(replicas_min=1),)))) == ["GrantSeat"]


@pytest.mark.parametrize(("ttft_s", "lasting_s", "adds"), [(2.0, 1.5, True), (2.0, 0.5, False), (0.9, 50.0, False)])
def test_tpot_over_its_slo_adds_a_replica_and_says_what_queues_inside(
    ttft_s: float, lasting_s: float, adds: bool
) -> None:
    state = with_ready(a_pool(), SEAT0, (S0,))
    slow = signals(inflight=1, last_arrival_s=NOW, tpot_p90_s=ttft_s / 10, waiting=4, kv_usage=0.97)
    found = look(state, traffic=slow, for_s=lasting_s)
    assert kinds(found) == (["GrantSeat"] if adds else [])
    if adds:
        assert "TPOT p90 200 ms is over its SLO of 100 ms" in found.moves[0].reason
        assert "4 requests are queueing in replicas, KV caches up to 97% full" in found.moves[0].reason


@pytest.mark.parametrize(("ttft_s", "lasting_s", "adds"), [(2.0, 1.5, True), (2.0, 0.5, False), (0.9, 50.0, False)])
@pytest.mark.proves("latencies count when all replicas are ready")
def test_ttft_over_its_slo_adds_a_replica(ttft_s: float, lasting_s: float, adds: bool) -> None:
    state = with_ready(a_pool(), SEAT0, (S0,))
    found = look(state, traffic=signals(inflight=2, last_arrival_s=NOW, ttft_p90_s=ttft_s), for_s=lasting_s)
    assert kinds(found) == (["GrantSeat"] if adds else [])
    if adds:
        assert "over its SLO of 1 s" in found.moves[0].reason
    starting = fold(state, GrantSeat(SEAT1, (S1,), "r"), SeatLanded(SEAT1, "a"), at_s=NOW - 10.0)
    found = look(starting, traffic=signals(inflight=3, last_arrival_s=NOW, ttft_p90_s=ttft_s), for_s=lasting_s)
    assert found.moves == (), "it may be cured by the one that starts"


@pytest.mark.proves("more demand has to last")
def test_more_demand_than_a_replica_serves_adds_one_after_a_moment() -> None:
    state = with_ready(a_pool(), SEAT0, (S0,))
    busy = signals(inflight=5, last_arrival_s=NOW)
    assert look(state, traffic=busy).moves == ()
    assert kinds(look(state, traffic=busy, for_s=1.5)) == ["GrantSeat"]


def test_a_replica_too_many_while_gateways_are_silent_goes_only_once_the_one_in_its_place_is_ready() -> None:
    """One more than its file allows starts where one is replaced; a storm had one drained meanwhile that was needed."""
    spec = an_endpoint(replicas_max=1)
    state = with_ready(a_pool(endpoints=(spec,)), SEAT0, (S0,))
    both = fold(state, GrantSeat(SEAT1, (S1,), "r"), SeatLanded(SEAT1, "b"))
    assert look(both, traffic=EndpointSignals(), for_s=500.0).moves == ()
    ready = fold(both, SeatReady(SEAT1, ()))
    [drain] = look(ready, traffic=EndpointSignals(), for_s=500.0).moves
    assert drain.kind == "drain_seat" and "its file allows 1 replica" in drain.reason


def test_no_job_steps_aside_for_a_slot_that_is_free_where_another_replica_is_being_placed() -> None:
    """A storm's seed had one leave while a free slot waited for its turn, and others were on their way."""
    state = a_pool(nodes={"n0": 3, "n1": 2}, endpoints=(an_endpoint(replicas_max=4),))
    state = with_job(with_job(state, a_job("other"), (S2,)), a_job("train"), (S0, S1))
    state = fold(state, JobCrashed(JobName("train"), "w", 0))
    found = look(state, traffic=signals(held=16, last_arrival_s=NOW))
    assert kinds(found) == ["GrantSeat"]
    assert "one replica at a time is placed on a node" in str(found.waits)


@pytest.mark.proves("silent gateways move nothing")
def test_silent_gateways_move_nothing() -> None:
    state = with_ready(with_job(a_pool(), a_job(workers_max=2), (S1, S2)), SEAT0, (S0,))
    for silent in (EndpointSignals(), EndpointSignals(held=50, last_arrival_s=NOW)):
        assert look(state, traffic=silent, for_s=500.0).moves == ()


@pytest.mark.proves("one placement on a node at a time")
def test_one_replica_is_placed_at_a_time_and_the_other_says_why_it_waits() -> None:
    found = look(a_pool(), traffic=signals(held=8, last_arrival_s=NOW))
    assert kinds(found) == ["GrantSeat"]
    assert dict(found.waits)[SEAT1].startswith("waits for its turn")


def test_endpoints_race_by_priority() -> None:
    high, low = an_endpoint("high", priority=9), an_endpoint("alow", priority=1)
    state = a_pool(nodes={"n0": 1}, endpoints=(low, high))
    found = look(state, traffic={high.name: HELD, low.name: HELD})
    assert [getattr(move, "seat", "") for move in found.moves] == ["high/0"]
    assert "alow/0" in dict(found.waits)


# ---- who steps aside


def test_a_job_parks_first() -> None:
    found = look(RUNNING3, traffic=HELD)
    assert kinds(found) == ["ParkJob"]
    assert "1 slot for chat" in found.moves[0].reason


def test_an_old_need_shrinks_the_job_directly() -> None:
    found = look(RUNNING3, traffic=HELD, for_s=21.0)
    assert kinds(found) == ["StopJob"]
    assert "goes on with 2 workers" in found.moves[0].reason


@pytest.mark.parametrize(
    ("changes", "host", "kind", "why"),
    [
        ({"in_place": False}, 1000, "StopJob", "in_place is off"),
        ({"workload_class": WorkloadClass.SEMI_PREEMPTIBLE}, 1000, "StopJob", "goes on with 2 workers"),
        ({}, 29, "StopJob", "no 30 bytes of host memory"),
        ({"workers_min": 3}, 1000, "ParkJob", "in place"),
    ],
)
@pytest.mark.proves("no job parks without host memory")
def test_how_a_job_steps_aside(changes: dict[str, object], host: int, kind: str, why: str) -> None:
    state = with_job(a_pool(host=host), a_job(**changes), (S0, S1, S2))  # type: ignore[arg-type]
    found = look(state, traffic=HELD)
    assert kinds(found) == [kind]
    assert why in found.moves[0].reason


@pytest.mark.parametrize(
    ("changes", "ran_since_s", "why"),
    [
        ({"workload_class": WorkloadClass.NON_PREEMPTIBLE}, 1000.0, "non-preemptible"),
        ({"workload_class": WorkloadClass.SEMI_PREEMPTIBLE, "workers_min": 3}, 1000.0, "at its minimum"),
        ({"min_runtime_s": 60.0}, NOW - 20.0, "minimum runtime for 40 s more"),
        ({"max_preemptions_per_h": 0}, 1000.0, "may never be preempted"),
    ],
)
@pytest.mark.proves(
    "a job is not preempted within its minimum runtime",
    "a non-preemptible job is not asked to step aside",
    "a semi-preemptible job is counted upon only above its minimum",
    "a semi-preemptible job keeps its minimum",
)
def test_a_protected_job_stays_and_the_endpoint_says_why_it_waits(
    changes: dict[str, object], ran_since_s: float, why: str
) -> None:
    state = with_job(a_pool(), a_job(**changes), (S0, S1, S2), at_s=ran_since_s)  # type: ignore[arg-type]
    found = look(state, traffic=HELD)
    assert found.moves == ()
    assert why in dict(found.waits)["chat"]
    assert "waits for 1 more slots" in dict(found.waits)[SEAT0]


@pytest.mark.proves("a job is not preempted beyond its bound", "the bound on preemptions counts one hour")
def test_the_bound_on_preemptions_counts_an_hour() -> None:
    spec = a_job(max_preemptions_per_h=1)
    state = parked(with_job(a_pool(), spec, (S0, S1, S2)), at_s=NOW - 1800.0)
    state = fold(state, ResumeJob(TRAIN, "r"), JobRunning(TRAIN, 3), at_s=NOW - 1700.0)
    assert look(state, traffic=HELD).moves == ()
    state = parked(with_job(a_pool(), spec, (S0, S1, S2)), at_s=NOW - 3700.0)
    state = fold(state, ResumeJob(TRAIN, "r"), JobRunning(TRAIN, 3), at_s=NOW - 3650.0)
    assert kinds(look(state, traffic=HELD)) == ["ParkJob"]


@pytest.mark.proves("no more jobs step aside than are needed")
def test_the_least_important_job_steps_aside_and_only_as_many_as_needed() -> None:
    state = with_job(a_pool(), a_job("low", priority=0, workers_max=1), (S0,))
    state = with_job(state, a_job("high", priority=5, workers_max=2), (S1, S2))
    assert [getattr(move, "job", "") for move in look(state, traffic=HELD).moves] == ["low"]


@pytest.mark.proves("slots that are on their way are not asked for again")
def test_slots_that_are_on_their_way_are_not_asked_for_again() -> None:
    state = with_job(a_pool(), a_job("low", workers_max=1), (S0,))
    state = with_job(state, a_job("high", priority=5, workers_max=2), (S1, S2))
    state = fold(state, ParkJob(JobName("low"), "r"), at_s=NOW - 1.0)
    assert look(state, traffic=HELD).moves == ()


def test_a_replica_of_two_slots_makes_room_on_one_node() -> None:
    """One slot is free on each node; the jobs are small. One of them steps aside, not both."""
    n1 = slots(2, "n1")
    state = a_pool(nodes={"n0": 2, "n1": 2}, endpoints=(an_endpoint(slots_per_replica=2),))
    state = with_job(state, a_job("a", workers_max=1), (S0,))
    state = with_job(state, a_job("b", workers_max=1), n1[:1])
    found = look(state, traffic=HELD)
    assert len(found.moves) == 1 and isinstance(found.moves[0], ParkJob)
    assert "on node" in dict(found.waits)[SEAT0]
    gone = found.moves[0].job
    state = fold(state, ParkJob(gone, "r"), SlotFreed(state.jobs[gone].gang[0]), JobParked(gone, 1), at_s=NOW)
    grant = look(state, traffic=HELD).moves[0]
    assert isinstance(grant, GrantSeat) and len({slot.partition(":")[0] for slot in grant.slots}) == 1


@pytest.mark.proves("all slots of a replica are on one node")
def test_all_slots_of_a_replica_are_on_one_node() -> None:
    state = a_pool(nodes={"n0": 1, "n1": 2}, endpoints=(an_endpoint(slots_per_replica=2),))
    grant = look(state, traffic=HELD).moves[0]
    assert isinstance(grant, GrantSeat) and grant.slots == slots(2, "n1")


@pytest.mark.proves("room for a replica is made on a node that can come to have it")
def test_a_replica_larger_than_any_node_can_give_says_so_and_disturbs_nobody() -> None:
    state = a_pool(nodes={"n0": 2}, endpoints=(an_endpoint(slots_per_replica=2), an_endpoint("other")))
    state = with_ready(state, SeatId("other/0"), (S0,))
    state = with_job(state, a_job(workers_max=1), (S1,))
    busy = signals(inflight=1, last_arrival_s=NOW)
    found = look(state, traffic={CHAT: HELD, EndpointName("other"): busy})
    assert found.moves == ()
    assert "no node can give 2 slots" in dict(found.waits)[SEAT0]


@pytest.mark.parametrize("kind", [WorkloadClass.SEMI_PREEMPTIBLE, WorkloadClass.NON_PREEMPTIBLE])
def test_nobody_steps_aside_in_vain_for_a_replica_that_finds_no_room_anyway(kind: WorkloadClass) -> None:
    """Its second slot belongs to a job that may not go below its minimum, or not at all: the small one is spared."""
    state = a_pool(nodes={"n0": 2}, endpoints=(an_endpoint(slots_per_replica=2),))
    state = with_job(state, a_job("small", workers_max=1), (S0,))
    state = with_job(state, a_job("stays", workers_max=1, workload_class=kind), (S1,))
    found = look(state, traffic=HELD, for_s=30.0)
    assert found.moves == ()
    assert "may not step aside" in dict(found.waits)[SEAT0]


@pytest.mark.proves("slots of a node where the replica cannot be are of no use to it")
def test_room_is_made_on_the_node_that_lacks_least() -> None:
    """n0 has two jobs, n1 one and a free slot: only the job of n1 is asked."""
    state = a_pool(nodes={"n0": 2, "n1": 2}, endpoints=(an_endpoint(slots_per_replica=2),))
    for name, slot in (("c", slots(1, "n1")[0]), ("a", S0), ("b", S1)):  # the last one would be asked first
        state = with_job(state, a_job(name, workers_max=1), (slot,))
    assert [getattr(move, "job", "") for move in look(state, traffic=HELD).moves] == ["c"]


# ---- who gets what is left


@pytest.mark.proves("a cancelled job is granted nothing")
def test_a_waiting_job_gets_what_is_free_unless_it_is_cancelled() -> None:
    state = fold(a_pool(), JobSubmitted(a_job(workers_max=2), "i"))
    assert look(fold(state, CancelJob(TRAIN, "r"))).moves == ()
    grant = look(state).moves[0]
    assert isinstance(grant, GrantJob) and len(grant.slots) == 2


@pytest.mark.proves("jobs leave the reserve free when they start or grow")
@pytest.mark.parametrize(("reserve", "workers"), [(0, 3), (1, 2), (2, 1), (3, 0)])
def test_the_reserve_is_respected(reserve: int, workers: int) -> None:
    state = fold(a_pool(), JobSubmitted(a_job(), "i"))
    found = look(state, config=replace(CONFIG, reserve=reserve))
    granted = [move for move in found.moves if isinstance(move, GrantJob)]
    assert sum(len(move.slots) for move in granted) == workers
    if not workers:
        assert "3 in reserve" in dict(found.waits)[TRAIN]
    replica = look(state, traffic=HELD, config=replace(CONFIG, reserve=3))
    assert kinds(replica) == ["GrantSeat"], "replicas may use it"


def test_a_job_that_must_wait_says_why() -> None:
    state = fold(with_ready(a_pool(), SEAT0, (S0,)), JobSubmitted(a_job(workers_min=3), "i"))
    found = look(state, traffic=signals(inflight=1, last_arrival_s=NOW))
    assert (found.moves, dict(found.waits)[TRAIN]) == ((), "waits: needs 3 slots, 2 free for it")


def test_a_parked_job_resumes_in_place_when_its_slots_are_back() -> None:
    assert kinds(look(parked(RUNNING3))) == ["ResumeJob"]


def test_a_parked_job_waits_as_long_as_a_restart_costs_then_goes_on_smaller() -> None:
    busy = signals(inflight=1, last_arrival_s=NOW)
    state = with_ready(parked(RUNNING3, at_s=NOW - 19.0), SEAT0, (S0,), at_s=NOW - 10.0)
    found = look(state, traffic=busy)
    assert (found.moves, "chat/0" in dict(found.waits)[TRAIN]) == ((), True)
    state = with_ready(parked(RUNNING3, at_s=NOW - 20.0), SEAT0, (S0,), at_s=NOW - 10.0)
    found = look(state, traffic=busy)
    assert kinds(found) == ["StopJob"]
    assert "goes on with 2 workers" in found.moves[0].reason


@pytest.mark.proves("replicas that lack slots go before parked jobs")
def test_replicas_that_wait_for_slots_go_before_parked_and_waiting_jobs() -> None:
    state = fold(parked(RUNNING3), JobSubmitted(a_job("other"), "i"))
    state = fold(state, GrantSeat(SEAT0, (S0,), "r"), at_s=NOW)
    found = look(state, traffic=signals(held=9, last_arrival_s=NOW), for_s=2.0)
    assert {kind for kind in kinds(found)} <= {"GrantSeat"}
    assert "replicas" in dict(found.waits)[TRAIN]
    assert "replicas" in dict(found.waits)["other"]


@pytest.mark.proves("no job takes the slots that a parked job waits for")
def test_nobody_of_the_same_priority_takes_the_slots_that_a_parked_job_waits_for() -> None:
    state = with_ready(parked(RUNNING3), SEAT0, (S0,), at_s=NOW - 4.0)
    busy = signals(inflight=1, last_arrival_s=NOW)
    same = fold(state, JobSubmitted(a_job("other"), "i"))
    assert look(same, traffic=busy).moves == ()
    higher = fold(state, JobSubmitted(a_job("other", priority=5), "i"))
    assert kinds(look(higher, traffic=busy)) == ["GrantJob"]


@pytest.mark.proves("a job grows only into what has stayed free for a while")
def test_a_job_grows_when_slots_have_stayed_free() -> None:
    state = with_job(a_pool(), a_job(), (S0, S1))
    assert look(state, for_s=9.0).moves == ()
    found = look(state, for_s=11.0)
    assert kinds(found) == ["StopJob"]
    move = found.moves[0]
    assert isinstance(move, StopJob) and not move.preempts
    assert "3 workers instead of 2" in move.reason


@pytest.mark.proves("a job does not grow while a replica starts")
def test_a_job_does_not_grow_into_what_a_parked_job_waits_for_nor_while_a_replica_starts() -> None:
    parked_one = parked(with_job(a_pool(), a_job("p", workers_min=2, workers_max=2), (S1, S2)), JobName("p"))
    state = with_ready(with_job(parked_one, a_job(priority=0), (S0,)), SEAT0, (S1,), at_s=NOW - 4.0)
    assert look(state, traffic=signals(inflight=1, last_arrival_s=NOW), for_s=15.0).moves == ()
    starting = fold(with_job(a_pool(), a_job(), (S0,)), GrantSeat(SEAT0, (S1,), "r"), SeatLanded(SEAT0, "a"))
    assert look(starting, traffic=signals(inflight=1, last_arrival_s=NOW), for_s=15.0).moves == ()


@pytest.mark.proves("slots that a job was stopped to run on are kept for it")
def test_what_a_job_was_stopped_to_run_on_is_not_taken_by_a_job_after_it() -> None:
    state = with_job(a_pool(), a_job("first", priority=1, workers_min=1), (S0, S1))
    state = fold(state, JobSubmitted(a_job("second", workers_min=2), "i"))
    state = fold(state, StopJob(JobName("first"), "r", preempts=False), SlotFreed(S0))
    assert look(state).moves == ()
    state = fold(state, SlotFreed(S1), JobStopped(JobName("first"), 4))
    assert [getattr(move, "job", "") for move in look(state).moves] == ["first"]


@pytest.mark.parametrize("kind", [WorkloadClass.SEMI_PREEMPTIBLE, WorkloadClass.NON_PREEMPTIBLE])
@pytest.mark.proves("the minimum of a job that restarts and may not lose it is kept")
def test_a_job_that_may_not_lose_all_its_workers_keeps_its_minimum_through_a_restart(kind: WorkloadClass) -> None:
    spec = a_job(workload_class=kind)
    state = with_job(a_pool(), spec, (S0, S1, S2))
    state = fold(state, StopJob(TRAIN, "r", preempts=kind is WorkloadClass.SEMI_PREEMPTIBLE), at_s=NOW - 3.0)
    flood = signals(held=50, last_arrival_s=NOW)
    state = fold(state, SlotFreed(S0))
    assert look(state, traffic=flood).moves == (), "the first slot that is free is its own"
    state = fold(state, SlotFreed(S1), SlotFreed(S2), JobStopped(TRAIN, 4))
    assert kinds(look(state, traffic=flood)) == ["GrantSeat", "GrantJob"]


@pytest.mark.proves("a failed start is tried again after a pause")
def test_a_failed_seat_is_tried_again_later_and_says_when() -> None:
    state = fold(a_pool(endpoints=(an_endpoint(replicas_max=1),)), GrantSeat(SEAT0, (S0,), "r"))
    state = fold(state, SeatStopped(SEAT0, "no replica landed"), SlotFreed(S0), SeatGone(SEAT0), at_s=NOW - 1.0)
    found = look(state, traffic=HELD)
    said = "its start failed 1 time in a row: no replica landed; the next try is in 1 s; more: ebbtide logs chat/0; "
    assert (found.moves, dict(found.waits)["chat"].startswith(said)) == ((), True)
    state = replace(state, seats={SEAT0: replace(state.seats[SEAT0], since_s=NOW - 2.0)})
    assert kinds(look(state, traffic=HELD)) == ["GrantSeat"]


@pytest.mark.proves("room for a replica is made on a node that does not drain")
def test_room_for_a_replica_is_made_on_a_node_that_does_not_drain() -> None:
    n1 = slots(2, "n1")
    state = a_pool(nodes={"n0": 2, "n1": 2}, endpoints=(an_endpoint(slots_per_replica=2),))
    for name, gang in (("a", (S0, S1)), ("b", n1[:1]), ("c", n1[1:])):
        state = with_job(state, a_job(name, workers_max=2), gang)
    found = look(fold(state, NodeDraining(NodeId("n0"), "r")), traffic=HELD)
    assert {(type(move).__name__, getattr(move, "job", "")) for move in found.moves} == {
        ("StopJob", "a"),
        ("ParkJob", "b"),
        ("ParkJob", "c"),
    }
