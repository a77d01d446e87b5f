"""Names lead to models, and to nothing else."""

from pathlib import Path

import pytest

from ebbtide.storage.errors import Corrupt, NotPublished, Refused
from ebbtide.storage.models.registry.model_names import check_is_free, default_name, find, split_ref
from ebbtide.storage.names import MANIFEST, ObjectId, RefName
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.objects.object_store import ObjectStore
from tests.platform.storage.stores import CHUNK, publish_model, store_at


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return store_at(tmp_path / "store")


@pytest.fixture
def model(store: ObjectStore) -> ObjectId:
    return publish_model(store)


def test_a_model_is_found_by_name_tag_id_and_the_beginning_of_an_id(store: ObjectStore, model: ObjectId) -> None:
    store.refs.write("org/model", "v2", model)
    for text in ("org/model", "org/model:latest", "org/model:v2", model, model[:8], model[:40]):
        assert find(store, text).object == model
    assert str(find(store, "org/model:v2")) == "org/model:v2"
    assert str(find(store, model)) == f"object {model[:12]}"


def test_a_name_goes_before_the_beginning_of_an_id(store: ObjectStore, model: ObjectId) -> None:
    other = publish_model(store, seed=1, tag=None)
    store.refs.write(other[:10], "latest", model)
    assert find(store, other[:10]).object == model


@pytest.mark.parametrize(
    "text",
    ["", ":", "a:", ":a", "../x", "/etc", "a//b", "x:y:z", "a b", "größe", "a\0", "-x", "x:../y", "\x1b[2J", "~"],
)
def test_what_cannot_be_a_name_is_refused(store: ObjectStore, text: str) -> None:
    with pytest.raises(Refused) as caught:
        find(store, text)
    assert str(caught.value).isprintable()


def test_what_is_not_there_is_told_with_what_is(store: ObjectStore, model: ObjectId) -> None:
    with pytest.raises(NotPublished, match=r"tags of org/model: latest"):
        find(store, "org/model:v9")
    with pytest.raises(NotPublished, match=r"did you mean org/model\?"):
        find(store, "org/modle")
    for text in ("f" * 64, "abcdef12"):
        if not model.startswith(text):
            with pytest.raises(NotPublished):
                find(store, text)


def test_the_beginning_of_two_ids_is_refused(store: ObjectStore, model: ObjectId) -> None:
    twin = store.paths.objects / (model[:20] + "0" * 44)
    twin.mkdir()
    with pytest.raises(Refused, match="beginning of 2 objects"):
        find(store, model[:12])
    assert find(store, model[:40]).object == model


def test_a_checkpoint_of_a_training_is_no_model(store: ObjectStore) -> None:
    with store.publication(Kind.TRAINING, {"run": "r"}, chunk_bytes=CHUNK) as work:
        work.add(work.staging.write_bytes("x", b"y"))
        work.publish([("train/r", "step-1")])
    with pytest.raises(Refused, match=r"train/r:step-1 is no model; it is of the kind training"):
        find(store, "train/r:step-1")


def test_a_name_that_leads_nowhere_says_so(store: ObjectStore, model: ObjectId) -> None:
    store.quarantine(model)
    with pytest.raises(NotPublished, match=r"org/model:latest names object .* import it again"):
        find(store, "org/model")


def test_a_model_whose_manifest_is_damaged_is_found_so_that_it_can_be_repaired(
    store: ObjectStore, model: ObjectId
) -> None:
    (store.paths.object(model) / MANIFEST).write_bytes(b"{}")
    assert find(store, "org/model").object == model
    with pytest.raises(Corrupt):
        store.open(model)


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("/models/Llama-3.1-8B", "Llama-3.1-8B"),
        ("s3://bucket/org/model/", "model"),
        ("hf://meta-llama/Llama-3.1-8B", "Llama-3.1-8B"),
        ("/c/models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f249a1", "meta-llama/Llama-3.1-8B"),
        ("/x/größe model (1)", "gr-e-model-1"),
        ("/x/.hidden", "hidden"),
        ("/x/-rf", "rf"),
        ("/x/" + "n" * 300, "n" * 180),
    ],
)
def test_a_source_gives_a_name(where: str, name: str) -> None:
    assert default_name(where) == name


@pytest.mark.parametrize("where", ["/", "s3://", "/x/重み", "/x/..."])
def test_a_source_of_which_no_name_can_be_made_asks_for_one(where: str) -> None:
    with pytest.raises(Refused, match="--name"):
        default_name(where)


def test_names_of_others_are_not_free() -> None:
    assert check_is_free(RefName("training/x")) == "training/x"
    for name in ("train/run", "train", "Train/x", "flat/x", "jit/y"):
        with pytest.raises(Refused, match="kept for other things"):
            check_is_free(RefName(name))


def test_the_tag_is_latest_unless_one_is_given() -> None:
    assert split_ref("a/b") == ("a/b", "latest") and split_ref("a/b:v1") == ("a/b", "v1")
