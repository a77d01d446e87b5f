"""The live runs, and what the simulator says of each with what the first one taught it."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.demo.__main__ import SEED, text
from benchmarks.demo.account import read_events
from benchmarks.demo.traffic import tide
from benchmarks.fidelity.calibrate import at_shares, calibrated
from benchmarks.fidelity.compare import Figures, bars, beside
from benchmarks.fidelity.live import Lived, live, make_model, read
from benchmarks.fidelity.replay import Model, played, recorded
from benchmarks.fidelity.windows import CALIBRATION, REPEATED, SPAN_S, WINDOWS
from benchmarks.rows import percentile, versions
from ebbtide_simulator.model.meter import Use
from ebbtide_simulator.recorded.recording import Recording
from ebbtide_simulator.run.run import Outcome
from evidence.provenance import hardware

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "out" / "fidelity"
AGAIN = f"{REPEATED}-again"
TOLD = ("place_s", "start_s", "gang_start_s", "safe_point_s", "park_s", "resume_s", "save_s")


def measured(trace: Path, *, anew: bool = True) -> dict[str, Any]:
    """The live runs, and all figures.

    Args:
        trace: a Parquet file with the columns t_s, in_tok, out_tok.
        anew: False: the runs that are there already are judged.

    Raises:
        ValueError: the trace is none, or too short.
        RunFailed: a live run did not go to its end.
    """
    began_s = time.monotonic()
    asked = {name: tide(trace, seed=SEED, phases=one.phases, first=one.first) for name, one in WINDOWS.items()}
    asked[AGAIN] = asked[REPEATED]
    if anew:
        model = make_model(ROOT / "out" / "models" / "tiny")
        for name, requests in asked.items():
            live(OUT / name, requests, span_s=SPAN_S, model=model, text=text())
    runs = {name: read(OUT / name) for name in asked}
    found = judged(runs, {name: recorded(lived, SPAN_S) for name, lived in runs.items()})
    lived_s = 0.0 if anew else sum(map(_lasted_s, runs.values()))
    return found | {"took_s": round(time.monotonic() - began_s + lived_s, 1), "trace": trace.name}


def _lasted_s(lived: Lived) -> float:
    """From the first to the last event of its ledger."""
    events = read_events(lived.shared / "ledger")
    return events[-1].at_s - events[0].at_s


def judged(runs: Mapping[str, Lived], ledgers: Mapping[str, Recording]) -> dict[str, Any]:
    """Calibrate on the first window, play the others, put all beside what was; how far the repeated run is from itself.

    The second run of a window is played too, and not judged. Slots by use, second by second, go to ``out/`` only: they
    are for looking at.
    """
    model = calibrated(runs[CALIBRATION], ledgers[CALIBRATION])
    windows, courses = {}, {}
    for name in runs:
        outcome = played(runs[name], ledgers[name], model)
        windows[name] = beside(_was(runs[name], ledgers[name]), _says(outcome, model))
        windows[name]["requests"] = len(runs[name].outcomes)
        courses[name] = {"live": _course(ledgers[name].course), "simulated": _course(outcome.course)}
    (OUT / "courses.json").write_text(json.dumps(courses))
    once, again = (_was(runs[name], ledgers[name]) for name in (REPEATED, AGAIN))
    return {
        "name": "fidelity",
        "command": "python -m benchmarks.fidelity --trace FILE",
        "hardware": hardware(),
        "versions": versions(),
        "seeds": 1,
        "model": _told(model),
        "moves_s": {name: one.durations.told() for name, one in ledgers.items()},
        "windows": windows,
        "live_twice": {"window": REPEATED} | beside(once, again),
        "bars": bars({name: windows[name] for name in WINDOWS if name != CALIBRATION}),
    }


def _told(model: Model) -> dict[str, Any]:
    return {
        "times": {name: getattr(model.times, name) for name in TOLD},
        "engine": {name: getattr(model.engine, name) for name in ("prefill_tok_s", "decode_tok_s", "step_s")},
        "drain_s": model.drain_s,
        "front_s": model.front_s,
    }


def _was(lived: Lived, one: Recording) -> Figures:
    ttft_s = [seen.ttft_s for seen in lived.outcomes]
    preemptions = sum(job.preempted for job in one.jobs)
    return Figures(one.slot_s, preemptions, percentile(ttft_s, 0.5), percentile(ttft_s, 0.99))


def _says(outcome: Outcome, model: Model) -> Figures:
    p50_s, p99_s = at_shares(outcome.times["ttft_s"], np.array([0.5, 0.99])) + model.front_s
    preemptions = sum(one.preempted for one in outcome.training.values())
    return Figures(outcome.slot_s, preemptions, float(p50_s), float(p99_s))


def _course(course: Mapping[Use, tuple[int, ...]]) -> dict[str, list[int]]:
    return {use.value: list(counts) for use, counts in course.items() if any(counts)}
