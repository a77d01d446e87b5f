"""From events, samples and phases to figures, bars and the result."""

from pathlib import Path
from typing import Any

from benchmarks.gpu.line.journal import State, Told
from benchmarks.gpu.line.moves import Aside, asides, starts, stops
from benchmarks.gpu.line.outcome import bars_of, document, rows_of, table
from benchmarks.gpu.line.setting import STATE_2_GB, STATE_20_GB, Setting, host_bytes, state_bytes
from ebbtide.config.loading.pool_file_loader import load
from ebbtide.pool.events import (
    Event,
    GrantSeat,
    JobParked,
    JobRunning,
    Loaded,
    ParkJob,
    ResumeJob,
    SeatReady,
    WakeSeat,
)
from ebbtide.pool.ids import JobName, RecordId, SeatId, SlotId

LM, CHAT = JobName("lm"), SeatId("chat/0")


def events(*told: tuple[float, Any]) -> list[Event]:
    return [Event(RecordId(f"1.{number}"), at_s, None, body) for number, (at_s, body) in enumerate(told)]


def test_a_job_that_stepped_aside_and_came_back_has_its_times() -> None:
    found = asides(
        events(
            (10.0, JobRunning(LM, 0)),
            (20.0, ParkJob(LM, "a surge")),
            (20.7, JobParked(LM, 5)),
            (40.0, ResumeJob(LM, "it ebbs")),
            (40.5, JobRunning(LM, 5)),
            (60.0, ParkJob(LM, "again")),
        ),
        [
            {"at_s": 19.0, "gpu_mb": 9000.0},
            {"at_s": 20.4, "gpu_mb": 3000.0},
            {"at_s": 20.9, "gpu_mb": 530.0},
            {"at_s": 25.0, "gpu_mb": 8000.0},
        ],
        idle_mb=500.0,
    )
    assert found == [Aside("lm", 0.7, 0.9, 530.0, 0.5), Aside("lm", None, None, None, None)]


def test_memory_that_never_falls_is_not_called_free() -> None:
    told = events((0.0, ParkJob(LM, "")), (1.0, JobParked(LM, 1)), (2.0, ResumeJob(LM, "")), (3.0, JobRunning(LM, 1)))
    assert asides(told, [{"at_s": 0.5, "gpu_mb": 900.0}], idle_mb=500.0)[0].free_s is None
    assert asides(told, [{"at_s": 0.5, "gpu_mb": 900.0}], idle_mb=500.0)[0].least_mb == 900.0
    assert asides(told, [], idle_mb=None)[0].free_s is None


def test_the_moment_after_the_replica_left_is_not_when_the_job_freed_the_memory() -> None:
    told = events(
        (0.0, ParkJob(LM, "")),
        (1.0, JobParked(LM, 1)),
        (10.0, SeatReady(CHAT, ())),
        (30.0, ResumeJob(LM, "")),
        (31.0, JobRunning(LM, 1)),
    )
    samples = [{"at_s": 0.5, "gpu_mb": 900.0}, {"at_s": 29.0, "gpu_mb": 500.0}]
    assert asides(told, samples, idle_mb=500.0)[0].free_s is None


def test_stops_are_those_of_one_job() -> None:
    told = events((0.0, JobParked(LM, 5)), (1.0, JobParked(JobName("large"), 7)), (2.0, JobParked(LM, 9)))
    assert stops(told, "lm") == [5, 9]


def test_starts_and_wakes_have_their_stages() -> None:
    ready = SeatReady(CHAT, (("weights", 1.25),), weights=(Loaded("ebbtide_flat", 1, 100, 0.5, ""),))
    found = starts(
        events((1.0, GrantSeat(CHAT, (SlotId("n:0"),), "")), (9.5, ready), (20.0, WakeSeat(CHAT, "")), (20.8, ready))
    )
    assert [(one.woken, one.took_s, dict(one.stages_s), one.weights) for one in found] == [
        (False, 8.5, {"weights": 1.25}, "ebbtide_flat"),
        (True, 0.8, {"weights": 1.25}, "ebbtide_flat"),
    ]


