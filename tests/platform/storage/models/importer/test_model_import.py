"""Importing: the same tensors under a name, once, and nothing at all if something is wrong."""

import dataclasses
import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ebbtide.storage.errors import NoRoom, NotPublished, Refused, StorageError, TransferFailed, TransferTimeout
from ebbtide.storage.models.importer.import_progress import ImportProgress, Phase
from ebbtide.storage.models.importer.import_records import flights
from ebbtide.storage.models.importer.import_terms import How
from ebbtide.storage.models.sources import source_patience
from ebbtide.storage.models.sources.remote_source import RemoteSource
from ebbtide.storage.models.sources.source import Reading, SourceChanged, SourceFile
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.store_limits import Budget
from tests.builders.models import (
    Tampered,
    folder,  # noqa: F401 - a fixture
)
from tests.platform.storage.failing_calls import failing_at
from tests.platform.storage.models.http_server import served
from tests.platform.storage.models.made import TERMS, assert_same, bring, make_checkpoint, stored_arrays
from tests.platform.storage.stores import CHUNK, collect_all, leftovers, store_at, within

FIRST = "model-00001-of-00002.safetensors"
# A failure that may pass is tried again after a pause; tests that mean one try take one.
ONCE = dataclasses.replace(TERMS, deadline_s=0.5)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return store_at(tmp_path / "store")


def nothing_is_there(store: ObjectStore) -> bool:
    return not store.list_objects() and not store.refs.names()


# ---- what comes out


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_every_tensor_is_the_same_and_every_small_file(tmp_path: Path, store: ObjectStore, shards: int) -> None:
    arrays = make_checkpoint(tmp_path / "model", shards=shards)
    done = bring(store, tmp_path / "model")
    assert done.how is How.COPIED and done.ref == "org/model:latest" and done.moved_ref
    assert done.copied_bytes == done.size_bytes == store.manifest(done.object).size_bytes and done.saved_bytes == 0
    assert_same(stored_arrays(store, done.object), arrays)
    with store.open_ref("org/model", "latest") as stored:
        assert stored.id == done.object and stored.manifest.kind is Kind.MODEL
        for path in (tmp_path / "model").iterdir():
            if path.suffix == ".json":
                assert stored.read_bytes(path.name) == path.read_bytes()
        for entry in stored.manifest.files:
            if entry.name.endswith(".safetensors"):
                header = stored.header(entry.name)
                assert header.data_offset % 4096 == 0 and header.metadata == {"format": "pt"}
                whole = [one for one in header.entries if one.length % 4096 == 0 and one.length]
                assert all(one.offset % 4096 == 0 for one in whole)
    assert [path.name for path in leftovers(store)] == []


def test_progress_goes_up_to_all(store: ObjectStore, folder: Path) -> None:
    seen: list[ImportProgress] = []
    done = bring(store, folder, observe=seen.append)
    counts = [one.done_bytes for one in seen]
    assert counts == sorted(counts) and counts[-1] == done.size_bytes
    assert seen[0].phase is Phase.LOOKING and seen[-1].phase is Phase.PUBLISHING
    assert {one.total_bytes for one in seen[1:]} == {done.size_bytes}


def test_the_same_again_copies_nothing_and_says_so(store: ObjectStore, folder: Path) -> None:
    first = bring(store, folder)
    source = Tampered(folder)
    again = bring(store, source)
    assert (again.how, again.object, again.copied_bytes, again.moved_ref) == (How.KNOWN, first.object, 0, False)
    assert source.reads == 0
    other = bring(store, source, "other/name")
    assert (other.how, other.moved_ref, source.reads) == (How.KNOWN, True, 0)
    assert store.refs.read("other/name", "latest").object == first.object


def test_the_same_content_elsewhere_becomes_the_same_object(store: ObjectStore, folder: Path, tmp_path: Path) -> None:
    first = bring(store, folder)
    shutil.copytree(folder, tmp_path / "copy")
    for path in (tmp_path / "copy").glob("*.safetensors"):  # the same tensors in another order
        arrays = load_file(path)
        save_file(dict(reversed(list(arrays.items()))), path, {"format": "pt"})
    again = bring(store, tmp_path / "copy", "copy")
    assert (again.how, again.object) == (How.SAME, first.object)
    assert len(store.list_objects()) == 1 and leftovers(store) == []


