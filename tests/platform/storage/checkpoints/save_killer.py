"""A process that dies before its n-th change while it saves; run as a program by test_publishing.py.

usage: save_killer.py ROOT START STOP STEP

For n in that range: in ROOT/<n> step 1 was committed by epoch 1. A forked child saves step 2 in epoch 2 and kills
itself with SIGKILL before its n-th change (small files, renames, syncs, removals, and each chunk of large files).
Another one then reads what is there, saves step 3 in epoch 3, and reads that.

Prints {"n", "ended", "read", "then", "left"}: whether the save came to its end, which step was read after it, which one
in the end, and what was left besides.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ebbtide.storage.checkpoints.run_directory.checkpoint_retention import Retention
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.memory.buffer_pool import BufferPool
from tests.platform.storage.checkpoints.runs import PIECE, leftovers, make_run, state_at, step_read
from tests.platform.storage.counted_transport import CountedTransport
from tests.platform.storage.failing_calls import CountedCalls


def save(root: Path, step: int, *, die_at: int = 0) -> int:
    """Save, and die before change ``die_at``; how many changes there were."""

    def before(number: int, _name: str) -> None:
        if number == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    calls = CountedCalls(before)
    run = make_run(
        root,
        transport=CountedTransport(calls, BufferPool(2, PIECE), end="file"),
        disk=Disk(calls),
        keep=Retention(1),
        grace_s=-1,
    )
    run.save(state_at(step), epoch=step, step=step)
    run.settle()
    return calls.count


def in_a_child(work: Callable[[], object]) -> tuple[bool, object]:
    """Whether it came to its end, and what it found; if it was killed, nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 3
        try:
            os.write(writing, json.dumps(work()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False, None
    if status != 0:
        raise SystemExit(f"a child ended with {status}")
    return True, json.loads(answer)


def look(root: Path) -> tuple[int | None, int | None, list[str]]:
    """What is read; and after the next save."""
    read = step_read(make_run(root))
    run = make_run(root, keep=Retention(1), grace_s=-1)
    run.save(state_at(3), epoch=3, step=3)
    run.settle()
    return read, step_read(run), leftovers(run)


def main() -> None:
    root = Path(sys.argv[1])
    for n in range(*map(int, sys.argv[2:5])):
        place = root / str(n)
        in_a_child(partial(save, place, 1))
        ended, _ = in_a_child(partial(save, place, 2, die_at=n))
        _, found = in_a_child(partial(look, place))
        assert isinstance(found, list)
        print(
            json.dumps({"n": n, "ended": ended, **dict(zip(("read", "then", "left"), found, strict=True))}), flush=True
        )


if __name__ == "__main__":
    main()
