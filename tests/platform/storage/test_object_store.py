"""Publishing and reading: the round trip."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from ebbtide.storage.errors import Corrupt, NotPublished, Refused, TransferFailed
from ebbtide.storage.leases.object_leases import Lease
from ebbtide.storage.names import COMMIT, attempt
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.objects.stored_file import StoredFile, read_stored
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide.storage.transport.transport import Transport
from tests.platform.storage.stale import stale_at
from tests.platform.storage.stores import CHUNK, KEY, LocalLeases, publish_model, stage_tensors, store_at, tensors


def test_what_was_published_is_read_again_by_ref_and_by_id(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    object_id = publish_model(store)
    for found in (store.open_ref("org/model", "latest"), store.open(object_id)):
        with found:
            assert found.id == object_id
            assert found.read_bytes("config.json") == b'{"layers": 1}'
            arrays = found.read_arrays("model.safetensors")
            assert arrays.keys() == tensors().keys()
            for name, array in tensors().items():
                np.testing.assert_array_equal(arrays[name], array)


def test_any_tool_opens_the_files(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    path = store.paths.object(store.open(publish_model(store)).id) / "model.safetensors"
    stock = safetensors.numpy.load_file(path)
    for name, array in tensors().items():
        np.testing.assert_array_equal(stock[name], array)


def test_a_header_of_several_chunks_is_read(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    arrays = {f"{'layer.' * 20}{number}": np.full(3, number % 256, dtype=np.uint8) for number in range(1000)}
    with store.publication(Kind.MODEL, KEY, chunk_bytes=CHUNK) as work:
        work.add(stage_tensors(work.staging, "model.safetensors", arrays))
        object_id = work.publish()
    with store.open(object_id) as found:
        header = found.header("model.safetensors")
        assert header.data_offset > 2 * CHUNK and len(header.entries) == 1000
        np.testing.assert_array_equal(found.read_arrays("model.safetensors")[f"{'layer.' * 20}77"], [77, 77, 77])


def test_a_header_costs_one_read_and_none_once_its_file_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    def counted(transport: Transport, file: StoredFile, **how: Any) -> TransferReport:
        reads.append(file.entry.name)
        return read_stored(transport, file, **how)

    monkeypatch.setattr("ebbtide.storage.objects.stored_object.read_stored", counted)
    store = store_at(tmp_path / "store")
    object_id = publish_model(store)
    with store.open(object_id) as found:
        header = found.header("model.safetensors")
        assert found.header("model.safetensors") is header
        assert reads == ["model.safetensors"]
    reads.clear()
    with store.open(object_id) as found:
        seen: list[int] = []
        found.read_file("model.safetensors", consume=lambda offset, memory: seen.append(len(memory)))
        assert found.header("model.safetensors") == header and sum(seen) == header.file_bytes
        assert reads == ["model.safetensors"]
    with store.open(object_id) as found:
        found.read_file("model.safetensors", verify=False)
        reads.clear()
        assert found.header("model.safetensors") == header
        assert reads == ["model.safetensors"], "what nobody has checked must not be believed"


def test_a_header_that_came_wrong_is_not_kept(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    object_id = publish_model(store)
    path = store.paths.object(object_id) / "model.safetensors"
    path.chmod(0o600)
    right = path.read_bytes()
    with store.open(object_id) as found:
        path.write_bytes(b"\xff" + right[1:])
        with pytest.raises(Corrupt):
            found.read_file("model.safetensors")
        with pytest.raises(Corrupt):
            found.header("model.safetensors")
        path.write_bytes(right)
        assert found.header("model.safetensors").file_bytes == len(right)


def test_the_same_content_is_the_same_object(tmp_path: Path) -> None:
    one, other = store_at(tmp_path / "one"), store_at(tmp_path / "other")
    assert publish_model(one) == publish_model(one, tag="again") == publish_model(other)
    assert publish_model(one, seed=1) != publish_model(one)
    assert [str(ref) for ref in one.refs.list()] == ["org/model:again", "org/model:latest"]
    assert list(one.paths.incoming.iterdir()) == []


def test_only_the_owner_can_look_inside(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    publish_model(store)
    for path in [store.paths.root, *store.paths.root.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_what_is_not_there_is_not_published(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    with pytest.raises(NotPublished, match="tags of org/model: none"):
        store.open_ref("org/model", "latest")
    with pytest.raises(NotPublished, match="is not published"):
        store.open("0" * 64)
    object_id = publish_model(store)
    (store.paths.object(store.open(object_id).id) / COMMIT).unlink()
    with pytest.raises(NotPublished, match="never committed"):
        store.open_ref("org/model", "latest")


def test_what_cannot_be_looked_at_is_one_error_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_at(tmp_path / "store")
    work, objects = store.paths.work(attempt("a")), store.paths.objects
    for place in (work, objects):
        stale_at(monkeypatch, place)
    with pytest.raises(TransferFailed, match=rf"{work}.*ESTALE"):
        store.join("a", Kind.MODEL, KEY)
    with pytest.raises(TransferFailed, match=rf"{objects}.*ESTALE"):
        store.list_objects()


def test_an_object_that_cannot_be_looked_at_is_one_error_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_at(tmp_path / "store")
    directory = store.paths.object(publish_model(store))
    (directory / COMMIT).unlink()
    stale_at(monkeypatch, directory)
    with pytest.raises(TransferFailed, match="ESTALE"):
        store.manifest(directory.name)


class Worst(LocalLeases):
    """Others act just before an object is held."""

    def __init__(self) -> None:
        super().__init__()
        self.act: Callable[[], object] = lambda: None

    @contextmanager
    def hold(self, subject: str, *, comes_back: bool = False) -> Iterator[Lease]:
        act, self.act = self.act, lambda: None
        act()
        with super().hold(subject, comes_back=comes_back) as lease:
            yield lease


@pytest.mark.proves("an object is held before it is looked at")
def test_an_object_that_goes_before_it_is_held_is_not_opened(tmp_path: Path) -> None:
    leases = Worst()
    store = store_at(tmp_path / "store", leases=leases)
    object_id = publish_model(store)
    leases.act = lambda: store.quarantine(object_id)
    with pytest.raises(NotPublished):
        store.open(object_id)
    assert not leases.living()


@pytest.mark.proves("a ref that was replaced meanwhile is read again")
def test_a_ref_that_is_replaced_while_its_object_is_opened_leads_to_the_new_one(tmp_path: Path) -> None:
    leases, other = Worst(), store_at(tmp_path / "store")
    old = publish_model(other)

    def replace() -> None:
        publish_model(other, seed=1)
        other.quarantine(old)

    leases.act = replace
    with store_at(tmp_path / "store", leases=leases).open_ref("org/model", "latest") as found:
        assert found.id == other.refs.read("org/model", "latest").object != old


@pytest.mark.proves("no store is made among a stranger's files")
def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(Refused, match=r"thesis\.tex"):
        store_at(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
