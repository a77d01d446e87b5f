"""What an endpoint writes as its model leads to a directory for engines and an object for loaders."""

import json
import os
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from ebbtide.storage.errors import NotPublished, Refused
from ebbtide.storage.models.importer.import_terms import How
from ebbtide.storage.models.registry.model_resolution import resolve
from ebbtide.storage.objects.object_store import ObjectStore
from tests.platform.storage.models.made import CONFIG, TERMS, bring, make_checkpoint
from tests.platform.storage.stores import LocalLeases, collect_all, store_at


@pytest.fixture
def leases() -> LocalLeases:
    return LocalLeases()


@pytest.fixture
def store(tmp_path: Path, leases: LocalLeases) -> ObjectStore:
    return store_at(tmp_path / "store", leases=leases)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_checkpoint(tmp_path / "model")
    return tmp_path / "model"


def test_names_tags_and_ids_lead_to_the_model(store: ObjectStore, folder: Path, leases: LocalLeases) -> None:
    target = bring(store, folder).object
    for wanted in ("org/model", "org/model:latest", target, target[:12]):
        with resolve(store, wanted) as model:
            assert model.stored.id == target and model.imported is None
            assert json.loads((model.directory / "config.json").read_text()) == CONFIG
            assert len([path for path in model.directory.glob("*.safetensors") if load_file(path)]) == 2
            assert leases.living() == {f"object-{target}"}
        assert leases.living() == frozenset()


def test_a_held_model_is_not_collected(store: ObjectStore, folder: Path) -> None:
    bring(store, folder)
    with resolve(store, "org/model") as model:
        store.refs.delete("org/model", "latest")
        collect_all(store)
        assert (model.directory / "config.json").exists()
    collect_all(store)
    assert not model.directory.exists()


def test_a_directory_is_imported_at_first_use_and_then_known(store: ObjectStore, folder: Path) -> None:
    with resolve(store, str(folder), terms=TERMS) as model:
        assert model.imported is not None and model.imported.how is How.COPIED
        first = model.stored.id
    with resolve(store, str(folder), terms=TERMS) as model:
        assert model.imported is not None and model.imported.how is How.KNOWN and model.stored.id == first
    collect_all(store)
    assert store.list_objects() == [first], "it has a name, so that it stays"
    (name,) = store.refs.names()
    assert name.startswith("first-use/model-")


def test_two_directories_of_one_name_do_not_meet(store: ObjectStore, folder: Path, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "other" / "model", seed=1)
    ids = set()
    for place in (folder, tmp_path / "other" / "model"):
        with resolve(store, str(place), terms=TERMS) as model:
            ids.add(model.stored.id)
    assert len(ids) == 2 and len(store.refs.names()) == 2


def test_a_directory_that_changed_is_imported_again(store: ObjectStore, folder: Path) -> None:
    with resolve(store, str(folder), terms=TERMS) as model:
        first = model.stored.id
    make_checkpoint(folder, seed=1)
    with resolve(store, str(folder), terms=TERMS) as model:
        assert model.stored.id != first
    assert len(store.refs.names()) == 1


def test_a_name_goes_before_a_directory_of_that_name(
    store: ObjectStore, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = bring(store, folder, "model").object
    make_checkpoint(folder, seed=1)
    monkeypatch.chdir(tmp_path)
    with resolve(store, "model") as model:
        assert model.stored.id == target
    with resolve(store, "./model", terms=TERMS) as model:
        assert model.stored.id != target
    store.refs.delete("model", "latest")
    with resolve(store, "model", terms=TERMS) as model:
        assert model.imported is not None


@pytest.mark.parametrize("wanted", ["nobody/nothing", "a b c", "x:y:z", "f" * 64])
def test_what_is_neither_is_told_with_what_to_do(store: ObjectStore, wanted: str) -> None:
    with pytest.raises((NotPublished, Refused), match="ebbtide models import"):
        resolve(store, wanted)


@pytest.mark.parametrize("wanted", ["/nowhere/at/all", "./nope", "s3://b/x", ""])
def test_a_place_that_is_not_there_is_told(store: ObjectStore, wanted: str) -> None:
    with pytest.raises(Refused):
        resolve(store, wanted, terms=TERMS)
    assert store.refs.names() == []


def test_a_url_is_imported_at_first_use(store: ObjectStore, folder: Path) -> None:
    with resolve(store, f"file://{folder}", terms=TERMS) as model:
        assert model.imported is not None and os.path.isdir(model.directory)
