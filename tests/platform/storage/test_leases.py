"""Leases of objects and work as files on the shared directory, as the collector sees them."""

from pathlib import Path

import pytest

from ebbtide.storage.collecting import collect, survey
from ebbtide.storage.durable import Disk
from ebbtide.storage.errors import NotPublished, Superseded
from ebbtide.storage.garbage import plan
from ebbtide.storage.lease import Pace
from ebbtide.storage.leases import SharedLeases, of_object, of_work, this_process
from ebbtide.storage.manifest import Kind
from ebbtide.storage.names import Attempt, object_id
from ebbtide.storage.object_store import ObjectStore
from ebbtide.storage.posix import PosixTransport
from tests.platform.storage.stores import KEY, NO_GRACE, POOL, leftovers, model_is_right, publish_model

QUICK = Pace(beat_s=0.05, stale_after_s=1.5, answer_s=10)


def shared_store(root: Path) -> ObjectStore:
    leases = SharedLeases(root / "leases", pace=QUICK)
    return ObjectStore.at(root, PosixTransport(POOL), leases=leases, disk=Disk())


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
        assert not collect(store.ports, plan(survey(store.ports), NO_GRACE)).failed
    assert len(store.list_objects()) == 1 and model_is_right(store, seed=1) and leftovers(store) == []


def test_a_reader_whose_lease_was_taken_reads_what_was_published_or_nothing(tmp_path: Path) -> None:
    store = shared_store(tmp_path / "store")
    with store.open(publish_model(store, tag=None)) as found:
        for path in store.paths.leases.iterdir():
            path.unlink()
        assert found.read_bytes("config.json") == b'{"layers": 1}'
        for _ in range(2):
            collect(store.ports, plan(survey(store.ports), NO_GRACE))
        with pytest.raises(NotPublished, match="was removed while"):
            found.read_bytes("config.json")


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
