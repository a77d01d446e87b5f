"""A recording is played again: as it was it comes out as it was, and what is changed changes what should."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.pool.events import (
    Body,
    EndpointDeclared,
    EndpointRemoved,
    GrantJob,
    GrantSeat,
    JobEnded,
    JobRunning,
    JobSubmitted,
    NodeFound,
    SeatLanded,
    SeatReady,
    Slot,
    SlotFound,
)
from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.ids import JobName, NodeId, SeatId, slot_id
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.demand.demand_watch import Closed
from ebbtide_autoscaler.core.forecast.demand_bins import BIN_S, Bin, bin_of
from ebbtide_autoscaler.journal.demand_records import demand_record
from ebbtide_simulator.model.engine import Times
from ebbtide_simulator.model.meter import Use
from ebbtide_simulator.policies.contenders import CONTENDERS
from ebbtide_simulator.recorded.happened import Uses
from ebbtide_simulator.recorded.presence import Presence
from ebbtide_simulator.recorded.recording import Recording, Stretch, read_recording
from ebbtide_simulator.recorded.replay_file import ReplayFile
from ebbtide_simulator.run.run import Outcome, Run
from ebbtide_simulator.scenes.casting import policy_config, scene
from ebbtide_simulator.scenes.replay import Recorded
from ebbtide_simulator.scenes.replay_notes import replay_remarks
from ebbtide_simulator.traffic.queue import requests_at_full
from ebbtide_simulator.traffic.trace_files import BadTrace
from tests.autoscaler.closed_loop import a_job, an_endpoint
from tests.autoscaler.simulator.ledgers import CHAT, an_event, nothing, pool_file, pool_of, tide, tides, written
from tests.examples import examples

AS_IT_WAS = ReplayFile()


@pytest.fixture(scope="module")
def tidal(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Forty minutes of a pool that has lived."""
    folder, life = tmp_path_factory.mktemp("tides"), tides()
    return read_recording(written(folder / "ledger", life.events, [pool_file(folder), *life.records()]))


@pytest.fixture(scope="module")
def amid(tidal: Recording) -> Recording:
    """From the quarter of an hour on, when demand has fallen again."""
    return read_recording(tidal.folder, Stretch(begins_s=tidal.begins_s + 960.0))


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A job that is through before anybody asks for anything."""
    folder, life = tmp_path_factory.mktemp("tide"), tide(job_steps=300)
    return read_recording(written(folder / "ledger", life.events))


def a_file(text: Mapping[str, Any]) -> ReplayFile:
    return ReplayFile.model_validate_json(json.dumps(text))


def played(file: ReplayFile, one: Recording, *, name: str = "ebbtide", factor: float = 1.0) -> Outcome:
    inputs = Recorded(one, factor)
    play = CONTENDERS[name](scene(file, inputs, 0), policy_config(file, inputs))
    return Run(play.scene, play.contender, play.config).outcome()


def test_as_it_was_slots_are_used_as_they_were(tidal: Recording) -> None:
    """The closed loop's pool under the arbiter's core, and the simulator's, which knows of it by its ledger only."""
    found = played(AS_IT_WAS, tidal)
    assert sum(found.slot_s.values()) == pytest.approx(sum(tidal.slot_s.values()))
    for use in (Use.TRAINING, Use.READY):
        assert found.slot_s[use] == pytest.approx(tidal.slot_s[use], rel=0.15), use
    assert not found.refused


def test_equal_seeds_give_equal_replays_and_others_do_not(tidal: Recording) -> None:
    first, again = (scene(AS_IT_WAS, Recorded(tidal), 3).services[0].load.work_s for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, scene(AS_IT_WAS, Recorded(tidal), 4).services[0].load.work_s)


def test_demand_is_as_much_as_was_recorded_and_fills_replicas_as_it_did(tidal: Recording) -> None:
    drawn = [scene(AS_IT_WAS, Recorded(tidal), seed).services[0] for seed in range(200)]
    [engine] = {one.engine for one in drawn}
    spec = tidal.endpoints[CHAT]
    known = [one for one in tidal.demand[CHAT].values() if one is not None]
    at_once = np.mean([one.load.work_s.mean() for one in drawn]) / engine.full * spec.target_requests
    assert at_once == pytest.approx(np.mean([one.mean for one in known]), rel=0.1)
    per_s = np.mean([one.load.requests.mean() for one in drawn])
    assert per_s == pytest.approx(np.mean([one.per_s for one in known]), rel=0.1)
    assert requests_at_full(engine, drawn[0].load) == spec.target_requests
    twice = scene(AS_IT_WAS, Recorded(tidal, 2.0), 0).services[0].load.requests.sum()
    assert twice == pytest.approx(2 * drawn[0].load.requests.sum(), rel=0.1)


