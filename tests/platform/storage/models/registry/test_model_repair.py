"""A damaged model is mended from its source, by fetching what is damaged and nothing else."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide.storage.errors import NoRoom, Refused
from ebbtide.storage.maintenance.scrub import damage_of
from ebbtide.storage.maintenance.space_reservation import measure
from ebbtide.storage.models.registry.model_repair import repair_model
from ebbtide.storage.models.sources.local_source import LocalSource
from ebbtide.storage.names import COMMIT, MANIFEST, ObjectId
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.store_limits import Budget
from tests.platform.storage.models.made import TERMS, Arrays, assert_same, bring, make_checkpoint, stored_arrays
from tests.platform.storage.stores import CHUNK, leftovers, store_at, within

FIRST = "model-00001-of-00002.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"


@pytest.fixture
def arrays(folder: Path) -> Arrays:
    return make_checkpoint(folder)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return store_at(tmp_path / "store")


@pytest.fixture
def model(store: ObjectStore, folder: Path, arrays: Arrays) -> ObjectId:
    return bring(store, folder).object


def is_whole(store: ObjectStore, model: ObjectId, arrays: Arrays) -> bool:
    assert_same(stored_arrays(store, model), arrays)
    return damage_of(store.ports, model, deep=True) == [] and leftovers(store) == []


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def hole(path: Path, offset: int, length: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + length] = bytes(length)
    path.write_bytes(content)


DAMAGE: list[tuple[str, Callable[[Path], object], int]] = [
    # what, how, and how many bytes at most are fetched
    ("header", lambda f: flip(f / FIRST, 20), CHUNK),
    ("a bit", lambda f: flip(f / FIRST, CHUNK + 5), CHUNK),
    ("a hole over two chunks", lambda f: hole(f / FIRST, CHUNK - 9, 40), 2 * CHUNK),
    ("cut off", lambda f: os.truncate(f / FIRST, CHUNK + 9), 9 * CHUNK),
    ("longer", lambda f: (f / FIRST).open("ab").write(b"x" * 9999), 0),
    ("shard gone", lambda f: (f / FIRST).unlink(), 9 * CHUNK),
    ("config", lambda f: flip(f / "config.json", 3), 100),
    ("config gone", lambda f: (f / "config.json").unlink(), 100),
    ("index of hashes", lambda f: flip(f / (FIRST + ".idx"), 99), 0),
    ("index of hashes gone", lambda f: (f / (FIRST + ".idx")).unlink(), 0),
    ("index of hashes and a bit", lambda f: (flip(f / FIRST, 9999), (f / (FIRST + ".idx")).unlink()), 9 * CHUNK),  # type: ignore[func-returns-value]
    ("several", lambda f: (flip(f / FIRST, 9), flip(f / "tokenizer.json", 0)), CHUNK + 100),  # type: ignore[func-returns-value]
]


@pytest.mark.parametrize("named", [True, False], ids=["source named", "source on record"])
@pytest.mark.parametrize(("damage", "most"), [row[1:] for row in DAMAGE], ids=[row[0] for row in DAMAGE])
def test_what_is_damaged_is_fetched_and_the_rest_is_not(
    store: ObjectStore,
    model: ObjectId,
    folder: Path,
    arrays: Arrays,
    damage: Callable[[Path], object],
    most: int,
    named: bool,
) -> None:
    damage(store.paths.object(model))
    done = repair_model(store, model, LocalSource(folder) if named else None)
    assert done.damage and done.source_bytes <= most and not done.anew
    assert is_whole(store, model, arrays)


def test_what_is_whole_is_left_alone(store: ObjectStore, model: ObjectId, folder: Path) -> None:
    shutil.rmtree(folder)
    assert repair_model(store, model).damage == ()


def test_any_copy_of_the_model_will_do(
    store: ObjectStore, model: ObjectId, folder: Path, arrays: Arrays, tmp_path: Path
) -> None:
    from ebbtide.storage.models.registry.model_export import export

    with store.open(model) as stored:
        export(stored, str(tmp_path / "copy"))
    shutil.rmtree(folder)
    flip(store.paths.object(model) / FIRST, CHUNK + 5)
    assert repair_model(store, model, LocalSource(tmp_path / "copy")).source_bytes == CHUNK
    assert is_whole(store, model, arrays)


@pytest.mark.parametrize("named", [MANIFEST, COMMIT])
def test_a_damaged_manifest_means_importing_anew(
    store: ObjectStore, model: ObjectId, folder: Path, arrays: Arrays, named: str
) -> None:
    (store.paths.object(model) / named).write_bytes(b"junk")
    done = repair_model(store, model, terms=TERMS)
    assert done.anew and done.source == str(folder)
    assert_same(stored_arrays(store, model), arrays)
    assert damage_of(store.ports, model) == [] and store.refs.read("org/model", "latest").object == model


def test_a_damaged_manifest_and_another_model_changes_nothing(
    store: ObjectStore, model: ObjectId, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path / "other", seed=1)
    (store.paths.object(model) / MANIFEST).write_bytes(b"junk")
    with pytest.raises(Refused, match="holds another model"):
        repair_model(store, model, LocalSource(tmp_path / "other"), terms=TERMS)
    assert (store.paths.object(model) / MANIFEST).read_bytes() == b"junk"
    assert store.refs.read("org/model", "latest").object == model


@pytest.mark.parametrize(
    "wrong",
    [
        lambda folder: make_checkpoint(folder, seed=1),
        lambda folder: make_checkpoint(folder, layers=2),
        lambda folder: make_checkpoint(folder, shards=1),
        lambda folder: make_checkpoint(folder, config=False),
    ],
    ids=["other weights", "other layers", "other shards", "no small files"],
)
def test_a_wrong_source_is_refused_and_nothing_is_changed(
    store: ObjectStore, model: ObjectId, tmp_path: Path, wrong: Callable[[Path], object]
) -> None:
    wrong(tmp_path / "wrong")
    place = store.paths.object(model)
    flip(place / FIRST, CHUNK + 5)
    flip(place / "config.json", 2)
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    with pytest.raises(Refused, match=str(tmp_path / "wrong")):
        repair_model(store, model, LocalSource(tmp_path / "wrong"))
    after = {path.name: path.read_bytes() for path in place.iterdir()}
    right = (tmp_path / "model" / "config.json").read_bytes()  # every source but the last has the right one
    assert after == before | {"config.json": after["config.json"]}
    assert after["config.json"] in (before["config.json"], right)
    assert leftovers(store) == []


def test_a_place_that_cannot_be_made_is_one_error(
    store: ObjectStore, model: ObjectId, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mkdir(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    flip(store.paths.object(model) / FIRST, 9)
    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(NoRoom, match="quota"):
        repair_model(store, model)


def test_mending_takes_room_for_what_is_fetched_and_one_copy_and_no_more(
    store: ObjectStore, model: ObjectId, arrays: Arrays
) -> None:
    path = store.paths.object(model) / FIRST
    flip(path, CHUNK + 5)
    before, stored = path.read_bytes(), measure(store.ports).stored_bytes
    assert len(before) > 3 * CHUNK

    def tight(room_bytes: int) -> ObjectStore:
        return within(store, Budget(max_bytes=stored + room_bytes, keep_free_bytes=0))

    for too_small in (CHUNK - 1, len(before)):
        with pytest.raises(NoRoom, match="no room for"):
            repair_model(tight(too_small), model)
        assert path.read_bytes() == before and leftovers(store) == []
    repair_model(tight(len(before) + 2 * CHUNK), model)
    assert is_whole(store, model, arrays)


def test_without_a_record_a_source_is_asked_for(store: ObjectStore, model: ObjectId, folder: Path) -> None:
    shutil.rmtree(store.paths.root / "imports")
    flip(store.paths.object(model) / FIRST, 9)
    with pytest.raises(Refused, match="--from"):
        repair_model(store, model)


def test_a_source_on_record_that_is_gone_is_told(store: ObjectStore, model: ObjectId, folder: Path) -> None:
    shutil.rmtree(folder)
    flip(store.paths.object(model) / FIRST, 9)
    with pytest.raises(Refused, match="there is no directory"):
        repair_model(store, model)


def test_a_damaged_copy_is_no_help_and_does_no_harm(
    store: ObjectStore, model: ObjectId, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    content = bytearray((tmp_path / "copy" / FIRST).read_bytes())
    for offset in range(len(content) // 2, len(content), 1000):
        content[offset] ^= 1
    (tmp_path / "copy" / FIRST).write_bytes(content)
    for offset in range(CHUNK // 2, (store.paths.object(model) / FIRST).stat().st_size, CHUNK):
        flip(store.paths.object(model) / FIRST, offset)
    with pytest.raises(Refused, match="does not hold what was published"):
        repair_model(store, model, LocalSource(tmp_path / "copy"))
    assert leftovers(store) == []
