"""The list says what is there, who uses it, and what is wrong, and never fails because of one of them."""

import errno
import os
import time
from pathlib import Path

import pytest

from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.leases.lease_holder import hold
from ebbtide.storage.leases.lease_subjects import of_object
from ebbtide.storage.models.registry.model_list import list_models
from ebbtide.storage.names import MANIFEST, ObjectId
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.objects.object_store import ObjectStore
from tests.platform.storage.failing_calls import failing_at
from tests.platform.storage.models.made import PACE, bring, make_checkpoint
from tests.platform.storage.stores import CHUNK, store_at


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return store_at(tmp_path / "store")


@pytest.fixture
def model(store: ObjectStore, tmp_path: Path) -> ObjectId:
    make_checkpoint(tmp_path / "model")
    return bring(store, tmp_path / "model").object


def test_an_empty_store_has_no_models(store: ObjectStore) -> None:
    assert list_models(store) == []


def test_a_row_says_what_a_model_is(store: ObjectStore, model: ObjectId) -> None:
    (row,) = list_models(store)
    assert (row.name, row.tag, row.object, row.refs) == ("org/model", "latest", model, ("org/model:latest",))
    assert row.size_bytes == store.manifest(model).size_bytes and (row.num_tensors, row.dtype) == (12, "F32")
    assert row.num_parameters == 64 * 192 + 3 * (192**2 + 193 + 7) + 3
    assert abs(row.at_s - time.time()) < 600 and row.holders == () and row.flat_forms == () and not row.problem


def test_each_name_has_a_row_and_tells_of_the_others(store: ObjectStore, model: ObjectId) -> None:
    store.refs.write("org/model", "v1", model)
    store.refs.write("alias", "latest", model)
    rows = list_models(store)
    assert [(row.name, row.tag) for row in rows] == [("alias", "latest"), ("org/model", "latest"), ("org/model", "v1")]
    assert all(len(row.refs) == 3 for row in rows)


def test_holders_are_told_with_their_silence(store: ObjectStore, model: ObjectId) -> None:
    with hold(store.paths.leases, of_object(model), who="node 7, process 1", pace=PACE):
        path = store.paths.leases / f"{of_object(model)}~{'0' * 32}"
        living = next(one for one in store.paths.leases.iterdir())
        path.write_bytes(living.read_bytes().replace(b"node 7", b"node 8"))
        os.utime(path, (time.time() - 500, time.time() - 500))
        (row,) = list_models(store)
        holders = {holder.who: holder.silent_s for holder in row.holders}
    assert holders["node 7, process 1"] < 60 and 400 < holders["node 8, process 1"] < 700


def test_flat_forms_are_told_and_are_no_models(store: ObjectStore, model: ObjectId) -> None:
    with store.publication(Kind.FLAT, {"tp": "2", "rank": "all"}, uses=[model], chunk_bytes=CHUNK) as work:
        work.add(work.staging.write_bytes("x", b"y"))
        work.publish([("flat/org/model", "tp2")])
    (row,) = list_models(store)
    assert row.flat_forms == ("rank all, tp 2",)


def test_a_model_without_a_name_comes_last(store: ObjectStore, model: ObjectId, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "other", seed=1)
    other = bring(store, tmp_path / "other", None).object
    rows = list_models(store)
    assert [(row.name, row.object) for row in rows] == [("org/model", model), ("", other)] and rows[1].refs == ()


def test_damage_has_a_row_and_the_rest_is_listed(store: ObjectStore, model: ObjectId, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "other", seed=1)
    other = bring(store, tmp_path / "other", "other").object
    make_checkpoint(tmp_path / "third", seed=2)
    third = bring(store, tmp_path / "third", "third").object
    (store.paths.object(other) / MANIFEST).write_bytes(b"junk")
    store.quarantine(third)
    (store.paths.refs / "org%2Fmodel" / "bad").write_bytes(b"junk")
    rows = {f"{row.name}:{row.tag}": row for row in list_models(store)}
    assert set(rows) == {"org/model:latest", "org/model:bad", "other:latest", "third:latest"}
    assert rows["org/model:latest"].problem == ""
    assert "cannot be read" in rows["other:latest"].problem or "COMMIT" in rows["other:latest"].problem
    assert rows["third:latest"].problem == "its object is gone"
    assert rows["org/model:bad"].object is None and "makes no sense" in rows["org/model:bad"].problem


def test_a_store_that_cannot_be_written_to_can_be_listed(store: ObjectStore, model: ObjectId) -> None:
    full = store_at(store.paths.root, disk=Disk(failing_at(1, errno.EROFS, for_ever=True)))
    with hold(store.paths.leases, of_object(model), who="node 7", pace=PACE):
        (row,) = list_models(full)
    assert [holder.who for holder in row.holders] == ["node 7"]
