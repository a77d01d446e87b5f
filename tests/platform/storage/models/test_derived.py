"""What was made of a model goes with it, and a cache that nobody uses goes by age."""

import os
from pathlib import Path

import pytest

from ebbtide.storage.leases import of_object
from ebbtide.storage.manifest import Kind
from ebbtide.storage.models.derived import ARTEFACT, flat_name, give_up_derived, mark_used, model_of
from ebbtide.storage.names import ObjectId, ref_name, tag
from ebbtide.storage.object_store import ObjectStore
from tests.platform.storage.stores import collect_all, publish_model, store_at

DIGEST = "d1"


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return store_at(tmp_path / "store")


def publish_flat(store: ObjectStore, model: ObjectId) -> ObjectId:
    with store.publication(Kind.FLAT, {"model": model}, uses=[model]) as work:
        work.add(work.staging.write_bytes("tp1/rank0.bin", b"flat"))
        return work.publish([(flat_name(model, DIGEST), "tp1-rank0")])


def publish_cache(store: ObjectStore, name: str, age_s: float) -> ObjectId:
    with store.publication(Kind.ARTEFACT, {"of": name}) as work:
        work.add(work.staging.write_bytes("cache", name.encode()))
        found = work.publish([(ARTEFACT + name, "latest")])
    path = store.paths.ref(ref_name(ARTEFACT + name), tag("latest"))
    changed_s = path.stat().st_mtime - age_s
    os.utime(path, (changed_s, changed_s))
    return found


def test_a_flat_form_stays_with_its_model_and_goes_with_it(store: ObjectStore) -> None:
    other, model = publish_model(store, seed=1, tag="other"), publish_model(store)
    flat = publish_flat(store, model)
    assert give_up_derived(store) == []
    collect_all(store)
    assert store.list_objects() == sorted([other, model, flat])

    store.refs.delete("org/model", "latest")
    collect_all(store)
    assert model in store.list_objects(), "its flat form uses it"
    assert give_up_derived(store) == [f"{flat_name(model, DIGEST)}:tp1-rank0"]
    collect_all(store)
    assert store.list_objects() == [other]


def test_a_flat_form_stays_while_somebody_serves_its_model(store: ObjectStore) -> None:
    model = publish_model(store)
    publish_flat(store, model)
    store.refs.delete("org/model", "latest")
    with store.ports.leases.hold(of_object(model)):
        assert give_up_derived(store) == []
    assert len(give_up_derived(store)) == 1


def test_a_cache_goes_by_the_time_since_it_was_used(store: ObjectStore) -> None:
    old, young, used = (publish_cache(store, name, age) for name, age in (("a", 200.0), ("b", 50.0), ("c", 200.0)))
    mark_used(store, ref_name(ARTEFACT + "c"), tag("latest"))
    assert give_up_derived(store, unused_s=100.0) == [f"{ARTEFACT}a:latest"]
    collect_all(store)
    assert store.list_objects() == sorted([young, used])
    assert old not in (young, used)


def test_names_of_models_are_never_given_up(store: ObjectStore) -> None:
    publish_model(store)
    assert give_up_derived(store, unused_s=-1.0) == []


@pytest.mark.parametrize("name", ["org/model", "flat/x", "flat", "artefact/abc", "flat/"])
def test_only_flat_forms_have_a_model_in_their_name(name: str) -> None:
    assert model_of(name) is None
    assert model_of(flat_name(ObjectId("ab" * 32), DIGEST)) == "ab" * 32