def test_other_content_under_the_same_name_moves_the_name(store: ObjectStore, folder: Path, tmp_path: Path) -> None:
    first = bring(store, folder)
    make_checkpoint(tmp_path / "new", seed=1)
    second = bring(store, tmp_path / "new")
    assert second.object != first.object and second.moved_ref
    assert store.refs.read("org/model", "latest").object == second.object
    assert sorted(store.list_objects()) == sorted([first.object, second.object])


def test_without_a_name_it_is_there_until_it_is_collected(store: ObjectStore, folder: Path) -> None:
    done = bring(store, folder, None)
    assert done.ref == "" and store.refs.names() == [] and store.list_objects() == [done.object]
    collect_all(store)
    assert store.list_objects() == []
    again = bring(store, folder)  # the record leads to an object that is gone
    assert (again.how, again.object) == (How.COPIED, done.object)


def test_an_object_that_is_damaged_is_replaced_by_importing_it_again(store: ObjectStore, folder: Path) -> None:
    done = bring(store, folder)
    os.truncate(store.paths.object(done.object) / FIRST, 100)
    again = bring(store, folder)
    assert again.object == done.object and again.how in (How.COPIED, How.SAME)
    assert len(stored_arrays(store, done.object)) == 12


def test_a_source_that_is_not_a_model_changes_nothing(store: ObjectStore, folder: Path) -> None:
    (folder / FIRST).unlink()
    with pytest.raises(Refused, match="incomplete"):
        bring(store, folder)
    assert nothing_is_there(store) and leftovers(store) == []


def test_code_and_pickles_stay_outside(store: ObjectStore, folder: Path) -> None:
    (folder / "modeling.py").write_text("import os")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04")
    done = bring(store, folder)
    assert len(done.notes) == 2
    names = {path.name for path in store.paths.object(done.object).iterdir()}
    assert not names & {"modeling.py", "pytorch_model.bin"}


@pytest.mark.parametrize("content", [b"\x80\x04\x95abc", b"PK\x03\x04zip", b"\x80\x02}q\x00."])
def test_a_small_file_that_is_a_pickle_is_refused(store: ObjectStore, folder: Path, content: bytes) -> None:
    (folder / "tokenizer.model").write_bytes(content)
    with pytest.raises(Refused, match="Convert it once"):
        bring(store, folder, terms=ONCE)
    assert nothing_is_there(store) and leftovers(store) == []


# ---- names


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "", "a/../../b", "-x", "größe", "a:b", "a\0", "x" * 200])
def test_names_that_would_escape_are_refused_before_anything_is_read(
    store: ObjectStore, folder: Path, name: str
) -> None:
    source = Tampered(folder)
    with pytest.raises(Refused):
        bring(store, source, name)
    assert source.reads == 0 and nothing_is_there(store)


def test_a_name_that_differs_only_in_case_is_refused_before_anything_is_copied(
    store: ObjectStore, folder: Path, tmp_path: Path
) -> None:
    bring(store, folder, "org/model")
    make_checkpoint(tmp_path / "new", seed=1)
    source = Tampered(tmp_path / "new")
    with pytest.raises(Refused, match="only in case"):
        bring(store, source, "Org/Model")
    assert source.reads == 0 and len(store.list_objects()) == 1


# ---- sources that lie


def change_a_shard(folder: Path) -> None:
    content = bytearray((folder / FIRST).read_bytes())
    content[-1] ^= 1
    (folder / FIRST).write_bytes(content)


def swap_a_shard(folder: Path) -> None:
    other = folder / "other"
    shutil.copy(folder / FIRST, other)
    os.replace(other, folder / FIRST)


@pytest.mark.parametrize(
    "change",
    [
        change_a_shard,
        swap_a_shard,
        lambda folder: os.truncate(folder / FIRST, 9000),
        lambda folder: (folder / FIRST).unlink(),
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / "config.json").write_text('{"changed": 1}'),
        lambda folder: shutil.rmtree(folder),
    ],
    ids=["changed", "swapped", "truncated", "gone", "small file gone", "config changed", "all gone"],
)
@pytest.mark.parametrize("at", [1, 4])
def test_a_source_that_changes_meanwhile_is_told_once_and_nothing_is_published(
    store: ObjectStore, folder: Path, change: Callable[[Path], object], at: int
) -> None:
    source = Tampered(folder)
    source.before = lambda number: change(folder) if number == at else None
    with pytest.raises(Refused, match=r"changed while|there is no directory"):
        bring(store, source)
    assert source.reads <= 8, "nobody tried again"
    assert nothing_is_there(store) and leftovers(store) == []


