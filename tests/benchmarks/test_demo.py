"""The demo's own parts: traffic, accounts, and what it calls broken."""

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest

from benchmarks.demo.__main__ import broken
from benchmarks.demo.account import account
from benchmarks.demo.client import Outcome
from benchmarks.demo.exactness import lost_steps
from benchmarks.demo.traffic import ANSWER_LIMITS, PROMPT_LIMITS, TIDE, Phase, tide
from ebbtide.pool import events as e
from ebbtide.pool.ids import EndpointName, JobName, NodeId, RecordId, SeatId, SlotId
from ebbtide.pool.spec import EndpointSpec, JobSpec, WorkloadClass
from ebbtide_train.session.step_log import StepLine

JOB, SLOT, NODE, SEAT = JobName("j"), SlotId("n:0"), NodeId("n"), SeatId("e/0")


def test_generated_traffic_is_the_same_for_the_same_seed_and_within_the_models_limits() -> None:
    first, again, other = tide(None, seed=1), tide(None, seed=1), tide(None, seed=2)
    assert first == again != other
    assert len(first) == sum(max(1, round(p.duration_s * p.rate_per_s)) for p in TIDE)
    assert all(PROMPT_LIMITS[0] <= request.prompt_tokens <= PROMPT_LIMITS[1] for request in first)
    assert all(ANSWER_LIMITS[0] <= request.answer_tokens <= ANSWER_LIMITS[1] for request in first)
    assert [request.at_s for request in first] == sorted(request.at_s for request in first)


def test_a_trace_is_replayed_in_its_own_order_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    count = 1000
    table: dict[str, list[Any]] = {
        "t_s": [i / 5 for i in range(count)],
        "in_tok": [800] * count,
        "out_tok": [100] * count,
    }
    parquet.write_table(pyarrow.table(table), tmp_path / "trace.parquet")
    found = tide(tmp_path / "trace.parquet", seed=1)
    assert {(request.prompt_tokens, request.answer_tokens) for request in found} == {(100, 20)}
    table["in_tok"][10:] = [1600] * (count - 10)
    parquet.write_table(pyarrow.table(table), tmp_path / "later.parquet")
    two = (Phase(0.0, 10.0, 0.2),)
    assert [one.prompt_tokens for one in tide(tmp_path / "later.parquet", seed=1, phases=two, first=9)] == [100, 200]
    (tmp_path / "bad.parquet").write_text("no parquet")
    with pytest.raises(ValueError, match="no trace with the columns"):
        tide(tmp_path / "bad.parquet", seed=1)
    parquet.write_table(pyarrow.table({k: v[:3] for k, v in table.items()}), tmp_path / "short.parquet")
    with pytest.raises(ValueError, match="has 3 requests"):
        tide(tmp_path / "short.parquet", seed=1)
    with pytest.raises(ValueError, match="has 3 requests, the demo needs 4"):
        tide(tmp_path / "short.parquet", seed=1, phases=two, first=2)


def _job() -> JobSpec:
    return JobSpec(
        name=JOB,
        owner="o",
        team="t",
        workload_class=WorkloadClass.PREEMPTIBLE,
        priority=0,
        workers_min=1,
        workers_max=1,
        grace_s=1,
        min_runtime_s=0,
        max_preemptions_per_h=9,
        in_place=True,
        host_bytes_per_worker=1,
    )


def _endpoint() -> EndpointSpec:
    return EndpointSpec(
        name=EndpointName("e"),
        owner="o",
        team="t",
        workload_class=WorkloadClass.NON_PREEMPTIBLE,
        priority=0,
        replicas_min=0,
        replicas_max=1,
        slots_per_replica=1,
        target_requests=1,
        ttft_slo_s=1,
        tpot_slo_s=1,
        idle_after_s=1,
        down_after_s=1,
        min_uptime_factor=1,
        drain_s=1,
    )


