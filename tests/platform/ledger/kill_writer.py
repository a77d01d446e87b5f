"""Writers that are killed at random moments; run as a program by test_kill.py.

usage: kill_writer.py DIRECTORY ROUNDS SEED [rolls]

One process without threads forks a writer per round (a fork takes a millisecond, a fresh interpreter fifty), kills it
with SIGKILL after a random time and prints {"round", "acked": numbers that the writer saw acknowledged}. Round r of a
writer appends {"round": r, "n": n, "pad": ...} for n = 0, 1, 2, ... in appends of random size. With ``rolls`` it also
goes over to a new file again and again, with a snapshot that says how many records each round has, and keeps no past.
"""

import json
import os
import random
import select
import signal
import sys
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.ledger.history_bounds import HistoryBounds
from ebbtide.ledger.reader import replay
from ebbtide.ledger.record import JSON

LEAST_LIFE_S = 0.05  # several hundred appends, and deaths at every stage of opening, where an fsync takes 0.1 ms
FIRST_WORD_S = 30.0  # a writer that says nothing for so long hangs: it is killed, and the counts will tell


def pad(round_number: int, n: int) -> str:
    """What record ``n`` of a round must hold: from nothing to several pages."""
    return random.Random(round_number * 1_000_003 + n).choice("abc") * ((n * 7919) % 9000 if n % 5 == 0 else n % 90)


def counted(directory: Path, up_to: int | None = None) -> dict[int, int]:
    """How many records each round has, by a replay that starts with the newest snapshot."""
    counts: dict[int, int] = {}
    parts: dict[int, int] = {}
    for record in replay(directory, up_to=up_to, from_snapshot=True):
        payload: dict[str, Any] = record.payload
        if payload.get("type") == "snapshot":
            parts = parts if payload["part"] > 1 else {}
            parts[payload["round"]] = payload["count"]
            counts = parts if payload["part"] == payload["of"] else counts
        else:
            assert payload["n"] == counts.get(payload["round"], 0), f"a gap, or a record twice: {record}"
            assert payload["pad"] == pad(payload["round"], payload["n"])
            counts = {**counts, payload["round"]: payload["n"] + 1}
    return counts


def write_for_ever(directory: Path, round_number: int, out: int, *, rolls: bool) -> None:
    """Append, several appends in flight, and tell each acknowledged number."""
    rng = random.Random(round_number)
    log = EpochLog.open(directory, writer=f"round {round_number}", history=HistoryBounds(max_bytes=0))
    counts = counted(directory, log.epoch) if rolls else {}
    waiting: deque[tuple[int, Future[int]]] = deque()
    n = 0
    while True:
        count = rng.randint(1, 4)
        batch: list[dict[str, JSON]] = [
            {"round": round_number, "n": n + i, "pad": pad(round_number, n + i)} for i in range(count)
        ]
        n += count
        if rolls and n > 1 and rng.random() < 0.1:
            sofar = {**counts, round_number: n - count}
            log.roll([{"round": number, "count": known} for number, known in sofar.items()])
        waiting.append((n, log.append(batch)))
        while len(waiting) > rng.randint(0, 5):
            below, done = waiting.popleft()
            done.result()
            os.write(out, f"{below}\n".encode())


def one_round(directory: Path, round_number: int, life_s: float, *, rolls: bool) -> int:
    """Run and kill one writer; how many of its records were acknowledged."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read_end)
            write_for_ever(directory, round_number, write_end, rolls=rolls)
        finally:
            os._exit(3)
    os.close(write_end)
    if round_number % 3 == 0:  # this one lives to append, however slow the machine is just now
        select.select([read_end], [], [], FIRST_WORD_S)
    time.sleep(life_s)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    with os.fdopen(read_end) as pipe:
        told = [int(line) for line in pipe.read().split("\n")[:-1]]
    if not os.WIFSIGNALED(status):
        raise SystemExit(f"the writer of round {round_number} ended by itself: {status}")
    return told[-1] if told else 0


def longest_life_s(directory: Path) -> float:
    """So long that most writers get to append, on a disk as slow as this one is now."""
    began_s = time.monotonic()
    log = EpochLog.open(directory.with_name("warm-up"), writer="warm-up")
    for n in range(4):
        log.append([{"n": n}]).result()
    log.close()
    return max(LEAST_LIFE_S, 4 * (time.monotonic() - began_s))


def main() -> None:
    directory, rounds, rng = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    life_s = longest_life_s(directory)
    for number in range(rounds):
        acked = one_round(directory, number, rng.uniform(0.0, life_s), rolls="rolls" in sys.argv)
        print(json.dumps({"round": number, "acked": acked}), flush=True)


if __name__ == "__main__":
    main()
