"""What workloads and gateways are told: nothing that was withdrawn, and nothing that is not there yet."""

from dataclasses import replace
from typing import Any

import pytest

from ebbtide.client.messages import (
    AgentAnswer,
    AgentReport,
    DesiredState,
    GatewayReport,
    LockHolder,
    RankPhase,
    RankReport,
    ReplicaPhase,
    ReplicaReport,
    Traffic,
)
from ebbtide.pool.events import (
    Body,
    CancelJob,
    DrainSeat,
    GrantJob,
    GrantSeat,
    JobCrashed,
    JobEnded,
    JobParked,
    JobRunning,
    JobSubmitted,
    ParkJob,
    ResumeJob,
    SeatLanded,
    SeatReady,
    SeatStopped,
    SlotFreed,
    SlotUnfenced,
    StopJob,
)
from ebbtide.pool.ids import NodeId
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.observe.dry_run_state import as_if_ours
from ebbtide_autoscaler.core.observe.gateway_routes import routes
from ebbtide_autoscaler.core.observe.observation import Observation, Timestamped
from ebbtide_autoscaler.core.observe.traffic import GATEWAY_FRESH_S, began_s, traffic
from ebbtide_autoscaler.core.observe.workload_orders import controller_orders, rank_directive
from tests.autoscaler.closed_loop import a_job
from tests.builders.closed_loop import serving
from tests.builders.policy import CHAT, S0, S1, S2, SEAT0, TRAIN, a_pool, fold

WAITING = fold(a_pool(), JobSubmitted(a_job(), "i"))
STARTING = fold(WAITING, GrantJob(TRAIN, (S0,), "r"))
RUNNING = fold(STARTING, JobRunning(TRAIN, 1))
PARKING = fold(RUNNING, ParkJob(TRAIN, "r"))
PARKED = fold(PARKING, SlotFreed(S0), JobParked(TRAIN, 5))
RESUMING = fold(PARKED, ResumeJob(TRAIN, "r"))
STOPPING = fold(RUNNING, StopJob(TRAIN, "r", preempts=True))
RECOVERING = fold(RUNNING, JobCrashed(TRAIN, "w", 0))
CANCELLED = fold(RUNNING, CancelJob(TRAIN, "r"))
ENDED = fold(RUNNING, JobEnded(TRAIN, "finished", ""))


def rank(**changes: Any) -> RankReport:
    return replace(RankReport("train", "i", 0, 1, "n0", 7, 1, 1, RankPhase.RUNNING, 5, 0), **changes)


@pytest.mark.proves("a rank that is to park has no lease")
@pytest.mark.parametrize(
    ("state", "want", "leased"),
    [
        (STARTING, DesiredState.RUN, True),
        (RUNNING, DesiredState.RUN, True),
        (PARKING, DesiredState.PARK, False),
        (PARKED, DesiredState.PARK, False),
        (RESUMING, DesiredState.RUN, True),
        (STOPPING, DesiredState.STOP, False),
        (RECOVERING, DesiredState.STOP, False),
        (CANCELLED, DesiredState.CANCEL, False),
        (ENDED, DesiredState.STOP, False),
    ],
)
def test_a_rank_has_a_lease_only_while_its_gang_may_touch_its_gpus(
    state: PoolState, want: DesiredState, leased: bool
) -> None:
    told = rank_directive(state, rank())
    assert told is not None and (told.want, told.lease is not None) == (want, leased)


@pytest.mark.proves("a rank of an earlier gang is told to stop", "a rank of an earlier submission is told to stop")
def test_a_rank_of_an_earlier_submission_or_gang_is_told_to_stop() -> None:
    again = fold(RECOVERING, SlotFreed(S0))
    for late in (rank(incarnation="before"), rank(lease_epoch=0)):
        told = rank_directive(RUNNING, late)
        assert told is not None and (told.want, told.lease) == (DesiredState.STOP, None)
        assert told.number > late.directive, "else it would take it for what it has carried out already"
    assert rank_directive(again, rank(job="unheard of")) is None


