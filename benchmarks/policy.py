"""``make bench-policy TRACES=folder``: our policy against what teams do instead, on recorded traffic and jobs.

The traces are not of this project; docs/simulate.md says where they come from. Each part is a pool and what is asked of
it; its figures and its page go to ``benchmarks/results/policy/``, its bars into ``benchmarks/results/policy.json``.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import acme, decide_growth
from benchmarks.rows import versions
from ebbtide_simulator.play import play
from ebbtide_simulator.policies.contenders import CONTENDERS, LYRA, ORACLE, OURS, STATIC
from ebbtide_simulator.report.tables import goal_of
from ebbtide_simulator.scenes.given import load_inputs
from evidence.again import in_turn
from evidence.provenance import RESULTS
from evidence.result_file import load, write
from evidence.results import cases_of
from evidence.stamps import KEY, Begun, stamps_of, with_stamps

CONFIGS = Path("configs")
FEW = (OURS, ORACLE, STATIC, LYRA)  # of a quick run
QUICK_HOURS = 48.0
SEEDS = 5
DOUBLE = "double_allocated_gpu_s"
WEEK_S: Mapping[int, float] = {64: 15.0, 512: 20.0, 8192: 50.0}  # of CPU, for a policy and seed: a person waits for it

Traced = tuple[str, float, float]


@dataclass(frozen=True, slots=True)
class Part:
    """One pool, and what is asked of it: files with their factors and first days."""

    slots: int
    serving: Sequence[Traced]
    jobs: Sequence[Traced]
    hours: float | None = None  # of the traffic; None: all of it
    noise: str = "kept"  # of what is multiplied: see the file's run.noise
    requests: str = "fluid"  # or "singly": its run.requests
    acme_gpus: float = 0.0  # jobs that keep so many GPUs busy, drawn as Acme's were


AZURE, MIDDLE, SMALL, REASONING = (
    "azure2024_conv_week.parquet",
    "servegen_mmid_week1_total.parquet",
    "servegen_msmall_week1_total.parquet",
    "servegen_r1_day_total.parquet",
)
CONVERSATIONS, PHILLY, ACME = "azure_conv_2023.parquet", "philly.parquet", "acme_cdfs.parquet"
DRAWN_DAYS = 8.0  # as long as a week with a day before it
# GPUs that the highest ten minutes of a trace need, unscaled, with the engines and tokens of the configurations: its
# work (`draws.load`) by `Engine.full` and the GPUs of a replica, in fractions. By seed that of AZURE is 79 to 87.
HIGHEST = {MIDDLE: 101.7, SMALL: 29.9, AZURE: 82.2, REASONING: 12.7}
HIGHEST_OF_HOUR = {1: 0.838, 4: 7.21}  # of the hour of conversations, by the GPUs of a replica
PEAK = 0.75  # of the pool: what all services would need at most, if they were highest at once
ZIPF = (1.0, 1 / 2, 1 / 3)  # of services of one kind, eight hours apart


def _bursts(slots: int, shares: Sequence[tuple[int, float]]) -> Sequence[Traced]:
    """The hour of conversations for services, all at once: GPUs of a replica, and its share of what all need."""
    return [(CONVERSATIONS, PEAK * slots * share / HIGHEST_OF_HOUR[gpus], 0.0) for gpus, share in shares]


# The first hours of eight nights at once, which fill the pool.
LARGE_BURST = Part(
    512,
    _bursts(512, [(1, 1 / 3), (1, 1 / 3), (4, 1 / 3)]),
    [(PHILLY, 1.0, float(day)) for day in range(9, 17)],
)
# Six of Philly's weeks, and twice the Acme jobs of the 8,192 week: within an hour they fill half the pool.
LARGEST_BURST = Part(
    8192,
    _bursts(8192, [(gpus, share / sum(ZIPF) / 4) for share in ZIPF for gpus in (1, 1, 4, 1)]),
    [(PHILLY, 1.0, 7.0 * week) for week in range(6)],
    acme_gpus=6880.0,
)

DECIDE = "decide"  # what decisions and ticks cost as a pool grows: no trace, no contenders
FIDELITY = "fidelity"  # the simulator against live runs on this machine's CPU: some 27 minutes
OTHERS = (DECIDE, FIDELITY)
PARTS: Mapping[str, Part] = {
    # 5.4: the highest ten minutes need 50 to 56 of the 64 GPUs, by seed, and the mean 30. 0.17: jobs ask for 43.
    "64-week": Part(64, [(AZURE, 5.4, 0.0)], [(PHILLY, 0.17, 8.0)]),
    # The same as of many crowds that know nothing of each other: a rate times k keeps the noise of one.
    "64-week-aggregated": Part(64, [(AZURE, 5.4, 0.0)], [(PHILLY, 0.17, 8.0)], noise="aggregated"),
    # 57.0: PEAK * 64 / HIGHEST_OF_HOUR[1], so the highest ten minutes need 48 of the 64 GPUs.
    # Of one night's first hour all jobs, which fill the pool: of a sixth of them none would come within the hour.
    "64-burst": Part(64, [(CONVERSATIONS, 57.0, 0.0)], [(PHILLY, 1.0, 9.0)]),
    "64-burst-aggregated": Part(64, [(CONVERSATIONS, 57.0, 0.0)], [(PHILLY, 1.0, 9.0)], noise="aggregated"),
    # Requests one by one: the hour twice, and a day of the week, whose day before warms up.
    "64-burst-singly": Part(64, [(CONVERSATIONS, 57.0, 0.0)], [(PHILLY, 1.0, 9.0)], requests="singly"),
    "64-day-singly": Part(64, [(AZURE, 5.4, 2.0)], [(PHILLY, 0.17, 10.0)], 48.0, requests="singly"),
    # 0.0141: the highest ten minutes need 48 of the 64 GPUs, and the mean 45.
    "64-flat": Part(64, [("alibaba_dlrm2025_gpu_instances.parquet", 0.0141, 0.0)], [(PHILLY, 0.17, 8.0)], 168.0),
    # Each has a third of what serving may need: PEAK * 512 / 3 / HIGHEST[name]. 0.67: jobs ask for 364 of the 512 GPUs.
    "512-week": Part(
        512,
        [(MIDDLE, 1.26, 0.0), (SMALL, 4.28, 0.0), (AZURE, 1.56, 0.0)],
        [(PHILLY, 0.67, 8.0), (PHILLY, 0.67, 15.0)],
    ),
    "512-burst": LARGE_BURST,
    "512-burst-aggregated": replace(LARGE_BURST, noise="aggregated"),
    "512-burst-singly": replace(LARGE_BURST, requests="singly"),
    "8192-week": Part(
        8192,
        [
            (name, PEAK * 8192 / len(HIGHEST) / sum(ZIPF) * share / highest, day / 3)
            for day, share in enumerate(ZIPF)
            for name, highest in HIGHEST.items()
        ],
        # They ask for 2,490 GPUs, 42 % of what all jobs ask for; Acme's for the other 58 %.
        [(PHILLY, 1.0, 7.0 * week) for week in range(6)] + [(PHILLY, 1.0, 7.0 * week + 3.0) for week in range(3)],
        acme_gpus=3440.0,
    ),
    "8192-burst": LARGEST_BURST,
    "8192-burst-aggregated": replace(LARGEST_BURST, noise="aggregated"),
}


def measured(
    part: Part,
    traces: Path,
    names: Sequence[str],
    *,
    seeds: int,
    hours: float | None,
    frontier: bool = False,
    keep: Path | None = None,
) -> tuple[dict[str, Any], str]:
    """The figures of one part, and its page; ``keep``: see `play`."""
    jobs = [(traces / name, factor, day) for name, factor, day in part.jobs]
    if part.acme_gpus:
        drawn = acme.written(traces / ACME, Path("out"), gpus=part.acme_gpus, days=DRAWN_DAYS, seed=0)
        jobs.append((drawn, 1.0, 0.0))
    serving = [(traces / name, factor, day) for name, factor, day in part.serving]
    file, inputs = load_inputs(CONFIGS / f"simulate_{part.slots}.yaml", serving, jobs)
    run = file.run.model_copy(update={"hours_max": hours, "noise": part.noise, "requests": part.requests})
    file = file.model_copy(update={"run": run})
    report, figures = play(
        file, inputs, list(names), seeds, os.cpu_count() or 1, frontier=frontier, keep=keep, tell=print
    )
    return figures, report.as_page()


def merged(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """All parts: their figures, inputs and bars, each bar named after its part, since an id names the pool only."""
    bars = [
        {"bar": name if part.endswith("-week") or part in OTHERS else f"{name}:{part}", **bar}
        for part, figures in parts.items()
        for name, bar in figures["bars"].items()
        if name != DOUBLE
    ]
    doubles = [figures["bars"][DOUBLE]["value"] for figures in parts.values() if DOUBLE in figures["bars"]]
    if doubles:  # one promise for all of them
        bars.append({"bar": DOUBLE, "value": max(doubles), "at_most": 0.0, "met": max(doubles) <= 0.0})
    weeks = {figures["inputs"]["slots"]: figures for part, figures in parts.items() if part.endswith("-week")}
    for slots, one in weeks.items():
        took_s, goal_s = one["run_s"][OURS] * _weeks(one), WEEK_S[slots]
        bars.append({"bar": f"sim_week_{slots}_s", "value": took_s, "at_most": goal_s, "met": took_s <= goal_s})
    return {
        "name": "policy",
        "command": "make bench-policy TRACES=folder",
        "hardware": f"{os.cpu_count()} CPU cores ({platform.machine()}), no GPU",
        "versions": versions(),
        "parts": {
            part: {
                "seeds": one["seeds"],
                "took_s": round(one["took_s"]),
                "date": one["date"],
                **(
                    {"hours": round(one["inputs"]["hours"], 1), "policies": len(one["policies"])}
                    if one.get("inputs")
                    else {}
                ),
            }
            for part, one in parts.items()
        },
        "policies": {part: one["policies"] for part, one in parts.items() if one.get("inputs")},
        "inputs": {part: one["inputs"] for part, one in parts.items() if one.get("inputs")},
        "seeds": {part: one["seeds"] for part, one in parts.items()},
        "bars": bars,
        "impossible": [f"{part}: {one}" for part, figures in parts.items() for one in figures.get("impossible", ())],
    }


def _weeks(one: Mapping[str, Any]) -> float:
    """By how much a run of these hours is shorter than a week: at the same pace a week takes so much longer."""
    return max(1.0, 168.0 / float(one["inputs"]["hours"]))


def main() -> None:
    """Measure the parts that are asked for; the others keep what they have.

    Raises:
        SystemExit: somebody beat the bound, or foresight: then the simulator is wrong, and so are its figures.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, required=True, help="the folder with the traces")
    parser.add_argument("--only", choices=sorted([*PARTS, *OTHERS]), action="append", help="only these parts")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--quick", action="store_true", help="one seed, two days, four policies; written to out/")
    parser.add_argument("--hours", type=float, help="of traffic, where a whole week takes too long")
    parser.add_argument("--few", action="store_true", help=f"only {', '.join(FEW)}")
    parser.add_argument("--frontier", action="store_true", help="other settings of each policy too, on the first seed")
    parser.add_argument(
        "--keep", type=Path, default=Path("out/runs"), help="finished runs stay there for the next time"
    )
    parser.add_argument("--minutes", type=float, help="only parts that are missing or stale, as long as there is time")
    parser.add_argument("--merge", action="store_true", help="measure nothing: put together the parts that are there")
    options = parser.parse_args()
    impossible = []
    folder = (Path("out") if options.quick else RESULTS) / "policy"
    folder.mkdir(parents=True, exist_ok=True)
    options.keep.mkdir(parents=True, exist_ok=True)
    if options.merge:
        _merge(folder)
        return
    chosen = options.only or [*PARTS, DECIDE, *(() if options.quick else (FIDELITY,))]
    processes = {case.name: case.processes for case in cases_of("policy")}
    until_s = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    # Finished runs are kept, so a part that is broken off goes on where it was.
    for name in in_turn("policy", load("policy", folder.parent), chosen, options.minutes, halves=True):
        begun = Begun.now(processes[name])
        if name == DECIDE:
            figures, page = decide_growth.figures(rounds=1 if options.quick else decide_growth.ROUNDS), ""
        elif name == FIDELITY:
            figures, page = _against_live(options.traces / CONVERSATIONS), ""
        else:
            with broken_off_at(until_s):
                figures, page = measured(
                    PARTS[name],
                    options.traces,
                    FEW if options.quick or options.few else list(CONTENDERS),
                    seeds=1 if options.quick else options.seeds,
                    hours=QUICK_HOURS if options.quick else options.hours or PARTS[name].hours,
                    frontier=options.frontier,
                    keep=options.keep,
                )
            impossible += [f"{name}: {one}" for one in figures.get("impossible", ())]
        figures["date"] = time.strftime("%Y-%m-%d")
        figures["stamp"] = begun.ended().as_json()
        write(figures, folder / f"{name}.json")
        if page:
            (folder / f"{name}.html").write_text(page)
        print(f"{name}: {figures['took_s']:.0f} s", *map(_line, figures["bars"].items()), sep="\n  ", flush=True)
        _merge(folder)
    if impossible:
        raise SystemExit("the simulator contradicts itself:\n" + "\n".join(impossible))


