"""What is made of a preemption's figures, and that every contender really runs and comes back with the same state."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bulk import fio
from benchmarks.bulk.fio import Ceiling
from benchmarks.preempt import __main__ as preempt
from benchmarks.preempt import contest, evictions, image, judge, steady
from benchmarks.preempt.bound import costs, upper_95
from benchmarks.preempt.contest import CRIU, EVICTION, OURS, RESTART, Contest, Series, after_kill
from benchmarks.preempt.events import Event, Story, spans
from benchmarks.preempt.room import NoRoom, available_memory_bytes, must_fit
from benchmarks.preempt.savers import DCP, DCP_ASYNC, SAVERS, TORCH
from benchmarks.preempt.state import make, plain_step, state_bytes

ROOT = Path(__file__).parents[2]
ISSUE_BARS = {
    *("evict_vs_memcpy", "restore_vs_memcpy", "free_vs_dcp_save", "free_vs_dcp_async", "resume_vs_restart"),
    "steady_cost",
}
GB = 10**9


def told(**at_s: float) -> Story:
    """A contender's story of these events."""
    return Story({Event(name): time_s for name, time_s in at_s.items()})


def contest_of(**figures: list[float]) -> Contest:
    """One round: ours 0.1 s to free and 0.2 to be back; DCP 1 s, staged after 0.3; restarts 3, 4 and 5 s."""
    series = {
        OURS: Series([told(decision=0, safe_point=1, free=1.1, durable=2.1, asked=3, running=3.2)]),
        EVICTION: Series([Story(figures={name.replace("__", ", "): values for name, values in figures.items()})]),
        RESTART: Series([told(decision=0, safe_point=1, durable=2, free=2.1, asked=3, running=7)]),
        after_kill(TORCH): Series([told(safe_point=1, durable=2, free=3, asked=4, running=7)]),
        after_kill(DCP): Series([told(safe_point=1, durable=1.9, free=2, asked=4, running=8)]),
        after_kill(DCP_ASYNC): Series([told(safe_point=1, staged=1.3, durable=2, free=2.1, asked=4, running=9)]),
    }
    return Contest(series, GB, [Ceiling(2.0, 0.1)])


def test_the_parts_promise_exactly_the_bars_of_the_issue() -> None:
    assert {bar for goals in preempt.GOALS.values() for bar in goals} == ISSUE_BARS
    assert list(preempt.GOALS) == ["0.5GB", "2GB", "6GB", "steady"]


def test_bars_are_plain_numbers_of_how_many_times_sooner() -> None:
    found = contest_of(**{"evict__share of memcpy": [0.9, 0.7, 0.85], "restore__share of memcpy": [0.79]})
    bars = {bar.bar: (bar.value, bar.met) for bar in judge.bars_of(found)}
    assert bars == {
        "evict_vs_memcpy": (0.85, True),
        "restore_vs_memcpy": (0.79, False),
        "free_vs_dcp_save": (10.0, True),
        "free_vs_dcp_async": (3.0, True),
        "resume_vs_restart": (15.0, True),
    }


@pytest.mark.parametrize("missing", [OURS, EVICTION, after_kill(DCP), after_kill(DCP_ASYNC)])
def test_what_could_not_be_measured_meets_nothing(missing: str) -> None:
    found = contest_of(**{"evict__share of memcpy": [0.9], "restore__share of memcpy": [0.9]})
    found.series[missing] = Series(failed="it died")
    bars = {bar.bar: bar for bar in judge.bars_of(found)}
    unmet = {name for name, bar in bars.items() if bar.value is None}
    expected = {
        OURS: {"free_vs_dcp_save", "free_vs_dcp_async", "resume_vs_restart"},
        EVICTION: {"evict_vs_memcpy", "restore_vs_memcpy"},
        after_kill(DCP): {"free_vs_dcp_save"},
        after_kill(DCP_ASYNC): {"free_vs_dcp_async"},
    }
    assert unmet == expected[missing] and not any(bars[name].met for name in unmet)
    gaps = [(gap.case, gap.why) for gap in judge.gaps_of(found, {CRIU: "none"})]
    assert gaps == [(missing, "it died"), (CRIU, "none")]


def test_rows_have_every_span_and_the_share_of_the_storage() -> None:
    rows = {(one.case, one.metric): one.median for one in judge.rows_of(contest_of())}
    assert rows[OURS, "decision to slot free"] == 1.1
    assert rows[OURS, "slot free to durable"] == 1.0
    assert rows[OURS, "written, to the storage's ceiling"] == 0.5
    assert (RESTART, "slot free to durable") not in rows, "it was durable before it went"
    assert rows[after_kill(DCP_ASYNC), "safe point to staged"] == pytest.approx(0.3)


