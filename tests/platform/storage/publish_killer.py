"""A publisher that dies before its n-th change of the filesystem; run as a program by test_publish_cut_off.py.

usage: publish_killer.py ROOT FIRST STEP LAST MODE

For n = FIRST, FIRST + STEP, ... a forked child publishes into ROOT/<n> and kills itself with SIGKILL before its n-th
change (small files, renames, syncs, and each chunk of large files). MODE says what stood there before: ``fresh``
nothing, ``again`` the same object without the ref. Prints {"n", "ended"}; ended: the publication came to its end.
"""

import json
import os
import signal
import sys
from pathlib import Path

from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.memory.buffer_pool import BufferPool
from tests.platform.storage.counted_transport import CountedTransport
from tests.platform.storage.failing_calls import CountedCalls
from tests.platform.storage.stores import CHUNK, publish_model, store_at


def publish(root: Path, die_at: int) -> int:
    """Publish, and die before change ``die_at``; how many changes there were."""

    def before(number: int, _name: str) -> None:
        if number == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    calls = CountedCalls(before)
    publish_model(
        store_at(root, transport=CountedTransport(calls, BufferPool(2, CHUNK), end="file"), disk=Disk(calls)), seed=7
    )
    return calls.count


def main() -> None:
    root, first, step, last, mode = Path(sys.argv[1]), *map(int, sys.argv[2:5]), sys.argv[5]
    for n in range(first, last + 1, step):
        store = root / str(n)
        if mode == "again":
            publish_model(store_at(store), seed=7, tag=None)
        child = os.fork()
        if child == 0:
            code = 3
            try:
                publish(store, n)
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            print(json.dumps({"n": n, "ended": False}), flush=True)
        elif os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            print(json.dumps({"n": n, "ended": True}), flush=True)
        else:
            raise SystemExit(f"the publisher that was to die at {n} ended with {status}")


if __name__ == "__main__":
    main()
