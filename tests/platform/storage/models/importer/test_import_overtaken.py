"""A leader that stands still before any of its changes, while another takes over its work and finishes it.

What a paused process does when it wakes up is what it would have done: here the other import runs to its end inside the
leader's call, and then the leader goes on, with its descriptors and paths as they were. Nothing that it does may harm
what is published, and it ends with the same object.
"""

from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.leases.lease_file import Record
from ebbtide.storage.maintenance.scrub import damage_of
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.models.importer.import_records import flights
from ebbtide.storage.posix.posix_transport import PosixTransport
from tests.hunts import spread
from tests.platform.storage.counted_transport import CountedTransport
from tests.platform.storage.failing_calls import CountedCalls
from tests.platform.storage.models.made import Arrays, assert_same, bring, make_checkpoint, stored_arrays
from tests.platform.storage.stores import CHUNK, quick_directory, store_at

quick = pytest.fixture(quick_directory)
MOST_CHANGES = 128
OTHERS_POOL = BufferPool(2, CHUNK)
OURS_POOL = BufferPool(2, CHUNK)


def bury(folder: Path) -> None:
    """Let the claim look as if its holder had let go, to everybody but the holder, who finds another's file."""
    for path in folder.glob("*~*"):
        record = Record.decode(path.read_bytes())
        if record is not None:
            path.write_bytes(replace(record, token=uuid4().hex, released=True, note={}).encode())


def overtaken(root: Path, source: Path, at: int, arrays: Arrays) -> str:
    """The name of change ``at``; empty if there are fewer."""
    met: list[str] = []
    others: list[str] = []

    def before(number: int, name: str) -> None:
        if number != at:
            return
        met.append(name)
        bury(flights(store_at(root).paths))
        other = store_at(root, transport=PosixTransport(OTHERS_POOL, threads=1))
        others.append(bring(other, source, "other").object)

    calls = CountedCalls(before)
    done = bring(
        store_at(root, transport=CountedTransport(calls, OURS_POOL, fetch="fetch"), disk=Disk(calls)), source, "ours"
    )
    store = store_at(root)
    assert_same(stored_arrays(store, done.object), arrays)
    assert store.list_objects() == [done.object] and set(others) <= {done.object}
    assert damage_of(store.ports, done.object, deep=True) == []
    assert list(store.paths.quarantine.iterdir()) == []
    names = {"ours:latest", "other:latest"} if others else {"ours:latest"}
    assert {str(ref) for ref in store.refs.list()} == names
    return met[0] if met else ""


@pytest.mark.parametrize("first", spread(range(1, 7)))
def test_whatever_an_overtaken_leader_does_next_harms_nothing(quick: Path, first: int) -> None:
    arrays = make_checkpoint(quick / "model")
    met = []
    for at in range(first, MOST_CHANGES, 6):
        try:
            met.append(overtaken(quick / str(at), quick / "model", at, arrays))
        except BaseException as error:
            error.add_note(f"overtaken before change {at}")
            raise
    assert met[0] and not met[-1], "all changes were tried"
