"""``python -m benchmarks.demo [--trace FILE]``: one tide, its proof, its report; exit 1 if a promise was broken."""

import argparse
import inspect
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.demo import account as accounts
from benchmarks.demo.bulk import read_back
from benchmarks.demo.client import as_json
from benchmarks.demo.exactness import Exactness, losses, prove
from benchmarks.demo.report import write_report
from benchmarks.demo.tide import Tide, run_tide
from benchmarks.demo.traffic import tide as make_tide
from benchmarks.pool_run import RunFailed
from ebbtide.agent.slot_locks.allocation_log import double_occupancy_s, read_occupancies
from ebbtide.config.loading.pool_file_loader import load
from ebbtide.config.pool_file import PoolFile
from ebbtide_train.session.step_log import step_lines

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "out" / "demo"
CONFIG = ROOT / "configs" / "demo.yaml"
SEED = 20261121
SLOW = (
    "no preemption ended in place: the small wave's replica was needed for longer than a restart costs "
    "(policy.restart_cost_s, {cost_s:.0f} s). A machine with other work on it starts replicas that late: "
    "run the demo alone."
)


def main() -> int:
    """Run the demo; gives the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.demo", description=inspect.getdoc(sys.modules[__name__])
    )
    parser.add_argument("--trace", type=Path, help="Parquet file with t_s, in_tok, out_tok; default: generated traffic")
    options = parser.parse_args()
    started_s = time.monotonic()
    try:
        requests = make_tide(options.trace, seed=SEED)
    except ValueError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    os.environ["EBBTIDE_HOME"] = str(OUT / "home")
    _make_model()
    config = load(CONFIG)
    job = config.jobs[0]
    try:
        tide = run_tide(CONFIG, job=job.name, model=config.endpoints[0].name, requests=requests, text=text())
        shared = Path(str(config.pool.shared_dir))
        found = accounts.account(accounts.read_events(shared / "ledger"), start_s=tide.trained_from_s, end_s=tide.end_s)
        stored = read_back(shared, job.name)
        proof = prove(shared / "train" / job.name, job, OUT / "control", crash_lost_steps=found.crash_lost_steps)
    except (RunFailed, subprocess.TimeoutExpired) as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    summary = summarize(config, tide, found, proof) | {"stored": stored}
    summary["demo_s"] = round(time.monotonic() - started_s, 1)
    summary["trace"] = options.trace.name if options.trace else "generated"
    (OUT / "summary.json").write_text(json.dumps(summary, indent=2))
    (OUT / "requests.json").write_text(json.dumps(as_json(tide.outcomes)))
    lines = step_lines(shared / "train" / job.name)
    write_report(
        OUT / "report.html",
        summary=summary,
        account=found,
        outcomes=tide.outcomes,
        losses=losses(lines),
        loss_times={line.step: line.t for line in lines if line.rank == 0},
        origin_s=tide.trained_from_s,
    )
    wrong = broken(summary)
    _print(summary, wrong)
    if "preemptions.in_place" in wrong:
        print(SLOW.format(cost_s=config.policy.restart_cost_s))
    return 1 if wrong else 0


def _make_model() -> None:
    target = ROOT / "out" / "models" / "tiny"
    subprocess.run([sys.executable, "-m", "ebbtide_serve.examples.tiny_model", str(target)], check=True)


def text() -> str:
    """Real text for the prompts: the standard library's own sources."""
    return "\n".join(inspect.getsource(module) for module in (argparse, inspect, shutil, subprocess, textwrap, json))


def summarize(config: PoolFile, tide: Tide, found: accounts.Account, proof: Exactness) -> dict[str, Any]:
    """The figures of one run."""
    outcomes = [*filter(None, [tide.first]), *tide.outcomes]
    ttft_s = [outcome.ttft_s for outcome in tide.outcomes if outcome.ok]
    first, later = found.replica_start_s[:1], found.replica_start_s[1:]
    held_max_s = max((outcome.ttft_s for outcome in tide.outcomes), default=0.0)
    shared = Path(str(config.pool.shared_dir))
    return {
        "requests_total": len(outcomes),
        "requests_failed": sum(not outcome.ok for outcome in outcomes),
        "held_max_s": round(held_max_s, 3),
        "ttft_s": {"p50": accounts.percentile(ttft_s, 0.5), "p99": accounts.percentile(ttft_s, 0.99)},
        "replicas_peak": found.replicas_peak,
        "preemptions": {"in_place": found.in_place, "restart": found.restart},
        "steps": proof.steps,
        "lost_steps": proof.lost_steps,
        "crash_lost_steps": found.crash_lost_steps,
        "loss_bit_identical": proof.losses_identical,
        "samples_identical": proof.samples_identical,
        "first_difference": proof.first_difference,
        "workers": [[segment.first_step, segment.last_step, segment.world] for segment in proof.segments],
        "reclaim_s": {
            "p50": accounts.percentile(found.reclaim_s, 0.5),
            "max": accounts.percentile(found.reclaim_s, 1.0),
        },
        "resume_s": {
            "in_place_p50": accounts.percentile(found.resume_in_place_s, 0.5),
            "restart_p50": accounts.percentile(found.resume_restart_s, 0.5),
        },
        "replica_start_s": {"first": accounts.percentile(first, 0.5), "later_p50": accounts.percentile(later, 0.5)},
        "weights": dict(found.weights),
        "gpu_seconds": found.gpu_seconds(),
        "double_occupancy_s": round(double_occupancy_s(read_occupancies(shared / "occupancy")), 3),
        "all_slots_back": tide.all_slots_back,
        "parked_and_killed": tide.parked.as_json() if tide.parked else None,
    }


def broken(summary: dict[str, Any]) -> list[str]:
    """What the demo promises and this run did not keep."""
    zero = [name for name in ("requests_failed", "lost_steps", "double_occupancy_s") if summary[name]]
    true = [name for name in ("loss_bit_identical", "samples_identical", "all_slots_back") if not summary[name]]
    none = [f"preemptions.{kind}" for kind, count in summary["preemptions"].items() if not count]
    ways = list(summary["weights"])
    past_the_store = ["weights"] if not ways or any("vllm" in way for way in ways) else []
    parked = summary["parked_and_killed"]
    lost = ["parked_and_killed"] if not parked or parked["went_on_at_step"] != parked["parked_at_step"] else []
    return [*zero, *true, *none, *past_the_store, *lost]


def _print(summary: dict[str, Any], wrong: list[str]) -> None:
    table = Table(title="one tide", title_justify="left", box=None, header_style="bold")
    table.add_column("figure")
    table.add_column("value")
    for name, value in summary.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
        table.add_row(name, text, style="bold red" if name in wrong else None)
    console = Console()
    console.print(table)
    console.print(f"report: {OUT.relative_to(ROOT)}/report.html   figures: {OUT.relative_to(ROOT)}/summary.json")
    if wrong:
        console.print(f"broken: {', '.join(wrong)}", style="bold red")


if __name__ == "__main__":
    sys.exit(main())
