"""Real gangs for tests: a process that has loaded torch once and forks the ranks of as many gangs as it is asked for.

    python -m tests.platform.storage.checkpoints.gang_process

Each line on stdin is a JSON object {"gang", "world", "scenario", "arguments"}; each rank is a forked child that calls
``gang_scenarios.<scenario>(rank, world, **arguments)``. Lines on stdout: {"gang", "rank", "event", ...}, with the event
``begun`` (pid), ``returned`` (value), ``raised`` (kind, text), ``died`` (signal), and whatever scenarios say.
"""

import json
import os
import select
import signal
import traceback
from typing import Any

import torch
import torch._dynamo  # DTensor imports it when it is first used, which would be in each rank anew: over a second each

from tests.platform.storage.checkpoints import gang_scenarios


def say(**what: object) -> None:
    """One line, whole, whoever else writes."""
    os.write(1, json.dumps(what).encode() + b"\n")


def be_a_rank(gang: str, rank: int, world: int, scenario: str, arguments: dict[str, Any]) -> None:
    """Run a scenario in a forked child and end the child."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        gang_scenarios.say = lambda **what: say(gang=gang, rank=rank, **what)
        value = getattr(gang_scenarios, scenario)(rank, world, **arguments)
        say(gang=gang, rank=rank, event="returned", value=value)
        code = 0
    except BaseException as error:  # noqa: BLE001 - the outermost of a process
        traceback.print_exc()
        say(gang=gang, rank=rank, event="raised", kind=type(error).__name__, text=str(error)[:2000])
    finally:
        os._exit(code)


def main() -> None:
    torch.set_num_threads(1)  # no threads before a fork
    ranks: dict[int, tuple[str, int]] = {}
    ready, text, has_ended = True, b"", False
    say(event="ready", is_ready=ready)
    while ranks or not has_ended:
        if not has_ended and select.select([0], [], [], 0.02)[0]:
            part = os.read(0, 1 << 16)
            has_ended, text = not part, text + part
            *lines, text = text.split(b"\n")
            for one in map(json.loads, lines):
                for rank in range(one["world"]):
                    pid = os.fork()
                    if pid == 0:
                        be_a_rank(one["gang"], rank, one["world"], one["scenario"], one["arguments"])
                    ranks[pid] = one["gang"], rank
                    say(gang=one["gang"], rank=rank, event="begun", pid=pid)
        elif has_ended:
            for pid in ranks:
                os.kill(pid, signal.SIGKILL)
        while ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            gang, rank = ranks.pop(pid)
            if os.WIFSIGNALED(status):
                say(gang=gang, rank=rank, event="died", signal=os.WTERMSIG(status))


if __name__ == "__main__":
    main()
