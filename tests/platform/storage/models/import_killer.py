"""An importer that dies before its n-th change, and one that goes on; run as a program by test_import_cut_off.py.

    python -m tests.platform.storage.models.import_killer ROOT SOURCE FIRST STEP LAST [AGAIN]

For n = FIRST, FIRST + STEP, ... a forked child imports into ROOT/<n> and kills itself with SIGKILL before its n-th
change: small files, renames, syncs, claims of chunks, chunks before they are fetched and before they are written.
Another child then imports the same; with AGAIN, one before it dies too, before a change that depends on n. Prints
{"n", "ended", "how", "saved", "copied", "total", "at", "incoming"}; ended: the first came to its end; at: the change it
died before.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.leases.lease_file import Record
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.models.importer.import_records import flights
from ebbtide.storage.models.importer.import_terms import Imported
from tests.platform.storage.counted_transport import CountedTransport
from tests.platform.storage.failing_calls import CountedCalls
from tests.platform.storage.models.made import assert_same, bring, stored_arrays
from tests.platform.storage.stores import CHUNK, store_at


def import_into(root: Path, source: Path, die_at: int) -> Imported:
    """Import, and die before change ``die_at``."""

    def before(number: int, name: str) -> None:
        if number == die_at:
            (root.parent / f"{die_at}.at").write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)

    calls = CountedCalls(before)
    return bring(
        store_at(
            root,
            transport=CountedTransport(calls, BufferPool(2, CHUNK), fetch="fetch", end="stretch"),
            disk=Disk(calls),
        ),
        source,
    )


def leave(root: Path) -> None:
    """Let all claims look as if their holders had let go: what waiting for their deaths would come to."""
    for path in flights(store_at(root).paths).glob("*~*"):
        record = Record.decode(path.read_bytes())
        if record is None:  # killed before it wrote
            path.unlink()
        else:
            path.write_bytes(replace(record, released=True, note={}).encode())


def in_child(deed: Callable[[], None]) -> int:
    """The wait status of a forked child that does it."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            deed()
            code = 0
        except BaseException:  # noqa: BLE001 - outermost of this process
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitpid(child, 0)[1]


def main() -> None:
    root, source, first, step, last = Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:6])
    again = sys.argv[6:] == ["AGAIN"]
    for n in range(first, last + 1, step):
        place = root / str(n)

        def die(into: Path = place, number: int = n) -> None:
            import_into(into, source, number)

        status = in_child(die)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if not killed and os.waitstatus_to_exitcode(status) != 0:
            raise SystemExit(f"the importer that was to die at {n} ended with {status}")

        if again and killed:

            def die_again(into: Path = place, number: int = n) -> None:
                leave(into)
                import_into(into, source, 1 + number * 17 % 70)

            in_child(die_again)

        def go_on(into: Path = place, number: int = n, ended: bool = not killed) -> None:
            leave(into)
            done = import_into(into, source, -1)
            arrays: dict[str, NDArray[np.generic]] = {}
            for path in source.glob("*.safetensors"):
                arrays |= load_file(path)
            store = store_at(
                into, transport=CountedTransport(CountedCalls(), BufferPool(2, CHUNK), fetch="fetch", end="stretch")
            )
            assert_same(stored_arrays(store, done.object), arrays)
            at = root / f"{number}.at"
            print(
                json.dumps(
                    {
                        "n": number,
                        "ended": ended,
                        "how": done.how.value,
                        "saved": done.saved_bytes,
                        "copied": done.copied_bytes,
                        "total": done.size_bytes,
                        "at": at.read_text() if at.exists() else "",
                        "incoming": len(list(store.paths.incoming.iterdir())),
                    }
                ),
                flush=True,
            )

        if code := in_child(go_on):
            raise SystemExit(f"the importer after the one that died at {n} ended with {code}")


if __name__ == "__main__":
    main()
