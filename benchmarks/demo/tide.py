"""Running the pool through one tide, as a user would: `ebbtide up`, `ebbtide submit`, HTTP requests, `ebbtide down`."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from benchmarks.demo.client import Outcome, send_all
from benchmarks.demo.traffic import Request
from ebbtide.cli.narrate import clock, sentence
from ebbtide.client.cluster import load_cluster
from ebbtide.client.join import join
from ebbtide.client.link import ArbiterLink
from ebbtide.ledger.errors import LedgerError
from ebbtide.ledger.reader import follow

START_S = 180.0  # for the job to train on all slots: 15 s on a quiet machine
EBB_S = 180.0  # from the last answer until training has all its slots back: a drain and one or two restarts
STEPS_AFTER = 15  # steps that the job makes on all its slots before the demo ends it
QUIET = ("job_durable", "slot_found", "node_found", "endpoint_declared")  # not worth a line on the terminal


class DemoFailed(RuntimeError):
    """The demo could not run to its end; the message says where it stopped."""


@dataclass(slots=True)
class Tide:
    """What a run leaves behind."""

    outcomes: list[Outcome] = field(default_factory=list)
    start_s: float = 0.0  # first request due
    end_s: float = 0.0  # the job was told to end
    trained_from_s: float = 0.0
    all_slots_back: bool = False


def run_tide(config: Path, *, job: str, model: str, requests: Sequence[Request], text: str) -> Tide:
    """Bring the pool up, run the tide, take the pool down.

    Raises:
        DemoFailed: a step did not come about in its time; the pool is taken down all the same.
    """
    tide = Tide()
    _ebbtide("up", str(config))
    record = load_cluster()
    stop = threading.Event()
    teller = threading.Thread(target=_tell, args=(Path(record.shared_dir) / "ledger", stop), daemon=True)
    teller.start()
    try:
        join(record)
        _ebbtide("submit", str(config), "--job", job)
        _wait("the job trains on all slots", START_S, lambda status: _all_training(status, job))
        tide.trained_from_s = time.time()
        first = _step(job)
        _wait("it has made 10 steps", START_S, lambda status: _job(status, job).get("step", 0) >= first + 10)
        tide.start_s = time.time()
        tide.outcomes = asyncio.run(send_all(record.gateway_url, model, requests, text))
        failed = [outcome for outcome in tide.outcomes if not outcome.ok]
        print(f"{clock(time.time())}  {len(tide.outcomes)} requests answered, {len(failed)} failed", flush=True)
        _wait("training has all its slots back", EBB_S, lambda status: _all_training(status, job))
        tide.all_slots_back = True
        last = _step(job)
        _wait("it goes on", START_S, lambda status: _job(status, job).get("step", 0) >= last + STEPS_AFTER)
        tide.end_s = time.time()
        _ebbtide("cancel", job)
        _wait("the job has ended", START_S, lambda status: _job(status, job).get("state") == "ended")
    finally:
        stop.set()
        ray.shutdown()  # or Ray would end this process when its cluster goes
        with suppress(subprocess.SubprocessError, DemoFailed):
            _ebbtide("down")
        teller.join(timeout=5.0)
    return tide


def _ebbtide(*arguments: str) -> None:
    command = [sys.executable, "-m", "ebbtide.cli", *arguments]
    done = subprocess.run(command, env=os.environ, timeout=300)
    if done.returncode:
        raise DemoFailed(f"`ebbtide {' '.join(arguments)}` ended with {done.returncode}")


def _tell(ledger: Path, stop: threading.Event) -> None:
    """Print what happens, as it is journaled."""
    with suppress(LedgerError):
        for record in follow(ledger, stop=stop.is_set):
            body: Any = record.payload.get("body")
            if record.payload.get("type") == "event" and body["kind"] not in QUIET:
                print(f"{clock(float(str(record.payload['at_s'])))}  {sentence(body)}", flush=True)


def _wait(what: str, limit_s: float, holds: Callable[[dict[str, Any]], bool]) -> None:
    link = ArbiterLink()
    status: dict[str, Any] = {}
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        status = link.call("status") or {}
        if status and holds(status):
            return
        time.sleep(0.2)
    raise DemoFailed(f"not within {limit_s:g} s: {what}; last status: {status}")


def _job(status: dict[str, Any], job: str) -> dict[str, Any]:
    return next((one for one in status.get("jobs", []) if one["job"] == job), {})


def _step(job: str) -> int:
    status = ArbiterLink().call("status", timeout_s=10.0) or {}
    return int(_job(status, job).get("step", 0))


def _all_training(status: dict[str, Any], job: str) -> bool:
    slots = status.get("slots", [])
    running = _job(status, job).get("state") == "running"
    return bool(slots) and running and all(slot["occupant"] == job for slot in slots)
