"""What was made of a model goes with it, and a cache that nobody uses goes by age."""

from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.storage.leases.lease_subjects import of_object
from ebbtide.storage.maintenance.garbage_collection import survey
from ebbtide.storage.maintenance.garbage_plan import Fate, Grace, plan
from ebbtide.storage.models.registry.derived_artifacts import delete_unused, mark_used, unused_names, without
from ebbtide.storage.models.registry.derived_names import ARTEFACT, flat_name, model_of
from ebbtide.storage.names import ObjectId, ref_name, tag
from ebbtide.storage.objects.object_store import ObjectStore
from tests.builders.models import DIGEST, publish_cache, publish_flat
from tests.builders.store import make_old
from tests.platform.storage.stores import NO_GRACE, collect_all, publish_model, store_at


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return store_at(tmp_path / "store")


def gone(store: ObjectStore, grace: Grace = NO_GRACE) -> list[str]:
    return [str(one) for one in delete_unused(store, grace)]


def test_a_flat_form_stays_with_its_model_and_goes_with_it(store: ObjectStore) -> None:
    other, model = publish_model(store, seed=1, tag="other"), publish_model(store)
    flat = publish_flat(store, model)
    assert gone(store) == []
    collect_all(store)
    assert store.list_objects() == sorted([other, model, flat])

    store.refs.delete("org/model", "latest")
    collect_all(store)
    assert model in store.list_objects(), "its flat form uses it"
    assert gone(store) == [f"{flat_name(model, DIGEST)}:tp1-rank0"]
    collect_all(store)
    assert store.list_objects() == [other]


def test_a_flat_form_stays_as_long_as_its_model_has_its_grace_and_then_goes_with_it(store: ObjectStore) -> None:
    model = publish_model(store)
    flat = publish_flat(store, model)
    make_old(store, model, flat)
    store.refs.delete("org/model", "latest")
    assert gone(store, Grace()) == [], "whoever has just read the name may load it"
    make_old(store, model, flat)
    assert len(gone(store, Grace())) == 1
    fates = {one.object: one.fate for one in plan(survey(store.ports), Grace())}
    assert fates == {model: Fate.TRASH, flat: Fate.TRASH}, "both at once: nobody looks for the flat form alone"


def test_nothing_is_given_up_with_a_model_whose_name_may_be_one_that_cannot_be_read(store: ObjectStore) -> None:
    model = publish_model(store)
    publish_flat(store, model)
    store.paths.ref(ref_name("org/model"), tag("latest")).write_bytes(b"damaged")
    assert gone(store) == []


def test_a_survey_without_what_would_be_given_up_says_what_would_go(store: ObjectStore) -> None:
    model = publish_model(store)
    flat = publish_flat(store, model)
    store.refs.delete("org/model", "latest")
    found = survey(store.ports)
    assert {one.fate for one in plan(found, NO_GRACE)} == {Fate.KEEP}
    given_up = unused_names(store, NO_GRACE)
    assert [one.why for one in given_up] == ["its model has no other name, and no process holds it"]
    verdicts = plan(without(found, given_up), NO_GRACE)
    assert {one.object: one.fate for one in verdicts} == {model: Fate.TRASH, flat: Fate.TRASH}
    assert len(store.refs.pairs()) == 1


def test_a_flat_form_stays_while_somebody_serves_its_model(store: ObjectStore) -> None:
    model = publish_model(store)
    publish_flat(store, model)
    store.refs.delete("org/model", "latest")
    with store.ports.leases.hold(of_object(model)):
        assert gone(store) == []
    assert len(gone(store)) == 1


def test_a_cache_goes_by_the_time_since_it_was_used(store: ObjectStore) -> None:
    old, young, used = (publish_cache(store, name, age) for name, age in (("a", 200.0), ("b", 50.0), ("c", 200.0)))
    mark_used(store, ref_name(ARTEFACT + "c"), tag("latest"))
    assert gone(store, replace(NO_GRACE, unused_s=100.0)) == [f"{ARTEFACT}a:latest"]
    collect_all(store)
    assert store.list_objects() == sorted([young, used])
    assert old not in (young, used)


def test_names_of_models_are_never_given_up(store: ObjectStore) -> None:
    publish_model(store)
    assert gone(store, replace(NO_GRACE, unused_s=-1.0)) == []


@pytest.mark.parametrize("name", ["org/model", "flat/x", "flat", "artefact/abc", "flat/"])
def test_only_flat_forms_have_a_model_in_their_name(name: str) -> None:
    assert model_of(name) is None
    assert model_of(flat_name(ObjectId("ab" * 32), DIGEST)) == "ab" * 32