def test_what_is_measured_stands_in_for_what_is_assumed(tidal: Recording) -> None:
    given = scene(AS_IT_WAS, Recorded(tidal), 0)
    told, times = tidal.durations.told(), given.times
    assert times.start_s == told["start_s"]["median"] < Times().start_s
    assert times.gang_start_s == told["gang_start_s"]["median"]
    assert times.safe_point_s + times.park_s == pytest.approx(told["aside_s"]["median"])
    assert given.services[0].drain_s == told["drain_s of chat"]["median"]
    assert times.saves.pause_s == 0.0 < Times().saves.pause_s  # what it trained was recorded with its pauses
    changed = scene(a_file({"times": {"start_s": 1.5, "park_s": 9}}), Recorded(tidal), 0).times
    assert (changed.start_s, changed.park_s, changed.gang_start_s) == (1.5, 9.0, times.gang_start_s)


def test_the_policy_is_the_pools_own_and_changes_by_what_the_file_names(tidal: Recording) -> None:
    mine = policy_config(AS_IT_WAS, Recorded(tidal))
    assert (mine.restart_cost_s, mine.grow_after_s, mine.forecast_share) == (10, 5, 0.98)
    other = policy_config(a_file({"policy": {"grow_after_s": 60}, "pool": {"reserve": 1}}), Recorded(tidal))
    assert (other.restart_cost_s, other.grow_after_s, other.reserve) == (10, 60, 1)


def test_a_larger_pool_trains_more(tidal: Recording) -> None:
    file = a_file({"pool": {"nodes": 2}})
    given = scene(file, Recorded(tidal), 0)
    assert (given.nodes, given.slots_per_node, given.failures) == (2, 3, ())
    assert played(file, tidal).slot_s[Use.TRAINING] > 1.1 * played(AS_IT_WAS, tidal).slot_s[Use.TRAINING]


def test_a_job_that_finished_does_the_same_work_and_finishes(short: Recording) -> None:
    [past] = short.jobs
    assert past.finished
    found = played(AS_IT_WAS, short)
    [one] = found.training.values()
    assert one.end_s is not None and one.work_s == pytest.approx(past.trained_s)
    assert found.slot_s[Use.TRAINING] == pytest.approx(past.trained_s, rel=0.05)


def test_a_job_that_was_ended_ends_then_and_its_name_may_come_again(tmp_path: Path) -> None:
    events = list(pool_of({"n": [(0.0, 600.0)]}))
    for number, (from_s, until_s) in enumerate(((10.0, 50.0), (100.0, 200.0))):
        job = a_job("train", workers_max=2)
        events.append(an_event(from_s, JobSubmitted(job, str(number))))
        events.append(an_event(until_s, JobEnded(JobName("train"), "cancelled", "")))
    events.append(an_event(600.0, NodeFound(NodeId("n"), 11)))
    one = read_recording(written(tmp_path, sorted(events, key=lambda one: one.at_s)))
    assert [job.spec.name for job in scene(AS_IT_WAS, Recorded(one), 0).jobs if job.spec] == ["train", "train#2"]
    found = played(AS_IT_WAS, one)
    assert [job.end_s for job in found.training.values() if job.end_s is not None] == pytest.approx(
        [50.0, 200.0], abs=5.0
    )
    assert found.slot_s[Use.FREE] > 0 and not found.refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"endpoints": [{"name": "other"}]}, "the ledger knows no endpoint other: there are chat"),
        ({"endpoints": [{"name": "chat", "replicas_min": 3}]}, "replicas 3..2 is no range"),
        ({"endpoints": [{"name": "chat", "replicas_min": 4, "replicas_max": 4}]}, "have room for 3"),
    ],
)
def test_what_cannot_be_is_refused(tidal: Recording, text: Mapping[str, Any], message: str) -> None:
    with pytest.raises(BadTrace, match=message):
        scene(a_file(text), Recorded(tidal), 0)


def test_what_is_left_out_is_told(tidal: Recording, short: Recording) -> None:
    one = replace(short, left_out=7, counts={"replica starts": 3, "crashes of jobs": 2}, demand={})
    said = replay_remarks(AS_IT_WAS, Recorded(one), scene(AS_IT_WAS, Recorded(one), 0))
    for part in ("last 7 bytes", "crashes of jobs, in all 2", "nothing of the demand for chat", "pool's file"):
        assert any(part in remark for remark in said), part
    small = a_file({"pool": {"gpus_per_node": 1, "reserve": 1}})
    large = replace(tidal, jobs=tuple(replace(job, spec=replace(job.spec, workers_min=2)) for job in tidal.jobs))
    told = replay_remarks(small, Recorded(large), scene(AS_IT_WAS, Recorded(tidal), 0))
    assert any("1 of 1 jobs ask for up to 2 GPUs" in remark for remark in told)