def test_the_account_adds_up_to_the_time_of_the_run() -> None:
    bodies: list[tuple[float, e.Body]] = [
        (0, e.NodeFound(NODE, 10)),
        (0, e.SlotFound(e.Slot(SLOT, NODE, 0))),
        (0, e.SlotFreed(SLOT)),
        (0, e.EndpointDeclared(_endpoint())),
        (0, e.JobSubmitted(_job(), "i")),
        (1, e.GrantJob(JOB, (SLOT,), "r")),
        (3, e.JobRunning(JOB, 0)),
        (10, e.ParkJob(JOB, "r")),
        (10.5, e.SlotFreed(SLOT)),
        (10.5, e.JobParked(JOB, 5)),
        (11, e.GrantSeat(SEAT, (SLOT,), "r")),
        (12, e.SeatLanded(SEAT, "x")),
        (16, e.SeatReady(SEAT, (), weights=(e.Loaded("ebbtide_flat", 2),))),
        (26, e.DrainSeat(SEAT, "r")),
        (27, e.SeatStopped(SEAT, "drained")),
        (28, e.SlotFreed(SLOT)),
        (28, e.SeatGone(SEAT)),
        (28, e.ResumeJob(JOB, "r")),
        (28.2, e.JobRunning(JOB, 5)),
    ]
    found = account([e.Event(RecordId(str(i)), t, None, b) for i, (t, b) in enumerate(bodies)], start_s=0, end_s=30)
    assert found.reclaim_s == [0.5]
    assert found.resume_in_place_s == [pytest.approx(0.2)]
    assert found.replica_start_s == [5]
    assert found.weights == {"ebbtide_flat": 2}
    assert (found.in_place, found.restart, found.replicas_peak) == (1, 0, 1)
    seconds = found.gpu_seconds()
    assert seconds["serving"] == 11  # ready at 16, told to exit at 27
    assert seconds["training"] == pytest.approx(7 + 1.8)
    assert sum(seconds.values()) == pytest.approx(30)


def _line(step: int, rank: int = 0) -> StepLine:
    return StepLine(step=step, rank=rank, world=1, loss="0x1p0", samples=(), t=float(step), step_s=0.1)


@pytest.mark.parametrize(
    ("steps", "crash_lost", "lost"),
    [([0, 1, 2], 0, 0), ([0, 2], 0, 1), ([0, 1, 1, 2], 0, 1), ([0, 1, 1, 2], 1, 0), ([], 0, 0)],
)
def test_missing_and_repeated_steps_are_lost_unless_a_crash_cost_them(
    steps: list[int], crash_lost: int, lost: int
) -> None:
    assert lost_steps([_line(step) for step in steps], crash_lost) == lost


def test_a_request_is_only_good_with_a_2xx_a_done_and_its_tokens() -> None:
    good = Outcome(0, 0.0, 200, 0.1, 0.2, 5, True)
    assert good.ok
    for change in ({"status": 429}, {"done": False}, {"tokens": 0}, {"error": "x"}):
        fields: dict[str, Any] = {f: getattr(good, f) for f in Outcome.__dataclass_fields__} | change
        assert not Outcome(**fields).ok


def test_the_demo_names_what_was_broken() -> None:
    good = {
        "requests_failed": 0,
        "lost_steps": 0,
        "double_occupancy_s": 0.0,
        "loss_bit_identical": True,
        "samples_identical": True,
        "all_slots_back": True,
        "preemptions": {"in_place": 1, "restart": 1},
        "weights": {"ebbtide": 1, "ebbtide_flat": 2},
        "parked_and_killed": {"parked_at_step": 7, "went_on_at_step": 7},
    }
    assert broken(good) == []
    for became in ({"parked_at_step": 7, "went_on_at_step": 6}, None):
        assert broken({**good, "parked_and_killed": became}) == ["parked_and_killed"]
    assert broken({**good, "lost_steps": 1}) == ["lost_steps"]
    assert broken({**good, "preemptions": {"in_place": 0, "restart": 1}}) == ["preemptions.in_place"]
    assert broken({**good, "weights": {"ebbtide": 1, "ebbtide_flat, vllm": 1}}) == ["weights"]
    assert broken({**good, "weights": {}}) == ["weights"], "nobody said how they came"
