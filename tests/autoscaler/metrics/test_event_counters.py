"""The arbiter's metrics after simulated tides: what a scrape shows, and that a restart takes nothing back."""

from dataclasses import replace

import pytest

from ebbtide.client.messages import RankPhase, RankReport
from ebbtide.config.sections.pool_section import PoolMode
from ebbtide.pool.events import EndpointRemoved, Event, JobCrashed, JobHeld, NodeDraining, StopJob
from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.ids import EndpointName, JobName, NodeId, RecordId
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState
from ebbtide.telemetry.catalogue import families, series_names
from ebbtide.telemetry.training import GROWTHS
from ebbtide_autoscaler.core.observe.alerts import FreezeCause
from ebbtide_autoscaler.core.observe.observation import Timestamped
from ebbtide_autoscaler.core.plan.inputs import Memory
from ebbtide_autoscaler.core.tick.tick import World, tick
from ebbtide_autoscaler.metrics.counter_state import CounterState
from ebbtide_autoscaler.metrics.event_counters import count_event
from ebbtide_autoscaler.metrics.recorder import ArbiterRecorder, Reading
from tests.autoscaler.closed_loop import a_job, an_endpoint
from tests.builders.metrics import CONDITION, TRAIN, Metered, one_tide, take_all
from tests.builders.policy import a_pool, fold, parked, slots, with_job
from tests.platform.telemetry.scrapes import needs_promtool, promtool


def test_one_tide_shows_as_a_park_a_replica_and_every_stage_of_the_hand_over() -> None:
    loop = one_tide()
    found = loop.scrape()
    assert found["ebbtide_preemptions_total", "park"] == 1
    assert found["ebbtide_replica_starts_total", "chat"] == 1
    assert found["ebbtide_replica_loads_total", "chat", "ebbtide_flat"] == 1
    assert found["ebbtide_slots", "leased", "training"] == 3
    assert found["ebbtide_slots", "free", "-"] == 0
    assert found["ebbtide_jobs", "running"] == 1
    assert found["ebbtide_job_workers", "train"] == 3
    assert found["ebbtide_job_step", "train"] > 0
    stages = {key[1]: value for key, value in found.items() if key[0] == "ebbtide_handover_stage_seconds_count"}
    assert set(stages) == {
        "asked_to_parked",
        "asked_to_freed",
        "freed_to_granted",
        "granted_to_open",
        "open_to_landed",
        "landed_to_ready",
        "asked_to_drained",
    }
    assert stages["granted_to_open"] == stages["open_to_landed"] == stages["landed_to_ready"] == 1
    assert stages["asked_to_freed"] == 4  # three slots of the gang and one of the replica
    assert found["ebbtide_replica_start_seconds_count", "chat"] == 1
    assert found["ebbtide_job_start_seconds_count", "start"] == found["ebbtide_job_start_seconds_count", "resume"] == 1
    placed = sum(
        found["ebbtide_handover_stage_seconds_sum", stage]
        for stage in ("granted_to_open", "open_to_landed", "landed_to_ready")
    )
    assert abs(placed - found["ebbtide_replica_start_seconds_sum", "chat"]) < 1e-6


def test_what_a_team_has_and_waits_for_can_be_seen_and_alerted_on() -> None:
    loop = Metered(1)
    loop.run(3.0)
    loop.submit(a_job("one", team="vision", workers_min=2, workers_max=2))
    loop.run(10.0)
    loop.submit(a_job("two", team="speech", workers_min=3, workers_max=3))
    loop.submit(a_job("three", team="vision", workers_min=2, workers_max=2))
    loop.run(5.0)
    found = loop.scrape()
    assert (found["ebbtide_team_slots", "vision"], found["ebbtide_team_waiting_slots", "vision"]) == (2, 2)
    assert (found["ebbtide_team_slots", "speech"], found["ebbtide_team_waiting_slots", "speech"]) == (0, 3)
    loop.tell(JobHeld(JobName("two"), "me", "r"))
    loop.run(5.0)
    assert loop.scrape()["ebbtide_team_waiting_slots", "speech"] == 0