def test_demand_of_before_arrivals_were_kept_is_played_with_the_stay_that_the_file_says(tidal: Recording) -> None:
    old = {name: {n: one and Bin(one.mean, one.peak) for n, one in bins.items()} for name, bins in tidal.demand.items()}
    one = replace(tidal, demand=old)
    slow = scene(a_file({"endpoints": [{"name": "chat", "stay_s": 20}]}), Recorded(one), 0).services[0].load
    quick = scene(a_file({"endpoints": [{"name": "chat", "stay_s": 2}]}), Recorded(one), 0).services[0].load
    assert slow.work_s.sum() == pytest.approx(quick.work_s.sum(), rel=0.2)
    assert 10 * slow.requests.sum() == pytest.approx(quick.requests.sum(), rel=0.2)
    assert any(
        "stay_s" in said for said in replay_remarks(AS_IT_WAS, Recorded(one), scene(AS_IT_WAS, Recorded(one), 0))
    )


def test_a_recording_that_begins_amid_a_day_begins_with_what_was_there(tidal: Recording, amid: Recording) -> None:
    stands = amid.standing
    assert sum(stands.gangs.values()) + sum(stands.replicas.values()) >= 2, "the test needs a moment of rest"
    given = scene(AS_IT_WAS, Recorded(amid), 0)
    play = CONTENDERS["ebbtide"](given, policy_config(AS_IT_WAS, Recorded(amid)))
    run = Run(play.scene, play.contender, play.config)
    run.to(0.5)
    assert {name: len(job.gang) for name, job in run.pool.state.jobs.items() if job.gang} == stands.gangs
    assert run.pool.ready(CHAT) == stands.replicas[CHAT]
    assert run.pool.state.endpoints[CHAT].start_s == pytest.approx(stands.starts_s[CHAT])
    found = run.outcome()
    assert sum(found.slot_s.values()) == pytest.approx(sum(amid.slot_s.values())) and not found.refused
    assert found.slot_s[Use.TRAINING] == pytest.approx(amid.slot_s[Use.TRAINING], rel=0.15)
    assert amid.span_s < tidal.span_s


def test_what_stands_in_a_smaller_pool_is_what_fits(amid: Recording) -> None:
    found = played(a_file({"pool": {"gpus_per_node": 1}, "endpoints": [{"name": "chat", "replicas_max": 1}]}), amid)
    assert sum(found.slot_s.values()) == pytest.approx(amid.span_s) and not found.refused


def test_days_before_the_recording_are_known_to_the_forecast(tidal: Recording) -> None:
    first = bin_of(tidal.begins_s)
    older = {CHAT: {first - 300 + n: Bin(1.0, 1.0, 0.5) for n in range(300)} | dict(tidal.demand[CHAT])}
    known = scene(AS_IT_WAS, Recorded(replace(tidal, demand=older)), 0).known
    assert known[CHAT].first == first - 300 and known[CHAT].end == first
    assert BIN_S * first <= tidal.begins_s


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_demand_that_is_multiplied_was_as_much_more_on_the_days_before(tidal: Recording, factor: float) -> None:
    first = bin_of(tidal.begins_s)
    older = {CHAT: {first - 3: Bin(1.0, 2.0, 0.5), first - 2: None, first - 1: Bin(3.0, 4.0, 0.0)}}
    known = scene(AS_IT_WAS, Recorded(replace(tidal, demand=older), factor), 0).known[CHAT]
    assert known.bins == (
        Bin(factor, 2 * factor, factor / 2),
        None,
        Bin(3 * factor, 4 * factor, 0.0),
    )


# ---- endpoints that come and go


