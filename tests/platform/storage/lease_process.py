"""A process that holds leases, flies, or loads, for tests that kill and pause it; each step is a line of JSON.

    python lease_process.py hold DIRECTORY NAME
    python lease_process.py claim DIRECTORY NAME NUMBER
    python lease_process.py fly DIRECTORY KEY STEPS STEP_S MODE
    python lease_process.py move BOOK CLASS
    python lease_process.py load DIRECTORY SLOTS HOLD_S

`hold` and `claim` check every 10 ms, and say so once they have lost. `run_single_flight` makes a file by a rename onto
a free name.
"""

import json
import os
import sys
import time
from pathlib import Path

from ebbtide.storage.bandwidth.rate_limiter import NodeShelf, Rates
from ebbtide.storage.bandwidth.rate_scheduler import Budget, TrafficClass
from ebbtide.storage.coordination.load_semaphore import LoadTerms, loading
from ebbtide.storage.coordination.single_flight import Leading, Terms, Waiting, run_single_flight
from ebbtide.storage.errors import Refused, StorageError, Superseded, TransferFailed
from ebbtide.storage.leases.lease_file import Pace
from ebbtide.storage.leases.lease_holder import Holding, claim, hold

# Half of stale_after_s must be longer than a busy machine ever keeps a ready process waiting.
PACE = Pace(beat_s=0.1, stale_after_s=5.0, answer_s=10.0)


def say(**what: object) -> None:
    # In one write: several threads may say something at once.
    sys.stdout.write(json.dumps({"pid": os.getpid(), "at_s": time.monotonic(), **what}) + "\n")
    sys.stdout.flush()


def believe(holding: Holding | None) -> None:
    if holding is None:
        say(event="taken")
        return
    with holding:
        say(event="held")
        while True:
            try:
                holding.check()
            except Superseded as error:
                say(event="lost", why=str(error))
                return
            time.sleep(0.01)


def make(directory: Path, key: str, steps: int, step_s: float, mode: str) -> None:
    who = f"process {os.getpid()}"
    result = directory / f"{key}.made"

    def work(leading: Leading) -> str:
        say(event="begun", attempt=leading.attempt)
        for step in range(steps):
            leading.report("copying", step, steps)
            time.sleep(step_s)
            leading.check()
        if mode == "refuse":
            raise Refused("the weights are a pickle")
        if mode == "fail" and leading.attempt <= 2:
            raise TransferFailed("read", "source", errno=5)
        made = directory / f"{key}.{leading.attempt}.{os.getpid()}.tmp"
        made.write_text(who)
        leading.confirm()
        os.link(made, result)  # raises if it is there: published once
        say(event="published", attempt=leading.attempt)
        return who

    def look() -> str | None:
        return result.read_text() if result.exists() else None

    def waits(waiting: Waiting) -> None:
        progress = waiting.progress
        say(event="waits", why=waiting.why, done=progress.done_bytes if progress else None)

    say(event="asks")
    try:
        found = run_single_flight(
            directory / "flights", key, work=work, look=look, terms=Terms(who, 120.0, pace=PACE), on_wait=waits
        )
        say(event="has", what=found)
    except StorageError as error:
        say(event="error", kind=type(error).__name__, text=str(error))


def move(book: Path, kind: TrafficClass) -> None:
    """Ask for a chunk every millisecond."""
    with Rates(Budget(1e9), shelf=NodeShelf(book)).transfer(kind) as admit:
        admit(1)
        say(event="moves")
        while True:
            admit(4096)
            time.sleep(0.001)


def load(directory: Path, slots: int, hold_s: float) -> None:
    terms = LoadTerms(f"process {os.getpid()}", slots, deadline_s=120.0, pace=PACE)
    say(event="asks")
    with loading(directory, terms, on_wait=lambda why: say(event="waits", why=why)) as place:
        say(event="loads", slot=place.slot, why=place.why)
        time.sleep(hold_s)
        say(event="loaded")
    say(event="left")


def main() -> None:
    verb, directory, *rest = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]
    who = f"process {os.getpid()}"
    if verb == "hold":
        believe(hold(directory, rest[0], who=who, pace=PACE))
    elif verb == "claim":
        believe(claim(directory, rest[0], int(rest[1]), who=who, pace=PACE))
    elif verb == "fly":
        make(directory, rest[0], int(rest[1]), float(rest[2]), rest[3])
    elif verb == "move":
        move(directory, TrafficClass[rest[0]])
    elif verb == "load":
        load(directory, int(rest[0]), float(rest[1]))


if __name__ == "__main__":
    main()