def test_a_change_after_the_last_byte_is_noticed(store: ObjectStore, folder: Path) -> None:
    source = Tampered(folder)
    real = source.real.listing
    looks = [0]

    def listing() -> list[SourceFile]:
        looks[0] += 1
        if looks[0] == 3:  # 1: looking through, 2: before the work, 3: after it
            change_a_shard(folder)
        return real()

    source.listing = listing  # type: ignore[method-assign]
    with pytest.raises(SourceChanged, match="nothing was published"):
        bring(store, source)
    assert looks == [3] and nothing_is_there(store)


def test_a_read_that_fails_once_is_made_up_for_by_the_next_attempt(store: ObjectStore, folder: Path) -> None:
    source = Tampered(folder)

    def fail(number: int) -> None:
        if number == 4:
            raise TransferFailed("read", "there", errno=errno.EIO, offset=5)

    source.before = fail
    done = bring(store, source)
    assert done.how is How.COPIED and done.saved_bytes > 0
    assert done.saved_bytes + done.copied_bytes == done.size_bytes
    assert len(stored_arrays(store, done.object)) == 12


def test_a_source_that_always_fails_is_told_and_what_was_copied_is_kept(store: ObjectStore, folder: Path) -> None:
    source = Tampered(folder)

    def fail(number: int) -> None:
        if number >= 4:
            raise TransferFailed("read", "there", errno=errno.EIO, offset=5)

    source.before = fail
    with pytest.raises(StorageError, match="there at byte 5"):
        bring(store, source, terms=ONCE)
    assert nothing_is_there(store)
    done = bring(store, folder)
    assert done.saved_bytes > 0 and len(stored_arrays(store, done.object)) == 12


def test_a_read_that_fails_because_the_source_changed_is_told_as_that_and_at_once(
    store: ObjectStore, folder: Path
) -> None:
    """As of an object store that answers a stale version with an error of its own."""
    source = Tampered(folder)

    def fail(number: int) -> None:
        if number == 2:
            change_a_shard(folder)
            raise TransferFailed("read", "there", errno=errno.EIO, offset=5)

    source.before = fail
    began_s = time.monotonic()
    with pytest.raises(SourceChanged):
        bring(store, source)
    assert source.reads <= 4 and nothing_is_there(store) and leftovers(store) == []
    assert len(list(flights(store.paths).iterdir())) == 1, "there was no second attempt"
    assert time.monotonic() - began_s < 60


def test_a_work_directory_that_is_taken_away_meanwhile_costs_an_attempt_and_no_more(
    store: ObjectStore, folder: Path
) -> None:
    """As by a collector on a node to which this process's lease looked dead."""
    source = Tampered(folder)

    def take(number: int) -> None:
        if number == 6:
            (work,) = store.paths.incoming.iterdir()
            work.rename(store.paths.trash / "taken")

    source.before = take
    done = bring(store, source)
    assert done.how is How.COPIED and len(stored_arrays(store, done.object)) == 12


# ---- a source that tells no stamps


class Vague(Tampered):
    def listing(self) -> list[SourceFile]:
        return [dataclasses.replace(file, stamp="") for file in self.real.listing()]

    def open(self, file: SourceFile) -> Reading:
        real = next(one for one in self.real.listing() if one.name == file.name)
        return super().open(real)


def test_nothing_is_remembered_of_a_vague_source(store: ObjectStore, folder: Path) -> None:
    first = bring(store, Vague(folder))
    assert any("neither times nor versions" in note for note in first.notes)
    arrays = load_file(folder / FIRST)
    arrays["model.embed.weight"] = arrays["model.embed.weight"] + 1  # sizes and headers stay as they were
    save_file(arrays, folder / FIRST, {"format": "pt"})
    again = bring(store, Vague(folder))
    assert again.how is How.COPIED and again.object != first.object
    np.testing.assert_array_equal(
        stored_arrays(store, again.object)["model.embed.weight"], arrays["model.embed.weight"]
    )