def test_a_restarted_arbiter_counts_on_where_the_ledger_stands() -> None:
    loop = one_tide()
    before = loop.scrape()
    loop.kill_arbiter(down_s=2.0)
    loop.run(10.0)
    after = loop.scrape()
    counters = {name for name, family in families().items() if family.kind == "counter"}
    kept = [key for key in before if key[0] in counters and key[0] != "ebbtide_ledger_written_bytes_total"]
    assert kept
    for key in kept:
        assert after[key] >= before[key], key
    assert after["ebbtide_preemptions_total", "park"] == 1
    assert after[("ebbtide_arbiter_starts_total",)] == before[("ebbtide_arbiter_starts_total",)] + 1


@pytest.mark.parametrize("in_place", [True, False])
def test_a_job_that_a_person_puts_aside_is_counted_apart_from_preemptions_by_the_policy(in_place: bool) -> None:
    loop = Metered(1)
    loop.run(3.0)
    loop.submit(a_job(in_place=in_place))
    loop.run(10.0)
    assert loop.scrape()["ebbtide_jobs_held",] == 0
    loop.tell(JobHeld(TRAIN, "me", "r"))
    loop.run(20.0)
    found = loop.scrape()
    assert found["ebbtide_jobs_held",] == found["ebbtide_preemptions_total", "held"] == 1
    assert {key[1] for key in found if key[0] == "ebbtide_preemptions_total"} == {"held"}


GROWS = with_job(a_pool(nodes={"n0": 3, "n1": 1}), a_job(), slots(2))
OFF_NODE = JobHeld(TRAIN, "ann", "debugging", off_node=True)


@pytest.mark.parametrize(
    ("before", "grows"),
    [
        pytest.param(GROWS, True, id="nothing else takes it away"),
        pytest.param(fold(GROWS, NodeDraining(NodeId("n1"), "disk")), True, id="another node drains"),
        pytest.param(fold(GROWS, NodeDraining(NodeId("n0"), "disk")), False, id="its node drains"),
        pytest.param(fold(GROWS, OFF_NODE), False, id="held, and to leave memory"),
        pytest.param(fold(parked(GROWS), OFF_NODE), False, id="held while parked, and to leave memory"),
        pytest.param(fold(parked(GROWS), NodeDraining(NodeId("n0"), "disk")), False, id="its node drains while parked"),
    ],
)
def test_what_stops_without_a_preemption_grows_only_if_nothing_else_takes_it_away(
    before: PoolState, grows: bool
) -> None:
    stop = Event(RecordId("1-0"), 2_000.0, None, StopJob(TRAIN, "r", preempts=False))
    assert [one.family for one in count_event(before, stop)].count(GROWTHS) == grows


def test_counting_live_and_counting_by_replay_give_the_same() -> None:
    loop = one_tide()
    replayed = CounterState()
    take_all(replayed, PoolState(), loop.events)
    replayed.started()
    assert replayed.counts == loop.meter.tally.counts
    assert CounterState.from_json(replayed.as_json()).counts == replayed.counts


def test_a_snapshot_with_its_tally_stands_for_the_events_before_it() -> None:
    loop = one_tide()
    half = len(loop.events) // 2
    first = CounterState()
    state = take_all(first, PoolState(), loop.events[:half])
    second = CounterState.from_json(first.as_json())
    take_all(second, state, loop.events[half:])
    second.started()
    assert second.counts == loop.meter.tally.counts


def test_a_crash_is_charged_by_what_the_job_was_doing_and_by_what_was_run_again() -> None:
    loop = Metered(2)
    loop.run(3.0)
    driver = loop.submit(a_job())
    loop.run(15.0)
    while driver.step - driver.durable < 3:
        loop.run(0.2)
    assert driver.gang is not None and loop.state.jobs[TRAIN].state is JobState.RUNNING
    loop.cluster.machines.kill(driver.gang.ranks[0].process)
    loop.run(30.0)
    found = loop.scrape()
    crashed = [event.body for event in loop.events if isinstance(event.body, JobCrashed)]
    assert len(crashed) == 1
    assert found["ebbtide_crashes_total", "running"] == 1
    assert found["ebbtide_lost_steps_total", "running"] == crashed[0].lost_steps
    assert found[("ebbtide_crash_lost_steps_total",)] == loop.state.jobs[TRAIN].crash_lost_steps >= 3


def test_durable_steps_are_counted_once_each() -> None:
    loop = one_tide()
    found = loop.scrape()
    assert found[("ebbtide_durable_steps_total",)] == loop.state.jobs[TRAIN].durable_step
    assert found["ebbtide_job_durable_step", "train"] == loop.state.jobs[TRAIN].durable_step


