"""What `ebbtide status` shows."""

from dataclasses import replace

from ebbtide.client.messages import RankPhase, RankReport
from ebbtide.pool.events import (
    Body,
    EndpointDeclared,
    Event,
    GrantJob,
    GrantSeat,
    JobCrashed,
    JobRecovered,
    JobRunning,
    NodeDraining,
    NodeFound,
    NodeLost,
    ParkJob,
    PoolFrozen,
    SeatGone,
    SeatStopped,
    Slot,
    SlotFound,
    SlotFreed,
)
from ebbtide.pool.handlers.apply import replay
from ebbtide.pool.ids import NodeId, RecordId, SlotId
from ebbtide_autoscaler.core.observe.observation import Observation, Timestamped
from ebbtide_autoscaler.service.pool_view import LOST_SHOWN_S, view
from tests.autoscaler.closed_loop import a_job, an_endpoint
from tests.builders.policy import S0, S1, SEAT0, TRAIN, a_pool, fold, with_job, with_ready

NODE = NodeId("n")


def test_a_lost_slot_is_shown_as_long_as_it_is_news() -> None:
    bodies: tuple[Body, ...] = (NodeFound(NODE, 1), SlotFound(Slot(SlotId("n:0"), NODE, 0)), NodeLost(NODE))
    state = replay([Event(RecordId(str(i)), 100.0, None, body) for i, body in enumerate(bodies)])
    seen = Observation(started_s=0.0)
    assert [slot["state"] for slot in view(state, seen, {}, 101.0)["slots"]] == ["lost"]
    assert view(state, seen, {}, 101.0 + LOST_SHOWN_S)["slots"] == []


def test_a_lost_slot_of_a_cluster_that_was_taken_down_is_no_news_and_one_that_vanished_is() -> None:
    old, new = NodeId("old"), NodeId("new")
    bodies: tuple[Body, ...] = (
        *(NodeFound(node, 1) for node in (old, new)),
        *(SlotFound(Slot(SlotId(f"{node}:0"), node, 0)) for node in (old, new)),
        *(NodeLost(node) for node in (old, new)),
    )
    state = replay([Event(RecordId(str(i)), 100.0, None, body) for i, body in enumerate(bodies)])
    shown = view(state, Observation(started_s=0.0), {}, 101.0, left=frozenset({old}))["slots"]
    assert [slot["slot"] for slot in shown] == ["new:0"]


def test_what_a_person_asked_for_and_what_failed_can_be_seen() -> None:
    state = with_ready(a_pool(endpoints=(an_endpoint(revision="a"),)), SEAT0, (S0,))
    state = with_job(state, a_job(), (S1,))
    state = fold(state, NodeDraining(NodeId("n0"), "new disk"), PoolFrozen("night"), at_s=2_000.0)
    state = fold(
        state, EndpointDeclared(an_endpoint(revision="b")), JobCrashed(TRAIN, "out of memory", 0), at_s=2_000.0
    )
    seen = view(state, Observation(started_s=0.0), {}, 2_001.0)
    node = seen["nodes"][0]
    assert (node["draining"], node["drained"], node["occupants"]) == ("new disk", False, [SEAT0, TRAIN])
    assert seen["frozen"] == {"why": "night", "since_at_s": 2_000.0}
    seat, endpoint, job = seen["endpoints"][0]["seats"][0], seen["endpoints"][0], seen["jobs"][0]
    assert (endpoint["revision"], seat["revision"], seat["stale"]) == ("b", "a", True)
    assert (job["failures_in_a_row"], job["next_try_s"], job["last_error"]) == (1, 1.0, "out of memory")
    state = fold(state, SeatStopped(SEAT0, "no luck"), SlotFreed(S0), SeatGone(SEAT0), at_s=2_000.0)
    state = fold(state, SlotFreed(S1), JobRecovered(TRAIN), EndpointDeclared(an_endpoint(revision="a")), at_s=2_000.0)
    seen = view(state, Observation(started_s=0.0), {}, 2_001.0)
    endpoint = seen["endpoints"][0]
    assert (endpoint["failures"], endpoint["next_try_s"], endpoint["last_error"]) == (1, 1.0, "no luck")
    assert not endpoint["permanent"]
    assert seen["nodes"][0]["drained"]