def test_nothing_of_a_vague_source_is_mixed_with_an_earlier_attempt(store: ObjectStore, folder: Path) -> None:
    source = Vague(folder)

    def fail(number: int) -> None:
        if number == 4:
            raise KeyboardInterrupt

    source.before = fail
    with pytest.raises(KeyboardInterrupt):
        bring(store, source)
    arrays = {name: array + 1 if array.size > 5 else array for name, array in load_file(folder / FIRST).items()}
    save_file(arrays, folder / FIRST, {"format": "pt"})
    done = bring(store, Vague(folder))
    assert done.saved_bytes == 0
    found = stored_arrays(store, done.object)
    assert_same({name: found[name] for name in arrays}, arrays)


# ---- room


def test_room_is_asked_for_before_the_first_byte(store: ObjectStore, folder: Path) -> None:
    source = Tampered(folder)
    tight = within(store, Budget(max_bytes=100_000, keep_free_bytes=0))
    with pytest.raises(NoRoom, match=r"no room for .* -> raise pool\.storage\.models_max in the pool's file"):
        bring(tight, source)
    assert source.reads == 0 and nothing_is_there(store) and leftovers(store) == []


@pytest.mark.parametrize("number", [1, 5, 9, 14, 20, 30])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, folder: Path, number: int) -> None:
    whole = store_at(tmp_path / "store")
    from ebbtide.storage.files.durable_files import Disk

    full = store_at(tmp_path / "store", disk=Disk(failing_at(number, errno.ENOSPC, for_ever=True)))
    with pytest.raises(NoRoom):
        bring(full, folder)
    assert nothing_is_there(whole) and leftovers(whole) == []
    assert bring(whole, folder).how is How.COPIED


# ---- collectors


def test_an_object_that_is_collected_between_import_and_name_is_imported_again(
    store: ObjectStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(store, folder, None)
    real = store.open
    taken: list[str] = []

    def open_(wanted: str) -> object:
        if not taken:
            taken.append(wanted)
            collect_all(store)
        return real(wanted)

    monkeypatch.setattr(store, "open", open_)
    done = bring(store, folder)
    assert taken and done.how is How.COPIED and store.refs.read("org/model", "latest").object == done.object


def test_one_that_is_collected_again_and_again_is_told(
    store: ObjectStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_(wanted: str) -> object:
        raise NotPublished(f"object {wanted} is not published")

    monkeypatch.setattr(store, "open", open_)
    with pytest.raises(NotPublished, match="collected 3 times"):
        bring(store, folder)


def test_a_damaged_ref_is_written_anew(store: ObjectStore, folder: Path) -> None:
    done = bring(store, folder)
    path = store.paths.refs / "org%2Fmodel" / "latest"
    path.write_bytes(b"junk")
    assert bring(store, folder).moved_ref
    assert json.loads(path.read_bytes())["object"] == done.object


def test_a_checkpoint_without_a_page_of_weights_is_a_model_too(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    save_file({}, tmp_path / "m" / "model.safetensors")
    done = bring(store, tmp_path / "m")
    assert done.num_tensors == 0 and stored_arrays(store, done.object) == {}
    assert store.manifest(done.object).chunk_bytes == CHUNK


# ---- over the network, and never waiting for ever


def test_a_model_comes_over_http_too(store: ObjectStore, folder: Path) -> None:
    here = bring(store, folder)
    with served(folder) as (url, manners):
        done = bring(store, RemoteSource(url, sleep=lambda _seconds: None), "over/http")
        assert (done.how, done.object) == (How.SAME, here.object)
        asked = [one for one in manners.requests if one[0] == "GET" and one[1].endswith(".safetensors")]
        assert asked and all(one[2].startswith("bytes=") for one in asked)
        assert bring(store, RemoteSource(url), "again").how is How.KNOWN
        manners.requests.clear()
        change_a_shard(folder)
        assert bring(store, RemoteSource(url), "changed").object != here.object


def test_a_source_that_hangs_while_it_is_looked_through_is_told(
    store: ObjectStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = threading.Event()
    source = Tampered(folder)

    def hang() -> list[SourceFile]:
        end.wait(100)
        return []

    source.listing = hang  # type: ignore[method-assign]
    monkeypatch.setattr(source_patience, "PATIENCE_S", 0.2)
    with pytest.raises(TransferTimeout, match=f"cannot look through {folder}"):
        bring(store, source)
    end.set()
    assert nothing_is_there(store)