@pytest.mark.proves(
    "a controller whose job is cancelled has no lease",
    "a controller whose job steps aside has no lease",
)
@pytest.mark.parametrize("state", [WAITING, RUNNING, PARKING, PARKED, RESUMING, STOPPING, RECOVERING, ENDED])
def test_a_controller_is_granted_slots_only_for_a_gang_that_is_to_start(state: PoolState) -> None:
    """Or a rank that was killed would come back at once on a slot that is given away already."""
    assert controller_orders(state, state.jobs[TRAIN], "w").lease is None
    granted = controller_orders(STARTING, STARTING.jobs[TRAIN], "w").lease
    assert granted is not None and [slot.index for slot in granted.slots] == [0]
    cancelled = replace(STARTING.jobs[TRAIN], cancelled=True)
    assert controller_orders(STARTING, cancelled, "w").lease is None


@pytest.mark.proves("a controller of a job that is over hears so", "a crashed gang is killed by its controller")
def test_a_controller_kills_what_is_left_of_a_crashed_gang_and_ends_with_its_job() -> None:
    def told(state: PoolState) -> tuple[bool, bool]:
        found = controller_orders(state, state.jobs[TRAIN], "")
        return found.cancelled, found.kill_gang

    assert told(RECOVERING) == (False, True)
    assert told(ENDED) == (True, True)
    assert told(fold(WAITING, CancelJob(TRAIN, "r"))) == (True, False)
    assert told(WAITING) == told(STOPPING) == told(PARKED) == (False, False)


# ---- routes

PLACING: tuple[Body, ...] = (GrantSeat(SEAT0, (S0,), "r"),)
LANDED: tuple[Body, ...] = (*PLACING, SeatLanded(SEAT0, "a"))
READY: tuple[Body, ...] = (*LANDED, SeatReady(SEAT0, ()))
DRAINING: tuple[Body, ...] = (*READY, DrainSeat(SEAT0, "r"))


def sent_to(*story: Body, **changes: Any) -> bool:
    """Whether the seat is in the table, when its replica reports that it answers."""
    report = replace(ReplicaReport(SEAT0, "a", "n0", 7, 1, ReplicaPhase.READY, "http://r"), **changes)
    seen = Observation(started_s=0.0, replicas={SEAT0: Timestamped(1.0, report)})
    table = routes(fold(a_pool(), *story), seen)
    assert set(table) == {"chat"}
    return [route.url for route in table["chat"]] == ["http://r"]


@pytest.mark.proves(
    "a draining, starting or stopping seat is in no table",
    "a replica of an earlier lease is in no table",
    "a replica that does not answer yet is in no table",
)
def test_requests_go_to_a_ready_seat_whose_very_replica_answers_and_nowhere_else() -> None:
    assert sent_to(*READY)
    for story in (PLACING, LANDED, DRAINING, (*DRAINING, SeatStopped(SEAT0, "drained"))):
        assert not sent_to(*story), story
    assert not sent_to(*READY, lease_epoch=0)
    assert not sent_to(*READY, phase=ReplicaPhase.STARTING)
    assert not sent_to(*READY, url="")
    assert routes(fold(a_pool(), *READY), Observation(started_s=0.0)) == {"chat": ()}


# ---- observing


@pytest.mark.proves("an observing pool does not count held slots as its own")
def test_an_observer_counts_as_free_what_nobody_holds() -> None:
    state = fold(a_pool(), *(SlotUnfenced(slot) for slot in (S0, S1, S2)))
    holder = LockHolder("somebody", 0, 9, 1)
    report = AgentReport("n0", "b", {0: None, 1: holder, 2: None}, after=AgentAnswer("a", 10**6))
    seen = Observation(started_s=0.0, agents={NodeId("n0"): Timestamped(10**6, report)}, strangers={S2: "a placement"})
    assert as_if_ours(state, seen).free_slots() == (S0,)
    assert as_if_ours(state, replace(seen, agents={})).free_slots() == ()