@settings(max_examples=examples(30), deadline=None, database=None, derandomize=True)
@given(times=st.lists(st.integers(0, 24), min_size=1, max_size=6, unique=True).map(sorted), early=st.integers(0, 8))
def test_an_endpoint_is_asked_for_as_much_as_it_was_and_for_nothing_while_it_was_not_there(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], early: int
) -> None:
    """Declared and removed by turns, within two hours; the recording begins after ``early`` bins of five minutes."""
    ends_s, declared = 24 * BIN_S, np.zeros(24, bool)
    events = [*pool_of({"n": [(0.0, ends_s)]}, until_s=ends_s), nothing(ends_s)]
    for number, (at, until) in enumerate(zip(times, [*times[1:], 24], strict=True)):
        events.append(an_event(at * BIN_S, EndpointRemoved(CHAT) if number % 2 else EndpointDeclared(an_endpoint())))
        declared[at:until] = number % 2 == 0
    told = [demand_record(Closed(CHAT, int(n), Bin(4.0, 4.0, 2.0))) for n in np.flatnonzero(declared)]
    events.sort(key=lambda one: one.at_s)
    one = read_recording(written(tmp_path_factory.mktemp("ledger"), events, told), Stretch(begins_s=early * BIN_S))
    if not declared[early:].any():
        return
    given_scene = scene(AS_IT_WAS, Recorded(one), 0)
    by_bin = given_scene.services[0].load.requests.reshape(-1, int(BIN_S)).mean(axis=1)
    assert by_bin == pytest.approx(np.where(declared[early:], 2.0, 0.0), abs=0.5)
    assert not any(
        "demand for chat is not known" in said for said in replay_remarks(AS_IT_WAS, Recorded(one), given_scene)
    )


def test_what_is_not_known_of_an_endpoint_that_was_there_is_a_straight_line_and_told(tmp_path: Path) -> None:
    """It is there from the 10th bin to the 30th, and before the 15th, in the 20th and from the 25th on nobody heard."""
    ends_s = 40 * BIN_S
    events = [*pool_of({"n": [(0.0, ends_s)]}, until_s=ends_s), nothing(ends_s)]
    events += [an_event(10 * BIN_S, EndpointDeclared(an_endpoint())), an_event(30 * BIN_S, EndpointRemoved(CHAT))]
    told = [demand_record(Closed(CHAT, n, Bin(4.0, 4.0, 2.0))) for n in range(15, 25) if n != 20]
    one = read_recording(written(tmp_path, sorted(events, key=lambda one: one.at_s), told))
    given_scene = scene(AS_IT_WAS, Recorded(one), 0)
    by_bin = given_scene.services[0].load.requests.reshape(-1, int(BIN_S)).mean(axis=1)
    assert by_bin == pytest.approx(np.array([0.0] * 10 + [2.0] * 20 + [0.0] * 10), abs=0.5)
    said = replay_remarks(AS_IT_WAS, Recorded(one), given_scene)
    assert any("of 11 of 40 stretches of five minutes the demand for chat is not known" in remark for remark in said)


@pytest.mark.parametrize("name", sorted(CONTENDERS))
def test_an_endpoint_has_replicas_while_it_was_there_and_none_before_and_after(tmp_path: Path, name: str) -> None:
    """Twice, from the 4th bin to the 8th and from the 12th to the 16th; cold ones take up to ten minutes."""
    ends_s, there = 20 * BIN_S, [(4, 8), (12, 16)]
    events = [*pool_of({"n": [(0.0, ends_s)]}, until_s=ends_s), nothing(ends_s)]
    for begin, end in there:  # not at whole seconds
        spec = an_endpoint(replicas_min=1, replicas_max=1, warm_replicas=1)
        events.append(an_event(begin * BIN_S + 0.3, EndpointDeclared(spec)))
        events.append(an_event(end * BIN_S - 0.6, EndpointRemoved(CHAT)))
    told = [demand_record(Closed(CHAT, n, Bin(1.0, 1.0, 0.5))) for begin, end in there for n in range(begin, end)]
    one = read_recording(written(tmp_path, sorted(events, key=lambda one: one.at_s), told))
    given_scene = scene(AS_IT_WAS, Recorded(one), 0)
    assert given_scene.services[0].there == tuple((a * BIN_S, b * BIN_S) for a, b in there)
    found = played(a_file({"times": {"start_s": 10, "cold_s": 10, "park_s": 5, "wake_s": 5}}), one, name=name)
    at_s = np.arange(len(found.course[Use.READY])) * one.course_s
    began, ends = (np.array([span[end] * BIN_S for span in there]) for end in (0, 1))
    ready = np.array(found.course[Use.READY])
    inside = ((at_s[:, None] > began + 600) & (at_s[:, None] <= ends)).any(axis=1)
    outside = ~((at_s[:, None] > began) & (at_s[:, None] <= ends)).any(axis=1)
    assert inside.any() and (ready[inside] == 1).all()
    assert not ready[outside].any()
    assert not found.refused
    waited_s, count = found.waits[0]
    assert waited_s[count > 0].max() < 700, "nobody waits from one time to the next"
    assert not any("removed" in said for said in replay_remarks(AS_IT_WAS, Recorded(one), given_scene))


