"""One live run: a pool on this machine's CPU, a job that trains in it, and a window of the trace that is asked of it.

As a user would: `ebbtide up`, `submit`, requests over HTTP, `cancel`, `down`; the demo's own parts. What it leaves is
its ledger, when it began, and what each user saw.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.demo.client import Outcome, send_all
from benchmarks.demo.traffic import Request
from benchmarks.pool_run import RunFailed, all_training, ebbtide, job_of, running_pool, step_of, wait

JOB, MODEL = "stdlib-lm", "tiny"
FIRST = (Request(0.0, 40, 4),)  # as in the demo: a model's first start on a new store compiles and publishes
LIMIT_S = 180.0  # for each step: on a quiet machine none takes longer than 60 s
STEPS_BEFORE = 10

# The demo's pool, with its own folder and port, and room in an engine for all that the gateway gives to one.
CONFIG = """
pool: {{name: fidelity, slots: 3, num_cpus: 16, shared_dir: {out}/shared, host_memory_per_node: 2 GiB}}
gateway: {{port: {port}, hold: {{max_requests: 512}}}}
policy: {{tick_s: 1, restart_cost_s: 45, grow_after_s: 5}}
endpoints:
  - name: {model_name}
    model: {model}
    replicas: {{min: 0, max: 2}}
    slo: {{ttft_s: 2.0, tpot_s: 1.0}}
    target_requests: 8
    idle_after_s: 12
    down_after_s: 5
    min_uptime_factor: 0.5
    engine:
      enforce_eager: true
      dtype: bfloat16
      max_model_len: 1024
      max_num_seqs: 64
      max_num_batched_tokens: 1024
      kv_cache_memory_bytes: 134217728
jobs:
  - name: {job}
    entrypoint: ebbtide_train.examples.stdlib_lm:train
    args: {{steps: 1000000}}
    workers: {{min: 1, max: 3}}
    global_batch: 12
    micro_batch: 4
    min_runtime_s: 5
    host_memory_per_worker: 512 MiB
"""
PORT = 8023


@dataclass(frozen=True, slots=True)
class Lived:
    """A live run as it was recorded.

    Attributes:
        shared: its shared directory, with the ledger.
        start_s: when the first phase began, in seconds since 1970.
        requests: as they were due.
        outcomes: what became of each.
    """

    shared: Path
    start_s: float
    requests: tuple[Request, ...]
    outcomes: tuple[Outcome, ...]


def live(out: Path, requests: Sequence[Request], *, span_s: float, model: Path, text: str) -> Lived:
    """Run the pool through the window.

    Args:
        out: a folder for it; an older run's is replaced.
        span_s: for which the run goes on at least, from the first phase on.
        model: as `ebbtide_serve.examples.tiny_model` makes it.
        text: that prompts are cut from.

    Raises:
        RunFailed: a step did not come about in its time, or a request failed.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    os.environ["EBBTIDE_HOME"] = str(out / "home")
    config = out / "pool.yaml"
    config.write_text(CONFIG.format(out=out, port=PORT, model=model, model_name=MODEL, job=JOB))
    with running_pool(config) as record:
        asyncio.run(send_all(record.gateway_url, MODEL, FIRST, text))
        wait("the pool is free again", LIMIT_S, lambda status: not any(slot["occupant"] for slot in status["slots"]))
        ebbtide("submit", str(config), "--job", JOB)
        wait("the job trains on all slots", LIMIT_S, lambda status: all_training(status, JOB))
        first = step_of(JOB)
        wait("it makes steps", LIMIT_S, lambda status: job_of(status, JOB).get("step", 0) >= first + STEPS_BEFORE)
        start_s = time.time()
        outcomes = asyncio.run(send_all(record.gateway_url, MODEL, requests, text))
        time.sleep(max(0.0, start_s + span_s + 1.0 - time.time()))
        ebbtide("cancel", JOB)
        wait("the job has ended", LIMIT_S, lambda status: job_of(status, JOB).get("state") == "ended")
        found = Lived(Path(record.shared_dir), start_s, tuple(requests), tuple(outcomes))
    if failed := [outcome for outcome in outcomes if not outcome.ok]:
        raise RunFailed(f"{len(failed)} of {len(outcomes)} requests failed; the first: {failed[0]}")
    _write(out / "run.json", found)
    return found


def _write(path: Path, found: Lived) -> None:
    path.write_text(
        json.dumps(
            {
                "start_s": found.start_s,
                "requests": [asdict(one) for one in found.requests],
                "outcomes": [asdict(one) for one in found.outcomes],
            }
        )
    )


def read(out: Path) -> Lived:
    """A live run that was recorded before."""
    told = json.loads((out / "run.json").read_text())
    return Lived(
        out / "shared",
        told["start_s"],
        tuple(Request(**one) for one in told["requests"]),
        tuple(Outcome(**one) for one in told["outcomes"]),
    )


def make_model(path: Path) -> Path:
    """The small model, made once."""
    subprocess.run([sys.executable, "-m", "ebbtide_serve.examples.tiny_model", str(path)], check=True)
    return path
