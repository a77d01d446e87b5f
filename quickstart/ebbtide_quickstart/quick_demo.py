"""One tide in two minutes, as a user would play it: a pool of one slot, one endpoint, one job.

A first request starts the replica. When it is idle the job gets the slot; a second request takes it back: the job
parks, the replica answers and leaves, and the job goes on from the step where it stopped.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebbtide.agent.slot_locks.allocation_log import double_occupancy_s, read_occupancies
from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.cluster_join import join
from ebbtide.client.cluster_record import load_cluster
from ebbtide_quickstart.example_model import make_example_model
from ebbtide_quickstart.init import free_port, write_pool
from ebbtide_quickstart.pool_draft import EXAMPLE_MODEL, PoolDraft
from ebbtide_train.session.step_log import step_lines

POOL, ENDPOINT, JOB = "quick-demo", "chat", "pretrain"
STAGE_S = 180.0  # each takes 5 to 40 s on 2 cores
LOOK_EVERY_S = 0.2
TOKENS = 24

# What a tide of minutes needs: the slot changes hands at once, where a real pool would wait for what pays.
HASTE = """
policy: {restart_cost_s: 100, grow_after_s: 1}
"""
ENDPOINT_HASTE = "    idle_after_s: 3\n    down_after_s: 1\n    min_uptime_factor: 0\n"
ENGINE = "engine: {"
ENGINE_HASTE = (
    "engine: {kv_cache_memory_bytes: 134217728, max_num_seqs: 4, max_num_batched_tokens: 512, max_model_len: 512, "
)
JOB_HASTE = "    min_runtime_s: 2\n"

Status = dict[str, Any]


class DemoFailed(RuntimeError):
    """A stage did not come to its end; the message says which and why."""


@dataclass(slots=True)
class Tide:
    """What happened, in order: (stage, seconds that it took), and the figures of the whole."""

    stages: list[tuple[str, float]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


def play(folder: Path, say: Callable[[str], None]) -> Tide:
    """Play the tide in ``folder``, which is new; its pool is down afterwards in any case.

    Raises:
        DemoFailed: with the stage.
        CommandFailed: the example model cannot be made.
    """
    os.environ["EBBTIDE_HOME"] = str(folder / "home")  # the user's own pool stays the current one
    file = folder / "pool.yaml"
    port = free_port()
    write_pool(file, PoolDraft(file=str(file), pool=POOL, slots=1, port=port))
    file.write_text(hasty(file.read_text()))
    tide, began_s = Tide(), time.monotonic()

    @contextmanager
    def stage(words: str) -> Iterator[None]:
        started_s = time.monotonic()
        say(f"{started_s - began_s:5.0f} s  {words}")
        yield
        tide.stages.append((words, round(time.monotonic() - started_s, 2)))

    try:
        with stage("make a small random model"):
            make_example_model(folder / EXAMPLE_MODEL)
        with stage("bring a pool of one slot up"):
            _ebbtide("up", str(file))
        join(load_cluster(POOL))
        _one_tide(f"http://127.0.0.1:{port}", file, tide, stage)
    finally:
        say(f"{time.monotonic() - began_s:5.0f} s  take the pool down")
        _leave_the_cluster()
        subprocess.run([*_COMMAND, "down", "--now", "--pool", POOL], capture_output=True, timeout=STAGE_S)
    shared = folder / "shared"
    tide.figures |= prove(shared) | {"total_s": round(time.monotonic() - began_s, 1)}
    return tide


def _leave_the_cluster() -> None:
    """Else Ray would end this process when its cluster goes."""
    import ray  # noqa: PLC0415 - it takes half a second, for which `ebbtide demo --help` would wait

    ray.shutdown()


def hasty(text: str) -> str:
    """The draft's file with what a short tide needs."""
    text = text.replace(ENGINE, ENGINE_HASTE, 1).replace("\njobs:\n", f"{ENDPOINT_HASTE}\njobs:\n", 1)
    return text.rstrip("\n").replace("steps: 100000", "steps: 1000000") + f"\n{JOB_HASTE}{HASTE}"


def _one_tide(url: str, file: Path, tide: Tide, stage: Callable[[str], Any]) -> None:
    before_s = sum(took_s for _, took_s in tide.stages)
    with stage("a first request: a replica starts for it"):
        tide.figures["first_token_s"], tide.figures["tokens"] = ask(url)
    tide.figures["first_token_after_s"] = round(before_s + tide.figures["first_token_s"], 1)
    with stage("the replica is idle: a job takes its slot and trains"):
        _ebbtide("submit", str(file), "--no-follow")
        until("the job trains", lambda status: _job(status).get("step", 0) >= 20)
    with stage("a second request: the job parks, the replica answers"):
        tide.figures["second_token_s"], _ = ask(url)
        parked = until("the job is parked", lambda status: _job(status).get("parks", 0) >= 1)
        step = int(_job(parked)["step"])
    with stage(f"the replica is idle again: the job goes on from step {step}"):
        until("the job goes on", lambda status: _job(status).get("step", 0) >= step + 10)
    _ebbtide("cancel", JOB)
    tide.figures["parked_at_step"] = step


def ask(url: str) -> tuple[float, int]:
    """One streamed chat request; seconds to its first token, and its number of tokens.

    Raises:
        DemoFailed: it was not answered.
    """
    body = {"model": ENDPOINT, "max_tokens": TOKENS, "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # our own address: no proxy knows it
    began_s, first_s, tokens = time.monotonic(), 0.0, 0
    try:
        with direct.open(request, timeout=STAGE_S) as reply:
            for line in reply:
                if line.startswith(b"data: {") and (json.loads(line[6:]).get("choices") or [{}])[0].get("delta"):
                    tokens += 1
                    first_s = first_s or time.monotonic() - began_s
    except (OSError, ValueError) as error:
        raise DemoFailed(f"the request was not answered: {error}") from error
    if not tokens:
        raise DemoFailed("the request was answered without a token")
    return round(first_s, 2), tokens


def until(what: str, holds: Callable[[Status], bool]) -> Status:
    """The first status that shows it.

    Raises:
        DemoFailed: none does in time.
    """
    link, deadline_s = ArbiterLink(), time.monotonic() + STAGE_S
    status: Status = {}
    while time.monotonic() < deadline_s:
        status = link.call("status") or {}
        if status and holds(status):
            return status
        job = _job(status)
        if job.get("state") == "ended":
            raise DemoFailed(f"the job has ended: {job['outcome']}")
        time.sleep(LOOK_EVERY_S)
    raise DemoFailed(f"not within {STAGE_S:g} s: {what}; job: {_job(status) or 'not known'}")


def prove(shared: Path) -> dict[str, Any]:
    """The two promises, from what each process wrote down by itself."""
    steps = [line.step for line in step_lines(shared / "train" / JOB) if line.rank == 0]
    return {
        "steps": len(steps),
        "steps_lost": max(steps, default=-1) + 1 - len(set(steps)),
        "steps_repeated": len(steps) - len(set(steps)),
        "double_occupancy_s": round(double_occupancy_s(read_occupancies(shared / "occupancy")), 3),
    }


def _job(status: Status) -> Status:
    found: Status = next((job for job in status.get("jobs", []) if job["job"] == JOB), {})
    return found


_COMMAND = (sys.executable, "-m", "ebbtide.cli")


def _ebbtide(*words: str) -> None:
    done = subprocess.run([*_COMMAND, *words], capture_output=True, text=True, timeout=STAGE_S)
    if done.returncode:
        raise DemoFailed(f"`ebbtide {' '.join(words)}` ended with {done.returncode}:\n{done.stderr[-2000:]}")
