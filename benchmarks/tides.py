"""Reclaim, resume and replica start over many small tides, stage by stage. ``python -m benchmarks.tides [--quick]``.

A job trains on three logical slots; one request comes; the gang parks in place, a replica starts on one slot and
answers; it drains when it is idle, and the gang goes on. All times come from the ledger's events, which are stamped
when the arbiter sees the effect, so its tick and the reports' pace are in them.
"""

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.demo.account import read_events
from benchmarks.demo.client import send_all
from benchmarks.demo.traffic import Request
from benchmarks.pool_run import RunFailed, all_training, ebbtide, job_of, running_pool, step_of, wait
from benchmarks.rows import Bar, Row, result, row, write
from ebbtide.agent.slot_locks.allocation_log import double_occupancy_s, read_occupancies
from ebbtide.pool.events import (
    DrainSeat,
    Event,
    GrantSeat,
    JobParked,
    JobRunning,
    ParkJob,
    ResumeJob,
    SeatGone,
    SeatLanded,
    SeatReady,
    SlotFreed,
)
from ebbtide_train.session.step_log import step_lines

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out" / "tides"
TIDES, QUICK = 12, 3
JOB = "stdlib-lm"
LIMIT_S = 180.0

CONFIG = """
pool: {{name: tides, slots: 3, num_cpus: 16, shared_dir: {out}/shared, host_memory_per_node: 2 GiB}}
gateway: {{port: {port}}}
policy: {{park_first: true, restart_cost_s: 600, grow_after_s: 600}} # every preemption stays in place
endpoints:
  - name: tiny
    model: {model}
    replicas: {{min: 0, max: 1}}
    idle_after_s: 2
    down_after_s: 1
    min_uptime_factor: 0
    slo: {{tpot_s: 1}}
    engine:
      enforce_eager: true
      dtype: bfloat16
      max_model_len: 512
      max_num_seqs: 8
      max_num_batched_tokens: 512
      kv_cache_memory_bytes: 67108864
jobs:
  - name: {job}
    entrypoint: ebbtide_train.examples.stdlib_lm:train
    args: {{steps: 1000000}}
    workers: {{min: 3, max: 3}}
    global_batch: 12
    micro_batch: 4
    min_runtime_s: 1
    max_preemptions_per_h: 1000
    host_memory_per_worker: 512 MiB
"""


def measure(quick: bool = False) -> tuple[list[Row], list[Bar]]:
    """Run the tides.

    Raises:
        RunFailed: the pool did not do its part in time, or a GPU had two occupants.
    """
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    os.environ["EBBTIDE_HOME"] = str(OUT / "home")
    model = ROOT / "out" / "models" / "tiny"
    subprocess.run([sys.executable, "-m", "ebbtide_serve.examples.tiny_model", str(model)], check=True)
    config = OUT / "pool.yaml"
    config.write_text(CONFIG.format(out=OUT, port=8017, model=model, job=JOB))
    with running_pool(config) as record:
        shared = Path(record.shared_dir)
        ebbtide("submit", str(config), "--job", JOB)
        for _ in range(QUICK if quick else TIDES):
            wait("the job trains on all slots", LIMIT_S, lambda status: all_training(status, JOB))
            first = step_of(JOB)
            wait("it makes steps", LIMIT_S, lambda s, first=first: job_of(s, JOB).get("step", 0) >= first + 5)  # type: ignore[misc]
            _ask(record.gateway_url)
        wait("training has its slots back", LIMIT_S, lambda status: all_training(status, JOB))
        time.sleep(1.0)
        events = read_events(shared / "ledger")
        steps_s = [line.step_s for line in step_lines(shared / "train" / JOB) if line.rank == 0]
        if (both_s := double_occupancy_s(read_occupancies(shared / "occupancy"))) > 0:
            raise RunFailed(f"two occupants on one slot for {both_s:g} s")
    return _rows(events, steps_s)


def _ask(url: str) -> None:
    """One request, answered in full."""
    outcome = asyncio.run(send_all(url, "tiny", [Request(0.0, 32, 8)], "import os\n" * 100))[0]
    if not outcome.ok:
        raise RunFailed(f"a request failed: {outcome}")


def stages(events: Sequence[Event]) -> dict[str, list[float]]:
    """Seconds of each stage, one value per tide (``slot freed``: one per slot)."""
    found: dict[str, list[float]] = defaultdict(list)
    at: dict[str, float] = {}
    for event in events:
        now_s = event.at_s
        match event.body:
            case ParkJob():
                at["park"] = now_s
            case SlotFreed() if "park" in at:
                found["reclaim: asked to slot proven free"].append(now_s - at["park"])
            case JobParked() if "park" in at:
                found["reclaim: asked to gang parked"].append(now_s - at.pop("park"))
            case GrantSeat():
                at["grant"] = now_s
            case SeatLanded():
                found["replica: granted to process on its slot"].append(now_s - at["grant"])
                at["landed"] = now_s
            case SeatReady(_, said):
                found["replica: process to ready"].append(now_s - at["landed"])
                found["replica: granted to ready"].append(now_s - at["grant"])
                for stage, took_s in said:
                    found[f"replica stage: {stage}"].append(took_s)
            case DrainSeat():
                at["drain"] = now_s
            case SeatGone() if "drain" in at:
                found["ebb: drain to slot free"].append(now_s - at.pop("drain"))
            case ResumeJob():
                at["resume"] = now_s
            case JobRunning() if "resume" in at:
                found["resume: granted to training"].append(now_s - at.pop("resume"))
            case _:
                pass
    return dict(found)


def _rows(events: Sequence[Event], steps_s: Sequence[float]) -> tuple[list[Row], list[Bar]]:
    found = stages(events)
    step_s = statistics.median(steps_s)
    rows = [row("in place", stage, "s", values) for stage, values in found.items()]
    rows.append(row("in place", "training step", "s", [step_s]))
    reclaim_s = statistics.median(found["reclaim: asked to gang parked"])
    resume_s = statistics.median(found["resume: granted to training"])
    bars = [
        Bar(
            "reclaim_in_place",
            f"under one training step + 1 s ({step_s + 1:.2f} s)",
            round(reclaim_s, 3),
            reclaim_s < step_s + 1,
        ),
        Bar("resume_in_place", "under 2 s", round(resume_s, 3), resume_s < 2),
    ]
    return rows, bars


def main() -> None:
    """Measure and write ``results/tides.json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tides")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} tides instead of {TIDES}")
    rows, bars = measure(parser.parse_args().quick)
    for one in (*rows, *bars):
        print(one)
    print(write(result("tides", "python -m benchmarks.tides", rows, bars), OUT))


if __name__ == "__main__":
    main()