def test_ten_thousand_jobs_that_came_and_went_leave_no_series() -> None:
    loop = one_tide()
    assert loop.arbiter is not None
    before = len(loop.meter.metrics.text()[0])
    record = loop.state.jobs[TRAIN]
    ended = {
        JobName(f"job-{n}"): replace(
            record, spec=replace(record.spec, name=JobName(f"job-{n}")), state=JobState.ENDED, gang=()
        )
        for n in range(10_000)
    }
    world = loop.arbiter.world
    loop.arbiter.world = replace(world, state=replace(world.state, jobs={**world.state.jobs, **ended}))
    report = RankReport("stranger", "x", 0, 1, "n0", 1, 1, 0, RankPhase.RUNNING, 5, 0)
    for number in range(10_000):  # ranks of jobs that nobody knows
        loop.arbiter.ranks[JobName(f"stranger-{number}"), 0] = Timestamped(loop.clock.now_s, report)
    assert len(loop.meter.metrics.text()[0]) < before * 1.05


def test_an_endpoint_that_is_removed_takes_its_series_with_it() -> None:
    loop = one_tide()
    tally = loop.meter.tally
    event = Event(RecordId("9.1"), 1.0, None, EndpointRemoved(EndpointName("chat")))
    assert any("chat" in labels for _, labels in tally.counts)
    tally.take(loop.state, event)
    assert not any("chat" in labels for _, labels in tally.counts)
    assert "chat" not in apply(loop.state, event).endpoints


def test_a_freeze_shows_who_stopped_the_pool_and_since_when() -> None:
    loop = one_tide()
    loop.condition = replace(
        CONDITION, frozen_by=FreezeCause.LEDGER, frozen_since_s=123.0, mode=PoolMode.OBSERVE, waiting=2
    )
    found = loop.scrape()
    assert [by for by in ("person", "ledger", "promise", "start") if found["ebbtide_frozen", by]] == ["ledger"]
    assert found[("ebbtide_frozen_since_timestamp_seconds",)] == 123.0
    assert (found["ebbtide_mode", "observe"], found["ebbtide_mode", "manage"]) == (1, 0)
    assert found[("ebbtide_waiting_workloads",)] == 2


def test_how_many_nodes_are_wanted_and_whether_ray_knows_is_seen() -> None:
    loop = one_tide()
    loop.condition = replace(CONDITION, nodes_wanted=5, cluster_untold=True)
    found = loop.scrape()
    assert (found[("ebbtide_nodes_wanted",)], found[("ebbtide_cluster_untold",)]) == (5, 1)


def test_a_scrape_before_the_first_tick_is_no_error() -> None:
    meter = ArbiterRecorder(lambda: None)
    assert b"ebbtide_build_info" in meter.metrics.text()[0]
    world = World(PoolState(), Memory(), 1)
    assert b"ebbtide_frozen" in ArbiterRecorder(lambda: Reading(world, None, CONDITION)).metrics.text()[0]


def test_refused_events_are_counted_by_kind() -> None:
    loop = one_tide()
    assert loop.arbiter is not None
    world, seen = loop.arbiter.world, loop.arbiter.seen()
    result = tick(world, seen, (JobCrashed(JobName("nobody"), "x", 0),), loop.clock.now_s, loop.knobs)
    loop.meter.committed(world.state, result, seen, loop.clock.now_s)
    assert loop.scrape()["ebbtide_refused_events_total", "job_crashed"] == 1


def test_every_series_of_a_scrape_is_in_the_catalogue() -> None:
    known = {name for family in families().values() for name in series_names(family)}
    ours = {key[0] for key in one_tide().scrape() if not key[0].startswith("process_")}
    assert ours <= known, ours - known


@needs_promtool
def test_promtool_has_nothing_to_say() -> None:
    loop = one_tide()
    assert promtool("check", "metrics", text=loop.meter.metrics.text()[0]) == ""


def test_two_endpoints_have_series_of_their_own() -> None:
    loop = Metered(3, endpoints=(an_endpoint("a"), an_endpoint("b", replicas_min=1)))
    loop.run(20.0)
    found = loop.scrape()
    assert found["ebbtide_replicas", "a", "ready"] == 0
    assert found["ebbtide_replicas", "b", "ready"] == 1
    assert found["ebbtide_replicas_wanted", "b"] == 1
