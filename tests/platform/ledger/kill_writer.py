"""Writers that are killed at random moments; run as a program by test_kill.py.

usage: kill_writer.py DIRECTORY ROUNDS SEED

One process without threads forks a writer per round (a fork takes a millisecond, a fresh interpreter fifty), kills it
with SIGKILL after a random time and prints {"round", "acked": numbers that the writer saw acknowledged}. Round r of a
writer appends {"round": r, "n": n, "pad": ...} for n = 0, 1, 2, ... in appends of random size.
"""

import json
import os
import random
import signal
import sys
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path

from ebbtide.ledger.log import EpochLog
from ebbtide.ledger.record import JSON

LONGEST_LIFE_S = 0.05  # several hundred appends, and deaths at every stage of opening


def pad(round_number: int, n: int) -> str:
    """What record ``n`` of a round must hold: from nothing to several pages."""
    return random.Random(round_number * 1_000_003 + n).choice("abc") * ((n * 7919) % 9000 if n % 5 == 0 else n % 90)


def write_for_ever(directory: Path, round_number: int, out: int) -> None:
    """Append, several appends in flight, and tell each acknowledged number."""
    rng = random.Random(round_number)
    log = EpochLog.open(directory, writer=f"round {round_number}")
    waiting: deque[tuple[int, Future[int]]] = deque()
    n = 0
    while True:
        count = rng.randint(1, 4)
        batch: list[dict[str, JSON]] = [
            {"round": round_number, "n": n + i, "pad": pad(round_number, n + i)} for i in range(count)
        ]
        n += count
        waiting.append((n, log.append(batch)))
        while len(waiting) > rng.randint(0, 5):
            below, done = waiting.popleft()
            done.result()
            os.write(out, f"{below}\n".encode())


def one_round(directory: Path, round_number: int, life_s: float) -> int:
    """Run and kill one writer; how many of its records were acknowledged."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read_end)
            write_for_ever(directory, round_number, write_end)
        finally:
            os._exit(3)
    os.close(write_end)
    time.sleep(life_s)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    with os.fdopen(read_end) as pipe:
        told = [int(line) for line in pipe.read().split("\n")[:-1]]
    if not os.WIFSIGNALED(status):
        raise SystemExit(f"the writer of round {round_number} ended by itself: {status}")
    return told[-1] if told else 0


def main() -> None:
    directory, rounds, rng = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    for number in range(rounds):
        acked = one_round(directory, number, rng.uniform(0.0, LONGEST_LIFE_S))
        print(json.dumps({"round": number, "acked": acked}), flush=True)


if __name__ == "__main__":
    main()