def test_rows_have_every_figure_that_eviction_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its share of memcpy into fresh pages is what excuses a restore that is slower than memcpy."""
    told: dict[str, list[float]] = {}
    monkeypatch.setattr(evictions, "figure", lambda name, value: told.setdefault(name, []).append(value))
    evictions.measure(tmp_path, 2_000_000)
    found = contest_of()
    found.series[EVICTION] = Series([Story(figures=told)])
    rows = {one.metric: (one.n, one.unit) for one in judge.rows_of(found) if one.case == EVICTION}
    assert rows.keys() == told.keys()
    assert rows["memcpy into fresh pages, GB/s"] == (evictions.CYCLES, "GB/s")
    assert rows["restore, share of memcpy into fresh pages"] == (evictions.CYCLES, "ratio")


def test_a_story_takes_the_first_of_an_event_and_passes_over_what_others_print() -> None:
    lines = ["W1122 something", '{"event": "free", "at_s": 2}', '{"event": "free", "at_s": 9}', "{}"]
    lines += ['{"event": "loss", "at_s": 3, "value": "0x1p0"}']
    lines += ['{"event": "figure", "at_s": 1, "name": "a", "value": 7}']
    story = Story.of(lines)
    assert (story.at_s[Event.FREE], story.loss, story.figures) == (2.0, "0x1p0", {"a": [7.0]})
    assert spans(story) == {}


def test_the_bound_is_that_of_students_t() -> None:
    """Ten values of mean 0 and deviation 1: 1.833 / sqrt(10)."""
    ten = [-1.0, 1.0] * 5
    assert upper_95(ten) == pytest.approx(1.833 * math.sqrt(10 / 9) / math.sqrt(10), rel=1e-3)
    assert costs([(202.0, 200.0)]) == [0.01]


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=80), st.floats(0, 1))
def test_the_bound_lies_above_the_mean_and_moves_with_it(values: list[float], by: float) -> None:
    assert upper_95(values) >= mean(values)
    assert upper_95([value + by for value in values]) == pytest.approx(upper_95(values) + by, abs=1e-9)


@pytest.mark.parametrize(("memory_gb", "disk_gb", "what"), [(3, 90, "memory"), (90, 3, "disk")])
def test_a_part_that_does_not_fit_is_refused_with_numbers(
    tmp_path: Path, memory_gb: int, disk_gb: int, what: str
) -> None:
    with pytest.raises(NoRoom, match=f"2.0 GB of state need .* GB of {what}.*, 3.0 are free.*--only"):
        must_fit(2 * GB, tmp_path, memory_bytes=memory_gb * GB, disk_bytes=disk_gb * GB)
    must_fit(2 * GB, tmp_path, memory_bytes=90 * GB, disk_bytes=90 * GB)
    assert available_memory_bytes() > 0


@pytest.mark.parametrize("size_bytes", [1_000_000, 20_000_000, 100_000_000])
def test_the_state_has_the_size_that_was_asked_for(size_bytes: int) -> None:
    model, optimizer = make(size_bytes)
    first = plain_step(model, optimizer, 0)
    assert state_bytes(model, optimizer) == pytest.approx(size_bytes, rel=0.05)
    again, its_optimizer = make(size_bytes)
    assert plain_step(again, its_optimizer, 0) == first


def test_there_may_be_no_criu(tmp_path: Path) -> None:
    found, why = image.find({"PATH": "/nowhere"}, tmp_path)
    assert found is None and "EBBTIDE_CRIU" in why
    broken = tmp_path / "criu"
    broken.write_text("#!/bin/sh\necho it cannot\nexit 3\n")
    broken.chmod(0o700)
    assert image.find({"EBBTIDE_CRIU": str(broken)}, tmp_path) == (None, "`criu check` failed: it cannot")


@pytest.mark.timeout(120)
def test_a_job_that_was_parked_gives_the_loss_of_one_that_was_not(tmp_path: Path) -> None:
    """The short form of the whole: two processes of many."""
    everyone = contest.contenders(2_000_000, None)
    story = everyone[OURS](tmp_path)
    model, optimizer = make(2_000_000)
    assert story.loss == [plain_step(model, optimizer, number) for number in range(3)][-1]
    assert set(spans(story)) >= {"decision to slot free", "safe point to slot free", "slot free to durable", "resume"}


@pytest.mark.parametrize("told", ["", "0x1.8p+1"])
def test_who_tells_no_loss_or_another_one_is_out(told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def contenders(size_bytes: int, criu: Path | None) -> dict[str, contest.Contender]:
        return {name: lambda folder: Story(loss=told) for name in (RESTART, EVICTION)}

    monkeypatch.setattr(contest, "contenders", contenders)
    monkeypatch.setattr(contest, "_alone", lambda role, size_bytes, folder: Story(loss="0x1p0"))
    monkeypatch.setattr(fio, "missing", lambda: "no fio")
    found = contest.run(tmp_path, 1000, 1, None)
    assert f"the loss after it came back is {told or 'not told'}" in found.series[RESTART].failed
    assert not found.series[EVICTION].failed, "it takes no step after"


@pytest.mark.hunt
@pytest.mark.timeout(600)
def test_a_quick_run_measures_everything_and_claims_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.preempt", "--quick", "--gently", "--dir", str(tmp_path / "scratch")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    found = json.loads((tmp_path / "out" / "preempt.json").read_text())
    failed = [line for line in done.stderr.splitlines() if line.startswith("failed:")]
    assert [line for line in failed if CRIU not in line and "fio" not in line] == [], done.stdout + done.stderr
    assert {bar["bar"] for bar in found["bars"]} == ISSUE_BARS
    cases = {one["case"] for one in found["rows"] if one["n"]}
    assert {OURS, RESTART, EVICTION, steady.SESSION, steady.PLAIN, *map(after_kill, SAVERS)} <= cases
    assert not list((tmp_path / "scratch").iterdir()), "what a part leaves is removed"