# ---- nodes that come and go


@st.composite
def comings(draw: st.DrawFn) -> Mapping[str, list[tuple[float, float]]]:
    """Up to four nodes, each of which comes and goes a few times within ten minutes; one is there at second 0."""
    found = {}
    for number in range(draw(st.integers(1, 4))):
        times = sorted(draw(st.lists(st.integers(1, 598), max_size=5, unique=True)))
        times = [0, *times] if number == 0 else times or [1]
        ends = [*times, 600] if len(times) % 2 else times
        found[f"n{number}"] = [(float(a), float(b)) for a, b in zip(ends[::2], ends[1::2], strict=True)]
    return found


@settings(max_examples=examples(60), deadline=None, database=None, derandomize=True)
@given(comings())
def test_a_simulated_pool_has_as_many_slots_at_each_time_as_there_were(
    nodes: Mapping[str, list[tuple[float, float]]],
) -> None:
    presence, uses, state = Presence(), Uses(0.0), PoolState()
    for one in pool_of(nodes):
        before, state = state, apply(state, one)
        presence.take(one.at_s, before, state)
        uses.take(one.at_s, before, state, None)
    count, each = presence.shape()
    assert each == 2 and count <= len(nodes)
    there_s = sum(b - a for spans in nodes.values() for a, b in spans)
    down_s = sum(
        min(one.at_s + one.repair_s, 600.0) - one.at_s
        for one in presence.absences(0.0, 600.0, count)
        if one.at_s < 600.0
    )
    assert count * 600.0 - down_s == pytest.approx(there_s)
    assert presence.absences(0.0, 600.0, 0) == ()


def test_a_node_that_was_gone_is_gone_in_the_replay(tmp_path: Path) -> None:
    events = [
        *pool_of({"a": [(0.0, 600.0)], "b": [(100.0, 300.0), (400.0, 600.0)]}),
        an_event(600.0, NodeFound(NodeId("a"), 11)),
    ]
    one = read_recording(written(tmp_path, events))
    found = played(AS_IT_WAS, one)
    assert found.slot_s[Use.DOWN] == pytest.approx(2 * 200.0, abs=4.0)
    assert one.slot_s[Use.DOWN] == pytest.approx(2 * 100.0), "before its first slot a node is not down, it is not there"


@pytest.mark.parametrize("gone", ["a", "b"])
def test_replicas_and_jobs_stand_on_nodes_that_are_there(tmp_path: Path, gone: str) -> None:
    """Of two nodes one has gone before the recording begins, amid the days of a replica and a job on the other."""
    node, seat, job = NodeId("b" if gone == "a" else "a"), SeatId("chat/0"), JobName("train")
    spans = {name: [(0.0, 1000.0 if name == gone else 3000.0)] for name in ("a", "b")}
    events = [*pool_of(spans, until_s=3000.0), nothing(3000.0)]
    events += [
        an_event(at_s, body)
        for at_s, body in (
            (11.0, EndpointDeclared(an_endpoint(replicas_min=1, replicas_max=1))),
            (20.0, GrantSeat(seat, (slot_id(node, 0),), "why")),
            (21.0, SeatLanded(seat, "replica")),
            (171.0, SeatReady(seat, ())),
            (180.0, JobSubmitted(a_job(workers_max=1), "1")),
            (181.0, GrantJob(job, (slot_id(node, 1),), "why")),
            (182.0, JobRunning(job, 0)),
        )
    ]
    one = read_recording(
        written(tmp_path, sorted(events, key=lambda one: one.at_s)), Stretch(begins_s=2000.0, ends_s=3000.0)
    )
    found = played(AS_IT_WAS, one)
    for use in (Use.READY, Use.TRAINING):
        assert found.slot_s[use] == one.slot_s[use] == 1000.0, use
    assert found.slot_s[Use.DOWN] == 2000.0 and not found.refused


def test_nodes_of_different_sizes_are_cut_into_equal_ones() -> None:
    presence, state = Presence(), PoolState()
    for node, slots in ((NodeId("a"), 4), (NodeId("b"), 8)):
        bodies: list[Body] = [NodeFound(node, 1)]
        bodies += [SlotFound(Slot(slot_id(node, number), node, number)) for number in range(slots)]
        for body in bodies:
            before, state = state, apply(state, an_event(1.0, body))
            presence.take(1.0, before, state)
    assert presence.sizes == [4, 8] and presence.slots_each == 4
    assert presence.shape() == (3, 4)