def test_arrivals_add_up_over_gateways_and_each_stay_counts_once() -> None:
    told = {
        "a": Traffic(arriving_per_s=3.0, stays=30, stayed_s=60.0),
        "b": Traffic(arriving_per_s=1.0, stays=10, stayed_s=100.0),
        "idle": Traffic(),
    }
    gateways = {
        name: Timestamped(100.0, GatewayReport(name, "n0", 0.0, "", 1, {"chat": one})) for name, one in told.items()
    }
    found = traffic(a_pool(), Observation(started_s=0.0, gateways=gateways), 100.0)[CHAT]
    assert (found.arriving_per_s, found.stay_s, found.known) == (4.0, 4.0, True)
    silent = traffic(a_pool(), Observation(started_s=0.0, gateways=gateways), 100.0 + GATEWAY_FRESH_S + 0.1)[CHAT]
    assert (silent.arriving_per_s, silent.stay_s, silent.known) == (0.0, 0.0, False)


def test_a_gateway_that_is_silent_is_told_of_until_another_has_its_place() -> None:
    def found(*told: tuple[float, str, float]) -> tuple[bool, float]:
        gateways = {
            f"g{number}": Timestamped(at_s, GatewayReport(f"g{number}", node, started_s, "", 1, {}))
            for number, (at_s, node, started_s) in enumerate(told)
        }
        one = traffic(a_pool(), Observation(started_s=0.0, gateways=gateways), 100.0)[CHAT]
        return one.known, one.unheard_s

    assert found((99.0, "n0", 1.0), (98.0, "n1", 2.0)) == (True, 0.0)
    assert found((99.0, "n0", 1.0), (90.0, "n1", 2.0)) == (True, 10.0)
    assert found((99.0, "n0", 50.0), (90.0, "n0", 2.0)) == (True, 0.0), "its port is another's now"
    assert found((99.0, "n0", 1.0), (90.0, "n1", 2.0), (80.0, "n1", 1.0)) == (True, 10.0)
    assert found((90.0, "n0", 1.0)) == (False, 10.0)


def test_an_answer_in_one_piece_is_late_only_if_its_stream_would_have_been() -> None:
    """SLO: 1 s to the first token, 0.1 s to each further one."""
    assert began_s(10.5, 100, 0.1) == pytest.approx(0.6)
    assert began_s(3.0, 1, 0.1) == 3.0, "all of it was the first token"
    assert began_s(0.5, 100, 0.1) == 0.0 and began_s(2.0, 0, 0.1) == 2.0
    told = Traffic(recent_whole=((10.5, 100), (12.0, 20)), recent_ttft_s=(0.2,), recent_tpot_s=(0.03, 0.2, 0.04))
    report = GatewayReport("a", "n0", 0.0, "", 1, {"chat": told})
    found = traffic(a_pool(), Observation(started_s=0.0, gateways={"a": Timestamped(100.0, report)}), 100.0)[CHAT]
    assert found.ttft_p90_s == pytest.approx(0.6), "of 0.2, 0.6 and 10.1: with three the middle one"
    assert found.tpot_p90_s == 0.04


def test_what_queues_in_replicas_is_told_of_those_that_are_ready_and_heard() -> None:
    report = ReplicaReport(SEAT0, "a", "n0", 7, 1, ReplicaPhase.READY, waiting=3, kv_usage=0.9)
    seen = Observation(started_s=0.0, replicas={SEAT0: Timestamped(100.0, report)})
    state = fold(a_pool(), *READY)

    def told(state: PoolState, now_s: float) -> tuple[int, float]:
        found = traffic(state, seen, now_s)[CHAT]
        return found.waiting, found.kv_usage

    assert told(state, 100.0) == (3, 0.9)
    assert told(state, 100.0 + GATEWAY_FRESH_S + 0.1) == (0, 0.0)
    assert told(fold(a_pool(), *DRAINING), 100.0) == (0, 0.0)


def test_a_gateway_under_steady_traffic_tells_what_arrives_and_how_long_it_stays() -> None:
    loop = serving()
    loop.run(80.0)
    assert loop.arbiter is not None
    found = traffic(loop.state, loop.arbiter.seen(), loop.clock.now_s)[CHAT]
    assert found.arriving_per_s == pytest.approx(0.5, abs=0.07)
    assert found.stay_s == pytest.approx(loop.gateways[0].service_s, abs=0.4)
