"""Leases of objects and work as files on the shared directory, as the collector sees them."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ebbtide.storage.errors import NotPublished, Superseded
from ebbtide.storage.leases.lease_subjects import of_object, of_work
from ebbtide.storage.leases.object_leases import SharedLeases, this_process
from ebbtide.storage.maintenance.garbage_collection import collect, survey
from ebbtide.storage.maintenance.garbage_plan import Fate, plan
from ebbtide.storage.names import Attempt, object_id
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.posix.posix_transport import PosixTransport
from tests.builders.store import PACE, Broken, shared_store
from tests.platform.storage.played import until
from tests.platform.storage.stores import KEY, NO_GRACE, POOL, leftovers, model_is_right, publish_model


def test_subjects_of_objects_and_work_are_never_the_same() -> None:
    one = object_id("1" * 64)
    assert of_object(one) != of_work(Attempt(one))
    assert str(this_process())


def test_a_store_with_leases_on_disk_publishes_reads_and_collects(tmp_path: Path) -> None:
    store = shared_store(tmp_path / "store")
    lost = publish_model(store, tag=None)
    publish_model(store, seed=1)
    with store.open(lost) as found:
        assert store.ports.leases.present() == store.ports.leases.living() == {of_object(lost)}
        verdicts = plan(survey(store.ports), NO_GRACE)
        assert not [one for one in verdicts if one.object == lost and "somebody holds it" not in one.why]
        assert found.read_bytes("config.json")
    assert store.ports.leases.present() == frozenset()
    for _ in range(2):
        assert not collect(store.ports, plan(survey(store.ports), NO_GRACE), NO_GRACE).failed
    assert len(store.list_objects()) == 1 and model_is_right(store, seed=1) and leftovers(store) == []


def test_a_reader_holds_its_object_again_after_an_outage(tmp_path: Path) -> None:
    broken = Broken()
    store, other = shared_store(tmp_path / "store", broken.system), shared_store(tmp_path / "store")
    with store.open(publish_model(other, tag=None)) as found:
        broken.error = errno.EIO
        time.sleep(1.5 * PACE.fence_s)
        broken.error = 0
        until(lambda: len(os.listdir(store.paths.leases)) == 1 and bool(other.ports.leases.present()))
        assert other.ports.leases.living() == {of_object(found.id)}
        assert not collect(other.ports, plan(survey(other.ports), NO_GRACE), NO_GRACE).done
        assert found.read_bytes("config.json") == b'{"layers": 1}'
    assert store.ports.leases.present() == frozenset()


def test_a_reader_whose_object_was_collected_meanwhile_learns_it_and_may_find_it_again(tmp_path: Path) -> None:
    """1. An outage, and burial. 2. The object lies in the trash. 3. The reader is back: so is the object."""
    broken = Broken()
    store, other = shared_store(tmp_path / "store", broken.system), shared_store(tmp_path / "store")
    with store.open(publish_model(other, tag=None)) as found:
        broken.error = errno.EIO
        for path in store.paths.leases.iterdir():
            path.unlink()
        assert found.read_bytes("config.json") == b'{"layers": 1}'
        collect(other.ports, plan(survey(other.ports), NO_GRACE), NO_GRACE)
        with pytest.raises(NotPublished, match="was removed while"):
            found.read_bytes("config.json")
        broken.error = 0
        until(lambda: bool(other.ports.leases.present()))
        collect(other.ports, plan(survey(other.ports), NO_GRACE), NO_GRACE)
        assert found.read_bytes("config.json") == b'{"layers": 1}'


def test_a_publisher_whose_lease_was_taken_publishes_nothing(tmp_path: Path) -> None:
    store = shared_store(tmp_path / "store")
    with pytest.raises(Superseded, match="leave all as it is"), store.publication(Kind.MODEL, KEY) as work:
        work.add(work.staging.write_bytes("config.json", b"{}"))
        for path in store.paths.leases.iterdir():
            path.unlink()
        work.publish([("org/model", "latest")])
    assert store.list_objects() == [] and store.refs.list() == [] and leftovers(store) == []


def test_a_store_opened_without_more_has_leases_on_disk(tmp_path: Path) -> None:
    store = ObjectStore.at(tmp_path / "store", PosixTransport(POOL))
    assert isinstance(store.ports.leases, SharedLeases)
    with store.open(publish_model(store)):
        assert len(list(store.paths.leases.iterdir())) == 1
    assert list(store.paths.leases.iterdir()) == []


KILLED = """
import sys, time
import subprocess
import sys
from pathlib import Path
from ebbtide.storage.objects.manifest import Kind
from tests.platform.storage.stores import CHUNK, random_bytes
from tests.builders.store import shared_store

store = shared_store(Path(sys.argv[1]))
reader = store.open_ref("org/model", "latest")
work = store.publication(Kind.MODEL, {"by": "the dead"}, chunk_bytes=CHUNK).__enter__()
work.staging.write_bytes("a.safetensors", random_bytes(3 * CHUNK))
print("at work", flush=True)
time.sleep(120)
"""


def test_what_a_killed_process_held_is_collected_once_it_counts_as_dead(tmp_path: Path) -> None:
    store = shared_store(tmp_path / "store")
    object_id = publish_model(store)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "store")],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[4],
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"at work\n"
        store.refs.delete("org/model", "latest")
        found = plan(survey(store.ports), NO_GRACE)
        assert {one.fate for one in found} == {Fate.KEEP}, "it lives: its object and its work stay"
        process.kill()
        process.wait()
    assert {object_id, *(one.name for one in store.paths.incoming.iterdir())} == {one.path.name for one in found}
    for _ in range(2):
        assert not collect(store.ports, plan(survey(store.ports), NO_GRACE), NO_GRACE).failed
    assert store.list_objects() == [] and leftovers(store) == []
