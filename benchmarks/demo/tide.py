"""Running the pool through one tide, as a user would: `ebbtide up`, `ebbtide submit`, HTTP requests, `ebbtide down`."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.demo.client import Outcome, send_all
from benchmarks.demo.parked import ParkedAndKilled, park_and_kill
from benchmarks.demo.traffic import TIDE, Request
from benchmarks.pool_run import all_training, ebbtide, job_of, running_pool, step_of, wait
from ebbtide.cli.terminal.event_sentences import clock, sentence
from ebbtide.ledger.errors import LedgerError
from ebbtide.ledger.reader import follow

# One short request before the job comes: the first start of a model on a new store compiles, and publishes what it made
# and the model's flat form. From then on replicas start from these, and it is they that the demo is about.
FIRST = (Request(0.0, 40, 4),)
FIRST_S = 180.0  # until the pool is free again after it: 20 to 60 s
START_S = 180.0  # for the job to train on all slots: 15 s on a quiet machine
EBB_S = 180.0  # from the last answer until training has all its slots back: a drain and one or two restarts
STEPS_AFTER = 15  # steps that the job makes on all its slots before the demo ends it
QUIET = ("job_durable", "slot_found", "node_found", "endpoint_declared")  # not worth a line on the terminal


@dataclass(slots=True)
class Tide:
    """What a run leaves behind."""

    first: Outcome | None = None  # of the request that came before the job
    outcomes: list[Outcome] = field(default_factory=list)
    start_s: float = 0.0  # first request due
    end_s: float = 0.0  # the job was told to end
    trained_from_s: float = 0.0
    all_slots_back: bool = False
    parked: ParkedAndKilled | None = None  # the last act


def run_tide(config: Path, *, job: str, model: str, requests: Sequence[Request], text: str) -> Tide:
    """Bring the pool up, run the tide, take the pool down.

    Raises:
        RunFailed: a step did not come about in its time; the pool is taken down all the same.
    """
    tide = Tide()
    with running_pool(config) as record, _told(Path(record.shared_dir) / "ledger"):
        tide.first = asyncio.run(send_all(record.gateway_url, model, FIRST, text))[0]
        print(f"{clock(time.time())}  first answer of a new pool after {tide.first.ttft_s:.1f} s", flush=True)
        wait("the pool is free again", FIRST_S, lambda status: not any(slot["occupant"] for slot in status["slots"]))
        ebbtide("submit", str(config), "--job", job)
        wait("the job trains on all slots", START_S, lambda status: all_training(status, job))
        tide.trained_from_s = time.time()
        first = step_of(job)
        wait("it has made 10 steps", START_S, lambda status: job_of(status, job).get("step", 0) >= first + 10)
        tide.start_s = time.time()
        tide.outcomes = _send_in_two(record.gateway_url, model, requests, text, job=job)
        failed = [outcome for outcome in tide.outcomes if not outcome.ok]
        print(f"{clock(time.time())}  {len(tide.outcomes)} requests answered, {len(failed)} failed", flush=True)
        wait("training has all its slots back", EBB_S, lambda status: all_training(status, job))
        tide.all_slots_back = True
        last = step_of(job)
        wait("it goes on", START_S, lambda status: job_of(status, job).get("step", 0) >= last + STEPS_AFTER)
        tide.parked = park_and_kill(record, job)
        last = step_of(job)
        wait("it goes on after that", START_S, lambda status: job_of(status, job).get("step", 0) >= last + STEPS_AFTER)
        tide.end_s = time.time()
        ebbtide("cancel", job)
        wait("the job has ended", START_S, lambda status: job_of(status, job).get("state") == "ended")
    return tide


def _send_in_two(url: str, model: str, requests: Sequence[Request], text: str, *, job: str) -> list[Outcome]:
    """The small wave; then the tide, at its time in the script, but not before training has its slots back.

    On a slow machine a replica starts so late that the tide would meet it still at work for the small wave.
    """
    due_s, begun_s = TIDE[1].start_s, time.monotonic()
    small = [request for request in requests if request.at_s < due_s]
    outcomes = asyncio.run(send_all(url, model, small, text))
    wait("training has its slots back from the small wave", EBB_S, lambda status: all_training(status, job))
    passed_s = min(due_s, time.monotonic() - begun_s)
    rest = [replace(request, at_s=request.at_s - passed_s) for request in requests[len(small) :]]
    return outcomes + asyncio.run(send_all(url, model, rest, text, first=len(small)))


@contextmanager
def _told(ledger: Path) -> Iterator[None]:
    """Print what happens, as it is journaled, while the block runs."""
    stop = threading.Event()
    teller = threading.Thread(target=_tell, args=(ledger, stop), daemon=True)
    teller.start()
    try:
        yield
    finally:
        stop.set()
        teller.join(timeout=5.0)


def _tell(ledger: Path, stop: threading.Event) -> None:
    with suppress(LedgerError):
        for record in follow(ledger, stop=stop.is_set):
            body: Any = record.payload.get("body")
            if record.payload.get("type") == "event" and body["kind"] not in QUIET:
                print(f"{clock(float(str(record.payload['at_s'])))}  {sentence(body)}", flush=True)