def test_what_ranks_measured_is_shown_while_they_say_so() -> None:
    state = with_job(a_pool(), a_job(), (S1,))
    job = state.jobs[TRAIN]
    report = RankReport(TRAIN, job.incarnation, 0, 1, "n0", 7, job.epoch, 0, RankPhase.RUNNING, 5, 0)
    seen = Observation(started_s=0.0)
    assert [view(state, seen, {}, 1.0)["jobs"][0][key] for key in ("tracked_bytes", "in_place_hindered")] == [0, None]
    told = replace(report, tracked_bytes=77, in_place_hindered="it is sharded")
    seen = Observation(started_s=0.0, ranks={(TRAIN, 0): Timestamped(1.0, told)})
    shown = view(state, seen, {}, 1.5)["jobs"][0]
    assert (shown["tracked_bytes"], shown["in_place_hindered"]) == (77, "it is sharded")


def test_the_failures_of_a_replaced_revision_are_not_how_the_endpoint_stands() -> None:
    state = a_pool(endpoints=(an_endpoint(revision="a"),))
    failed = fold(state, GrantSeat(SEAT0, (S0,), "r"), SeatStopped(SEAT0, "no such option"), at_s=2_000.0)
    for gone in (failed, fold(failed, SlotFreed(S0), SeatGone(SEAT0), at_s=2_000.0)):
        told = []
        for now in (gone, *(fold(gone, EndpointDeclared(an_endpoint(revision=one)), at_s=2_000.0) for one in "ba")):
            endpoint = view(now, Observation(started_s=0.0), {}, 2_001.0)["endpoints"][0]
            seat = endpoint["seats"][0]
            assert (seat["failures"], seat["last_error"]) == (endpoint["failures"], endpoint["last_error"])
            told.append((seat["failures"], seat["last_error"], endpoint["failure"] is not None))
        fails = (1, "no such option", True)
        assert told == [fails, (0, None, False), fails], "put back into force, it fails as before"


def test_a_job_fails_until_it_trains_again_and_not_for_ever() -> None:
    ran = with_job(a_pool(), a_job(), (S1,))
    crashed = fold(ran, JobCrashed(TRAIN, "out of memory", 0), at_s=2_000.0)
    waits = fold(crashed, SlotFreed(S1), JobRecovered(TRAIN), at_s=2_001.0)
    starts = fold(waits, GrantJob(TRAIN, (S1,), "r"), at_s=2_002.0)
    again = fold(starts, JobRunning(TRAIN, 0), at_s=2_003.0)
    parks = fold(again, ParkJob(TRAIN, "r"), at_s=2_004.0)
    seen = Observation(started_s=0.0)
    states = (ran, crashed, waits, starts, again, parks)
    assert [view(one, seen, {}, 2_005.0)["jobs"][0]["failing"] for one in states] == [False, *[True] * 3, False, False]


def test_what_a_rank_of_the_gang_before_said_is_not_where_the_job_is_now() -> None:
    state = with_job(a_pool(), a_job(), (S1,))
    job = state.jobs[TRAIN]
    report = RankReport(TRAIN, job.incarnation, 0, 1, "n0", 7, job.epoch, 0, RankPhase.RUNNING, 400, 0)
    seen = Observation(started_s=0.0, ranks={(TRAIN, 0): Timestamped(2_002.0, report)})
    assert view(state, seen, {}, 2_003.0)["jobs"][0]["step"] == 400
    state = fold(state, JobCrashed(TRAIN, "x", 0), SlotFreed(S1), JobRecovered(TRAIN), at_s=2_001.0)
    again = fold(state, GrantJob(TRAIN, (S1,), "r"), at_s=2_002.0)
    shown = view(again, seen, {}, 2_003.0)["jobs"][0]
    assert (shown["step"], shown["pids"]) == (job.durable_step, {})


def test_whether_a_job_can_leave_and_comes_back_can_be_seen() -> None:
    state = with_job(a_pool(), a_job(), (S1,))
    job = state.jobs[TRAIN]
    report = RankReport(TRAIN, job.incarnation, 0, 1, "n0", 7, job.epoch, 0, RankPhase.RUNNING, 5, 0)
    keys = ("park_refused", "interactive", "restorable")
    assert [view(state, Observation(started_s=0.0), {}, 1.0)["jobs"][0][key] for key in keys] == [None, False, False]
    told = replace(report, park_refused="no helper", interactive=True)
    ranks = {(TRAIN, 0): Timestamped(1.0, told)}
    seen = Observation(started_s=0.0, ranks=ranks, restorable=frozenset({TRAIN}))
    assert [view(state, seen, {}, 1.0)["jobs"][0][key] for key in keys] == ["no helper", True, True]
