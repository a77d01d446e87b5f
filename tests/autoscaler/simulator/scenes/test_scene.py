"""From a command line to what every contender is given."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ebbtide_simulator.command import simulate
from ebbtide_simulator.model.engine import ENGINES
from ebbtide_simulator.run.bound import FLAT, is_flat, serving_slots
from ebbtide_simulator.run.run import Scene
from ebbtide_simulator.scenes.file import SimulationFile
from ebbtide_simulator.scenes.notes import remarks
from ebbtide_simulator.scenes.scene import Inputs, Named, read, scene
from ebbtide_simulator.traffic.draws import lasting
from ebbtide_simulator.traffic.requests import at_full
from ebbtide_simulator.traffic.trace_files import BadTrace
from ebbtide_simulator.traffic.traces import Array, Jobs, Rates, Requests
from tests.autoscaler.simulator.small_scenes import load_of
from tests.builders.simulate import REPLICA_PER_S, TOKENS, Columns, drawn, file_of, replicas, written

DAY_S = 86_400.0
HOUR_S = 3600
JOBS: Columns = {"submit_s": [0.0, DAY_S, 2.5 * DAY_S], "gpus": [1, 2, 4], "duration_s": [60.0, 120.0, 180.0]}


def counted(by_second: Sequence[int]) -> Requests:
    """So many requests in each second, the first and the last of which must have some."""
    at_s: Array = np.repeat(np.arange(len(by_second), dtype=np.float64), by_second)
    return Requests(at_s, np.full(len(at_s), 100.0), np.full(len(at_s), 10.0))


@pytest.mark.parametrize(
    ("said", "path", "factor", "from_day"),
    [
        ("a.parquet", "a.parquet", 1.0, 0.0),
        ("a.parquet:0.5", "a.parquet", 0.5, 0.0),
        ("a.parquet:0.5:8", "a.parquet", 0.5, 8.0),
        ("b:c.parquet", "b:c.parquet", 1.0, 0.0),
        ("b:c.parquet:2", "b:c.parquet", 2.0, 0.0),
        ("a:2:b.parquet:3:4", "a:2:b.parquet", 3.0, 4.0),
        ("a.parquet:1:2:3", "a.parquet:1", 2.0, 3.0),
    ],
)
def test_a_file_is_given_with_a_factor_and_a_day(said: str, path: str, factor: float, from_day: float) -> None:
    [option] = [one for one in simulate.params if one.name == "jobs"]
    assert option.type.convert(said, option, None) == (Path(path), factor, from_day)


def test_jobs_of_before_the_day_are_left_out(tmp_path: Path) -> None:
    [(_, jobs)] = read([], [Named(written(tmp_path, JOBS), 1.0, 1.0)]).jobs
    assert jobs.submit_s.tolist() == [0.0, 1.5 * DAY_S]
    assert jobs.gpus.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("day", [-1.0, 3.0, float("inf"), float("nan")])
def test_a_day_that_the_trace_does_not_have_is_refused(tmp_path: Path, day: float) -> None:
    with pytest.raises(BadTrace, match="cannot begin on day"):
        read([], [Named(written(tmp_path, JOBS), 1.0, day)])
    rates = written(tmp_path, {"t_s": [0.0, DAY_S], "total_tok_per_s": [1.0, 1.0]})
    with pytest.raises(BadTrace, match=f"{rates}: it has 1.00 days, and cannot begin on day"):
        read([Named(rates, 1.0, day)], [])


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_what_nothing_can_be_multiplied_by_is_refused(tmp_path: Path, factor: float) -> None:
    path = written(tmp_path, JOBS)
    with pytest.raises(BadTrace, match=f"{path}: a share of .* cannot be kept"):
        read([], [Named(path, factor)])
    with pytest.raises(BadTrace, match=f"{path}: a rate cannot be multiplied"):
        read([Named(path, factor)], [])


def test_traffic_goes_on_from_its_start_after_its_end() -> None:
    load = load_of(np.arange(6, dtype=np.float64))
    assert lasting(load, 10, 2.0).work_s.tolist() == [2.0, 3.0, 4.0, 5.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert lasting(load, 6, 0.0) is load


def test_traffic_begins_on_its_day_and_a_shorter_trace_is_repeated_up_to_the_longest() -> None:
    long, short = np.arange(1500) % 3 + 1, np.arange(1000) % 7 + 1
    found = drawn(file_of(2), counted(long.tolist()), counted(short.tolist()), from_day=(0.0, 300 / DAY_S))
    assert found.horizon_s == 1500.0
    first, second = (one.load for one in found.services)
    assert first.requests.tolist() == long.tolist()
    assert second.requests.tolist() == [*short[300:], *short[:800]]
    assert second.work_s == pytest.approx(second.requests * ENGINES["llama-8b-h100"].work_s(100, 10))


def test_jobs_of_all_traces_come_in_their_order_up_to_the_end() -> None:
    one = Jobs(np.array([0.0, 900.0, 5000.0]), np.full(3, 60.0), np.array([1.0, 2.0, 1.0]))
    other = Jobs(np.array([300.0, 400.0]), np.array([90.0, 1.0]), np.array([3.0, 3.0]))
    found = drawn(file_of(), replicas([1.0] * 30), jobs=(one, other))
    assert [(job.submit_s, job.workers_max, job.work_s) for job in found.jobs] == [
        (0.0, 1, 60.0),
        (300.0, 3, 270.0),
        (900.0, 2, 120.0),
    ], "one is after the end, one too short to be taken"


def test_more_demand_than_the_pool_over_ten_minutes_is_refused_with_a_factor_that_fits() -> None:
    trace = replicas([1.0] * 20 + [6.5] * 15 + [1.0] * 20)
    with pytest.raises(BadTrace, match=r"t0.parquet: at its height it needs \d+ GPUs, the pool has 4") as refused:
        drawn(file_of(), trace)
    [less] = re.findall(r"scale it by less than ([\d.]+)$", str(refused.value))
    assert 0.4 < float(less) < 0.7
    for seed in range(3):
        drawn(file_of(), trace, factor=0.9 * float(less), seed=seed)


def test_a_minute_of_more_than_the_pool_waits_and_is_not_refused() -> None:
    assert drawn(file_of(), replicas([1.0] * 14 + [9.0] + [1.0] * 15)).slots == 4


def test_endpoints_that_are_together_more_than_the_pool_are_refused() -> None:
    three = replicas([2.8] * 30)
    drawn(file_of(2), three, replicas([0.1] * 30))
    with pytest.raises(BadTrace, match="the pool has 4"):
        drawn(file_of(2), three, three)


def test_traffic_of_a_few_minutes_is_taken_or_refused_by_name() -> None:
    try:
        assert drawn(file_of(), replicas([1.0] * 3)).horizon_s > 0
    except ValueError as error:
        assert "t0.parquet" in str(error)


def test_traffic_that_is_shorter_than_two_warm_ups_is_played_twice_and_counts_the_second_time() -> None:
    found = drawn(file_of(warm_up_s=DAY_S), counted([2] * HOUR_S))
    assert (found.warm_up_s, found.horizon_s) == (HOUR_S, 2 * HOUR_S)
    assert found.services[0].load.requests.sum() == 2 * 2 * HOUR_S
    found = drawn(file_of(warm_up_s=1000.0), counted([2] * HOUR_S))
    assert (found.warm_up_s, found.horizon_s) == (1000.0, HOUR_S)


def test_no_more_than_the_hours_asked_for_are_taken() -> None:
    found = drawn(file_of(hours_max=0.5), counted([2] * HOUR_S))
    assert found.horizon_s == HOUR_S / 2 == len(found.services[0].load.work_s)


def test_equal_seeds_draw_equal_scenes_and_others_do_not() -> None:
    first, again, other = (drawn(file_of(), replicas([2.0] * 20), seed=seed).services[0].load for seed in (1, 1, 2))
    assert np.array_equal(first.work_s, again.work_s)
    assert not np.array_equal(first.work_s, other.work_s)


def models(*engines: str, nodes: int, per_node: int, **more: Any) -> SimulationFile:
    return SimulationFile.model_validate(
        {
            "pool": {"nodes": nodes, "gpus_per_node": per_node},
            "endpoints": tuple({"name": f"e{n}", "engine": engine} | more for n, engine in enumerate(engines)),
            "run": {"warm_up_s": 0.0},
        }
    )


def large_replicas(by_minute: Sequence[float]) -> Rates:
    """Requests that keep so many replicas of four GPUs full."""
    engine = ENGINES["llama-70b-4xh100"]
    per_s = (
        REPLICA_PER_S / engine.full * ENGINES["llama-8b-h100"].work_s(*TOKENS) * engine.full / engine.work_s(*TOKENS)
    )
    found = replicas(by_minute)
    return Rates(
        found.at_s, found.per_s / REPLICA_PER_S * per_s, found.noise_per_s, *(np.full(len(by_minute), np.nan),) * 2
    )


def test_a_file_has_engines_of_its_own() -> None:
    """One that is twice as fast as the 8B on an H100 needs half the replicas for the same requests."""
    known = ENGINES["llama-8b-h100"]
    twice = {"prefill_tok_s": 2 * known.prefill_tok_s, "decode_tok_s": 2 * known.decode_tok_s}
    own = {"fast": twice | {"gpus": 2, "weights": 1 << 30}, "llama-8b-h100": twice}
    file = SimulationFile.model_validate(
        {
            "pool": {"nodes": 1},
            "engines": own,
            "endpoints": ({"name": "a", "engine": "fast"}, {"name": "b"}),
            "run": {"warm_up_s": 0.0},
        }
    )
    first, second = drawn(file, replicas([1.0] * 30), replicas([1.0] * 30)).services
    assert first.engine.decode_tok_s == second.engine.decode_tok_s == 2 * known.decode_tok_s, "its own goes first"
    assert (first.spec.slots_per_replica, first.engine.park_bytes) == (2, 1 << 30)
    assert (second.spec.slots_per_replica, second.engine.full) == (1, known.full)
    slow = drawn(models("llama-8b-h100", nodes=1, per_node=8), replicas([1.0] * 30)).services[0]
    assert second.load.work_s.sum() == pytest.approx(slow.load.work_s.sum() / 2, rel=0.05)
    assert second.spec.target_requests == pytest.approx(2 * slow.spec.target_requests, abs=1)


def test_what_is_left_over_on_each_node_is_no_room_for_a_replica() -> None:
    """Four nodes of six GPUs hold four replicas of four, not six."""
    file = models("llama-70b-4xh100", nodes=4, per_node=6)
    [service] = drawn(file, large_replicas([3.0] * 30)).services
    assert service.spec.replicas_max == service.spec.warm_replicas == 4
    with pytest.raises(BadTrace, match="it needs 6 replicas of 4 GPUs of one node; the pool has room for 4"):
        drawn(file, large_replicas([5.5] * 30))


def test_a_promise_that_no_replica_can_keep_is_refused_with_its_numbers() -> None:
    """A prompt of 5,000 tokens takes 0.2 s alone."""
    long = {"prompt_tokens": 5000.0, "output_tokens": 10.0}
    trace = replicas([0.2] * 30)
    with pytest.raises(
        BadTrace, match=r"promises the first token within 0.1 s, but a mean prompt of 5,000 tokens takes 0.2 s"
    ):
        drawn(models("llama-8b-h100", nodes=1, per_node=4, ttft_slo_s=0.1, **long), trace)
    [service] = drawn(models("llama-8b-h100", nodes=1, per_node=4, ttft_slo_s=0.3, **long), trace).services
    assert service.spec.ttft_slo_s == 0.3, "it is the file's promise that is kept, or not"


def test_no_gang_is_taken_that_would_need_an_endpoint_s_last_replica_or_the_reserve() -> None:
    sizes = Jobs(np.zeros(4), np.full(4, 600.0), np.array([1.0, 2.0, 3.0, 4.0]))
    file = file_of()
    assert [job.workers_max for job in drawn(file, replicas([1.0] * 30), jobs=(sizes,)).jobs] == [1, 2, 3]
    reserved = file.model_copy(update={"pool": file.pool.model_copy(update={"reserve": 1})})
    assert [job.workers_max for job in drawn(reserved, replicas([1.0] * 30), jobs=(sizes,)).jobs] == [1, 2]


def told(file: SimulationFile, *jobs: Jobs, traces: Sequence[Rates | Requests] = ()) -> list[str]:
    traces = traces or [replicas([1.0] * 30)]
    inputs = Inputs(
        tuple((Named(Path(f"t{n}")), one) for n, one in enumerate(traces)),
        tuple((Named(Path("j")), one) for one in jobs),
    )
    return remarks(file, inputs, scene(file, inputs, 0))


def test_nothing_is_said_of_what_is_whole() -> None:
    assert told(file_of(), Jobs(np.zeros(2), np.full(2, 600.0), np.array([1.0, 3.0]))) == []


def test_all_that_is_left_out_is_said_with_numbers() -> None:
    sizes, lengths_s = np.array([64.0, 20.0, 1.0, 1.0, 1.0]), np.array([600.0, 600.0, 10.0, 1e6, 600.0])
    found = told(file_of(2, nodes=8, per_node=4), Jobs(np.zeros(5), lengths_s, sizes, without_end=3))
    assert found == [
        "no traffic is given for e1: left out",
        "j: 3 of 8 jobs never began or ended, so that nobody knows their length: left out",
        "j: 1 of 8 jobs ask for up to 64 GPUs, of which no gang can have more than 31 here: left out",
        "j: 1 of 8 jobs ask for more than jobs.gpus_max, 16 GPUs: left out",
        "j: 1 of 8 jobs are shorter than jobs.shortest_s, 60 s: left out",
        "j: 1 of 8 jobs are longer than jobs.longest_s, 259200 s: left out",
        "j: 1 job of 8 left",
    ]


def test_rates_that_are_made_up_are_said_with_their_number() -> None:
    found = told(file_of(), traces=[replace(replicas([1.0] * 30), filled=7)])
    assert found == ["t0: 7 of 30 rows were 0 and are filled, by a straight line between their neighbours"]


@pytest.mark.parametrize(
    ("each", "count", "says"),
    [
        (1000.0, 1800, "a request comes each 1000 s, for 20.8 days: times are seconds, are these milliseconds?"),
        (10.0, 400_000, "a request comes each 10 s, for 46.3 days: times are seconds, are these milliseconds?"),
        (1000.25, 1800, None),
        (1000.0, 50, None),
        (30.0, 1800, None),
    ],
)
def test_requests_whose_times_may_be_milliseconds_are_told_of(each: float, count: int, says: str | None) -> None:
    trace = Requests(np.arange(count, dtype=np.float64) * each, np.full(count, 100.0), np.full(count, 10.0))
    assert told(file_of(hours_max=0.5), traces=[trace]) == ([f"t0: {says}"] if says else [])


@pytest.mark.parametrize(("minutes", "warm_up_s", "scored_s"), [(9, 0.0, 540), (9, 86_400.0, 540), (11, 120.0, 540)])
def test_a_run_of_a_few_minutes_is_told_of(minutes: int, warm_up_s: float, scored_s: int) -> None:
    found = told(file_of(warm_up_s=warm_up_s), traces=[replicas([1.0] * minutes)])
    assert found == [f"only {scored_s} s are scored: one start is a large part of every figure"]


@pytest.mark.parametrize("warm_up_s", [0.0, 86_400.0])
def test_jobs_that_come_after_all_traffic_are_told_of(warm_up_s: float) -> None:
    jobs = Jobs(np.array([0.0, 1799.0, 1800.0, 1e6]), np.full(4, 600.0), np.ones(4))
    found = told(file_of(warm_up_s=warm_up_s), jobs)
    assert found == ["j: 2 of 4 jobs come after the 0.5 hours of traffic: left out", "j: 2 jobs of 4 left"]
    of = drawn(file_of(warm_up_s=warm_up_s), replicas([1.0] * 30), jobs=(jobs,))
    assert len(of.jobs) == (4 if warm_up_s else 2), "played twice they come twice"


def test_inputs_are_told_as_on_a_command_line() -> None:
    named = [Named(Path("/a/t.csv")), Named(Path("t.csv"), 0.17, 8.0), Named(Path("t.csv"), 1.0, 0.333)]
    assert [str(one) for one in named] == ["t.csv:1", "t.csv:0.17:8", "t.csv:1:0.333"]


def test_where_nothing_is_left_or_asked_for_that_is_said() -> None:
    found = told(file_of(), Jobs(np.zeros(1), np.full(1, 600.0), np.array([9.0])), traces=[replicas([0.0] * 30)])
    assert found[0] == "t0: it asks for nothing at all"
    assert found[2:] == ["j: no job is left", "there is nothing to train"]


def test_where_a_share_of_the_jobs_is_so_small_that_none_is_drawn_that_is_said() -> None:
    jobs = Jobs(np.zeros(3), np.full(3, 600.0), np.ones(3))
    inputs = Inputs(((Named(Path("t")), replicas([1.0] * 30)),), ((Named(Path("j"), 1e-6), jobs),))
    found = remarks(file_of(), inputs, scene(file_of(), inputs, 0))
    assert found == ["the first seed draws none of the 3 jobs left: there is nothing to train"]


def test_where_endpoints_and_the_reserve_leave_no_slot_no_gang_has_fewer_than_none() -> None:
    file = file_of(2, nodes=1, per_node=2)
    file = file.model_copy(update={"pool": file.pool.model_copy(update={"reserve": 1})})
    found = told(file, Jobs(np.zeros(1), np.full(1, 600.0), np.ones(1)), traces=[replicas([0.5] * 30)] * 2)
    assert found[0] == "j: 1 of 1 jobs ask for up to 1 GPUs, of which no gang can have more than 0 here: left out"


@given(st.integers(1, 3), st.integers(1, 8), st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_only_endpoints_that_cannot_stand_beside_each_other_are_refused(
    nodes: int, per_node: int, sizes: list[int]
) -> None:
    """Of sizes that divide each other exactly these; of others never some that can."""
    sizes = [min(one, per_node) for one in sizes]
    divide = all(larger % smaller == 0 for larger in sizes for smaller in sizes if smaller <= larger)
    engines = {f"m{n}": {"prefill_tok_s": 1, "decode_tok_s": 1, "gpus": n} for n in sizes}
    endpoints = [{"name": f"e{n}", "engine": f"m{size}"} for n, size in enumerate(sizes)]
    text = {"pool": {"nodes": nodes, "gpus_per_node": per_node}, "engines": engines, "endpoints": endpoints}
    try:
        SimulationFile.model_validate_json(json.dumps(text))
        refused = False
    except ValidationError:
        refused = True
    fits = packs(sorted(sizes, reverse=True), (per_node,) * nodes)
    assert not (refused and fits)
    assert refused == (not fits) or not divide


def packs(sizes: Sequence[int], free: tuple[int, ...]) -> bool:
    """Whether there is a place for each, by trying all of them."""
    if not sizes:
        return True
    return any(
        packs(sizes[1:], (*free[:at], one - sizes[0], *free[at + 1 :]))
        for at, one in enumerate(free)
        if one >= sizes[0] and one not in free[:at]
    )


def mixed(seed: int, **mix: Any) -> Scene:
    """Some hundred jobs of a day, played twice."""
    file = SimulationFile.model_validate(
        {
            "pool": {"nodes": 4, "gpus_per_node": 4},
            "endpoints": ({"name": "e"},),
            "jobs": {"gpus_max": 4, "mix": mix},
            "run": {"hours_max": 1.0},
        }
    )
    at_s = np.arange(0.0, 3600.0, 10.0, dtype=np.float64)
    trace = Jobs(at_s, np.full(len(at_s), 120.0), np.resize([1.0, 2.0, 4.0], len(at_s)))
    return drawn(file, replicas([1.0] * 60), jobs=(trace,), seed=seed)


def test_jobs_are_as_the_file_says_and_every_one_has_its_own_name() -> None:
    jobs = mixed(1, elastic=0.5, semi_preemptible=0.5, priorities={0: 0.5, 3: 0.5}).jobs
    specs = [one.spec for one in jobs if one.spec is not None]
    assert len({spec.name for spec in specs}) == len(jobs) == 720
    elastic = [spec for spec in specs if spec.workers_max > spec.workers_min]
    assert 100 < len(elastic) < 300, "those of four GPUs are as large as they may be"
    assert {spec.priority for spec in specs} == {0, 3}
    assert {spec.workload_class.value for spec in specs} == {"preemptible", "semi-preemptible"}
    assert mixed(1, elastic=0.5).jobs == mixed(1, elastic=0.5).jobs != mixed(2, elastic=0.5).jobs


def test_a_file_that_says_nothing_of_them_has_jobs_as_their_trace() -> None:
    assert all(one.spec is None and one.workers_min == one.workers_max for one in mixed(1).jobs)


@pytest.mark.parametrize(
    ("mix", "told"),
    [
        ({"elastic": 1.2}, "less than or equal to 1"),
        ({"non_preemptible": -0.1}, "greater than or equal to 0"),
        ({"elastic_times": 1.0}, "greater than 1"),
        ({"priorities": {0: 0.5, 1: 0.4}}, "0.9 together"),
        ({"priorities": {}}, "0 together"),
        ({"elastics": 0.2}, "Extra inputs"),
    ],
)
def test_shares_that_cannot_be_are_refused(mix: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        mixed(1, **mix)


def test_noise_is_as_the_file_says() -> None:
    trace = counted([3] * 600)
    kept, aggregated = (
        drawn(file_of(nodes=4, noise=noise), trace, factor=4.0).services[0].load.requests
        for noise in ("kept", "aggregated")
    )
    assert kept.sum() == pytest.approx(aggregated.sum(), rel=0.05)
    assert kept.std() > 2 * aggregated.std()
    with pytest.raises(ValueError, match="noise"):
        file_of(noise="less")


def test_requests_one_by_one_have_a_replica_that_was_tried_out_and_a_bound_at_all_its_speed() -> None:
    busy = [2.0] * 60
    fluid, singly = (drawn(file_of(requests=how), replicas(busy)) for how in ("fluid", "singly"))
    assert (fluid.singly, singly.singly) == (False, True)
    (one,), (other,) = fluid.services, singly.services
    assert other.spec.target_requests == at_full(ENGINES["llama-8b-h100"], other.load)
    assert other.spec == replace(one.spec, target_requests=other.spec.target_requests), "and else they are alike"
    np.testing.assert_array_equal(one.load.work_s, other.load.work_s)
    full = ENGINES["llama-8b-h100"].full
    np.testing.assert_allclose(serving_slots(singly), serving_slots(fluid) * full)


def test_demand_is_flat_where_partitions_have_nothing_to_lend() -> None:
    """Two services whose days are opposite: their sum hardly changes, and each partition lends half of the time."""
    day, night = [0.2] * 60 + [2.0] * 60, [2.0] * 60 + [0.2] * 60
    steady = drawn(file_of(), replicas([2.0] * 120))
    tides = drawn(file_of(2), replicas(day), replicas(night))
    needed = serving_slots(tides)
    assert needed.reshape(-1, 10).mean(axis=1).max() <= FLAT * needed.mean()
    assert is_flat(steady) and not is_flat(tides)
    assert not is_flat(drawn(file_of(), replicas(day)))
    assert is_flat(drawn(file_of(), replicas([2.0] * 5))), "less than ten minutes are one stretch each"
