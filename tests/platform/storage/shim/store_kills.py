"""One column of the table of kills: SIGKILL at every call of one kind; a program for ``test_store_kills.py``.

Each line of the standard input is a JSON object {"column", "folder", "op", "action", "share", "turn"}. For n = 1, 2,
... (beyond the first few, for each ``share``-th n, of which ``turn`` is one) a forked child does the operation and is
killed before ("kill") or after ("after") its n-th call of that kind on anything in the store, until one child gets
through. Then, each time: nothing is damaged, what was there before is still there, and the same operation succeeds. A
line of the standard output says how often that was, and in how many of them the new thing was found there at once.
"""

import ctypes
import json
import os
import shutil
import signal
import sys
import traceback
from itertools import count
from pathlib import Path

import torch

from tests.platform.storage.shim import checkpoint_trials, store_trials
from tests.platform.storage.shim.store_trials import Trial

FEW = 2  # kinds of which there are no more calls, as renames, are always whole
TRIALS = store_trials.TRIALS | checkpoint_trials.TRIALS


def dies(kind: type[Trial], place: Path, rule: str) -> bool:
    """Whether a child that does the operation is killed by the rule."""
    child = os.fork()
    if child == 0:
        try:
            trial = kind(place)
            ctypes.CDLL(None).ebbtide_faults(rule.encode())
            trial.act()
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(3)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), f"{rule}: it ended with {status}"
    return status != 0


def column(kind: type[Trial], before: Path, op: str, action: str, share: int, turn: int) -> dict[str, int]:
    """All kills of one kind."""
    kills = there = 0
    for nth in count(1):
        if nth > FEW and (nth - turn) % share:
            continue
        here = before.with_name(f"{op}-{action}-{nth}")
        shutil.copytree(before, here)
        died = dies(kind, here, f"{op} *{here.name}/store/* {nth} 1 {action}")
        after = kind(here)
        there += after.check(done=not died) and died
        after.act()
        after.check(done=True)
        shutil.rmtree(here)
        if not died:
            return {"kills": kills, "there": there}
        kills += 1
    raise AssertionError("there is no end of it")


def main() -> None:
    torch.set_num_threads(1)  # no threads before a fork
    for line in sys.stdin:
        order = json.loads(line)
        kind = TRIALS[order["column"]]
        before = Path(order["folder"]) / order["column"].replace(" ", "-") / "before"
        if not before.exists():
            kind.prepare(before)
        found = column(kind, before, order["op"], order["action"], order["share"], order["turn"])
        print(json.dumps(order | found), flush=True)


if __name__ == "__main__":
    main()