def _against_live(trace: Path) -> dict[str, Any]:
    """In a process of its own: who only simulates needs neither Ray nor torch."""
    subprocess.run([sys.executable, "-m", "benchmarks.fidelity", "--trace", str(trace)], check=True)
    found: dict[str, Any] = json.loads((RESULTS / "policy" / f"{FIDELITY}.json").read_text())
    return found


@contextmanager
def broken_off_at(until_s: float | None) -> Iterator[None]:
    """At ``until_s`` of the monotonic clock what runs is broken off as by Ctrl-C, and the command ends with code 0."""
    if until_s is None:
        yield
        return
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, until_s - time.monotonic()))
    try:
        yield
    except KeyboardInterrupt:
        if time.monotonic() < until_s:
            raise
        sys.exit(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _merge(folder: Path) -> None:
    """Have all parts of a folder in one file beside it."""
    known = {one: folder / f"{one}.json" for one in [*PARTS, *OTHERS]}
    parts = {one: json.loads(path.read_text()) for one, path in known.items() if path.exists()}
    stamps = stamps_of({KEY: {part: one["stamp"] for part, one in parts.items() if "stamp" in one}})
    document = with_stamps(merged(parts), stamps)
    write(document, folder.parent / "policy.json")


def _line(bar: tuple[str, Mapping[str, Any]]) -> str:
    name, found = bar
    goal = goal_of(found)
    if found["value"] is None:
        return f"missed {name}: no value, {goal}: {found['why']}"
    return f"{'met   ' if found['met'] else 'missed'} {name}: {found['value']:.4g}, {goal}"


if __name__ == "__main__":
    main()