def phases(**figures: dict[str, Any]) -> dict[str, Told]:
    return {name.replace("_", " "): Told(name, State.DONE, 2.0, values) for name, values in figures.items()}


GOOD = phases(
    machine={"gpu": "NVIDIA H200", "driver": "580", "cpus": 16, "ram_bytes": 1 << 37, "kernel": "6.1"},
    burst={"resume_s": 0.4, "start_stages_s": {"weights": 0.5}, "weights_by": "ebbtide_flat"},
    large_job={"gpu_free_s": 2.3, "step_s": 0.5, "resume_s": 1.1},
    warm={"wake_s": 0.8},
    control={"losses_equal": True, "samples_equal": True, "stops_compared": 2},
)


def test_bars_are_met_by_what_they_ask_for() -> None:
    assert {bar.bar: (bar.value, bar.met) for bar in bars_of(GOOD, dry=False)} == {
        "gpu_free_s": (1.8, True),
        "gpu_resume_s": (1.1, True),
        "gpu_wake_s": (0.8, True),
        "gpu_loss_bit_equal": (1.0, True),
    }


def test_what_was_not_measured_is_not_met() -> None:
    assert all(bar.value is None and not bar.met for bar in bars_of({}, dry=False))
    dry = {bar.bar: bar.met for bar in bars_of(GOOD, dry=True)}
    assert dry == {"gpu_free_s": False, "gpu_resume_s": False, "gpu_wake_s": False, "gpu_loss_bit_equal": True}
    for equal, covers, value in ((False, True, 0.0), (False, False, 0.0), (True, False, None)):
        figures = {"losses_equal": True, "samples_equal": equal, "stops_compared": int(covers)}
        last = bars_of(GOOD | phases(control=figures), dry=False)[-1]
        assert (last.value, last.met) == (value, False)


def test_the_result_has_every_figure_and_the_machine() -> None:
    found = document(GOOD, [{"at_s": 1.0, "gpu_mb": 5.0}], {"gds": ["compat"]}, dry=False, took_s=99.0, cut_off=False)
    assert found["name"] == "gpu_line"
    assert found["hardware"] == "NVIDIA H200, driver 580; 16 CPU cores, 128 GiB, Linux 6.1"
    assert found["modes"] == {"gds": ["compat"]} and found["gpu_memory"]
    rows = {(one.case, one.metric): (one.median, one.unit) for one in rows_of(GOOD)}
    assert rows["burst", "start_stage: weights"] == (0.5, "s")
    assert rows["control", "losses_equal"] == (1.0, "ratio")
    assert rows["large job", "took"] == (2.0, "s")


def test_the_table_has_a_line_for_each_phase() -> None:
    failed = GOOD | {"spill": Told("spill", State.FAILED, 1.0, {}, "it died")}
    assert table(failed).row_count == len(failed)


def test_without_room_in_shm_or_on_disk_the_large_job_is_left_out(tmp_path: Path) -> None:
    roomy, tight, full = (
        Setting(tmp_path, False, host_bytes=host_bytes(shm << 30, 128 << 30), disk_bytes=disk << 30)
        for shm, disk in ((64, 60), (16, 60), (64, 40))
    )
    assert [job["name"] for job in roomy.pool_file()["jobs"]] == ["lm", "large"]
    for setting in (tight, full):
        assert [job["name"] for job in setting.pool_file()["jobs"]] == ["lm"]
    for setting in (roomy, tight, Setting(tmp_path, True)):
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / "config.json").write_text("{}")
        assert load(setting.write_pool_file()).pool.host_memory_per_node == setting.host_bytes


def test_the_sizes_are_what_their_names_say() -> None:
    assert abs(state_bytes(STATE_2_GB) - 2e9) < 0.1e9
    assert abs(state_bytes(STATE_20_GB) - 20e9) < 0.5e9
