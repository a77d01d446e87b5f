"""What is exported is what was imported, for any tool; nothing is overwritten, and a cut costs little."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]
from safetensors.numpy import load_file

from ebbtide.storage.errors import Corrupt, NoRoom, Refused, TransferFailed, TransferTimeout
from ebbtide.storage.files.descriptor import Descriptor
from ebbtide.storage.models.registry import model_export
from ebbtide.storage.models.registry.model_export import MARKER, Exported, export
from ebbtide.storage.names import ObjectId
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.stored_object import StoredObject
from tests.platform.storage.models.made import Arrays, assert_same, bring, make_checkpoint
from tests.platform.storage.stale import stale_at
from tests.platform.storage.stores import CHUNK, store_at

FIRST = "model-00001-of-00002.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"


@pytest.fixture
def arrays(folder: Path) -> Arrays:
    return make_checkpoint(folder, layers=5)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return store_at(tmp_path / "store")


@pytest.fixture
def model(store: ObjectStore, folder: Path, arrays: Arrays) -> ObjectId:
    return bring(store, folder).object


def export_to(store: ObjectStore, model: ObjectId, where: object, stop_at: int = 10**12) -> Exported:
    def progress(done: int, _total: int) -> None:
        if done >= stop_at:
            raise KeyboardInterrupt

    with store.open(model) as stored:
        return export(stored, str(where), progress=progress)


def check(where: Path, folder: Path, arrays: Arrays) -> None:
    """It is what was imported, and nothing else is there."""
    assert {path.name for path in where.iterdir()} == {path.name for path in folder.iterdir()}
    found: dict[str, Any] = {}
    for path in where.iterdir():
        if path.suffix == ".safetensors":
            found |= load_file(path)
        else:
            assert path.read_bytes() == (folder / path.name).read_bytes()
    assert_same(found, arrays)


def test_any_tool_reads_what_is_exported(
    store: ObjectStore, model: ObjectId, folder: Path, arrays: Arrays, tmp_path: Path
) -> None:
    done = export_to(store, model, tmp_path / "deep" / "out")
    check(tmp_path / "deep" / "out", folder, arrays)
    assert done.saved_bytes == 0 and done.written_bytes == store.manifest(model).size_bytes
    assert set(done.files) == {path.name for path in folder.iterdir()}
    again = bring(store, tmp_path / "deep" / "out", "again")
    assert again.object == model, "what was exported imports as the same"


def test_transformers_reads_what_is_exported(store: ObjectStore, tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "hf", max_shard_size="100KB")
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 1
    done = bring(store, tmp_path / "hf")
    export_to(store, done.object, tmp_path / "out")
    for place in (tmp_path / "out", store.paths.object(done.object)):
        found = transformers.LlamaForCausalLM.from_pretrained(place, dtype=torch.bfloat16)
        state = found.state_dict()
        for name, tensor in model.state_dict().items():
            assert torch.equal(state[name], tensor), name


@pytest.mark.parametrize("there", ["a_file", "config.json", ".hidden", "folder/"])
def test_nothing_is_overwritten(store: ObjectStore, model: ObjectId, tmp_path: Path, there: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    path = out / there
    if there.endswith("/"):
        path.mkdir()
    else:
        path.write_text("precious")
    with pytest.raises(Refused, match="not empty"):
        export_to(store, model, out)
    assert [one.name for one in out.iterdir()] == [there.strip("/")]
    assert there.endswith("/") or path.read_text() == "precious"


def test_a_finished_export_is_not_written_again(store: ObjectStore, model: ObjectId, tmp_path: Path) -> None:
    export_to(store, model, tmp_path / "out")
    with pytest.raises(Refused, match="not empty"):
        export_to(store, model, tmp_path / "out")


def test_a_directory_that_cannot_be_listed_in_the_end_is_one_error(
    store: ObjectStore, model: ObjectId, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = store.manifest(model).size_bytes

    def progress(done: int, _total: int) -> None:
        if done == total:
            stale_at(monkeypatch, tmp_path / "out")

    with store.open(model) as stored, pytest.raises(TransferFailed, match=r"out: .*ESTALE"):
        export(stored, str(tmp_path / "out"), progress=progress)


def test_a_file_in_the_way_is_refused(store: ObjectStore, model: ObjectId, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(Refused, match="is a file"):
        export_to(store, model, tmp_path / "out")


def test_an_empty_directory_is_used(
    store: ObjectStore, model: ObjectId, folder: Path, arrays: Arrays, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    export_to(store, model, tmp_path / "out")
    check(tmp_path / "out", folder, arrays)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.95])
def test_an_export_that_was_cut_off_goes_on(
    store: ObjectStore, model: ObjectId, folder: Path, arrays: Arrays, tmp_path: Path, share: float
) -> None:
    out = tmp_path / "out"
    cut = int(store.manifest(model).size_bytes * share)
    with pytest.raises(KeyboardInterrupt):
        export_to(store, model, out, stop_at=cut)
    assert (out / MARKER).exists()
    done = export_to(store, model, out)
    assert done.saved_bytes >= cut - CHUNK and done.saved_bytes + done.written_bytes == store.manifest(model).size_bytes
    check(out, folder, arrays)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "tamper",
    [
        flip,
        lambda path: path.write_bytes(b""),
        lambda path: os.truncate(path, 5000),
        lambda path: path.open("ab").write(b"more"),
        lambda path: path.unlink(),
        lambda path: path.rename(path.with_name(f".{path.name}.part")),
    ],
    ids=["flipped", "emptied", "cut", "longer", "gone", "not yet named"],
)
def test_what_was_written_before_is_checked_and_not_believed(
    store: ObjectStore, model: ObjectId, folder: Path, arrays: Arrays, tmp_path: Path, tamper: Callable[[Path], object]
) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        export_to(store, model, out, stop_at=int(store.manifest(model).size_bytes * 0.9))
    tamper(out / FIRST)
    export_to(store, model, out)
    check(out, folder, arrays)


def test_an_unfinished_export_of_another_model_is_left_alone(
    store: ObjectStore, model: ObjectId, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path / "other", seed=1)
    other = bring(store, tmp_path / "other", "other").object
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        export_to(store, model, out, stop_at=1)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(Refused, match=f"an export of object {model} that has not ended"):
        export_to(store, other, out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    (out / MARKER).write_text("junk")
    with pytest.raises(Refused, match="something unknown"):
        export_to(store, model, out)


def test_what_a_kill_leaves_beside_the_marker_is_not_in_the_way(
    store: ObjectStore, model: ObjectId, folder: Path, arrays: Arrays, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / f".{MARKER}.0123456789abcdef.tmp").write_text("{")
    export_to(store, model, out)
    check(out, folder, arrays)


def test_a_damaged_model_is_not_exported(store: ObjectStore, model: ObjectId, tmp_path: Path) -> None:
    flip(store.paths.object(model) / FIRST)
    with pytest.raises(Corrupt, match=f"{FIRST} of object {model}"):
        export_to(store, model, tmp_path / "out")
    assert not (tmp_path / "out" / FIRST).exists(), "never a wrong file under its name"
    assert (tmp_path / "out" / MARKER).exists()


def test_a_full_disk_is_told(
    store: ObjectStore, model: ObjectId, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        if offset > CHUNK:
            raise OSError(errno.ENOSPC, "full")
        return real(fd, data[:1000], offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(NoRoom, match=r"out.*full"):
        export_to(store, model, tmp_path / "out")


def test_a_disk_that_is_full_at_close_is_told(
    store: ObjectStore, model: ObjectId, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Descriptor.close

    def close(file: Descriptor) -> None:
        real(file)
        raise OSError(errno.EDQUOT, "quota")

    monkeypatch.setattr(Descriptor, "close", close)
    with pytest.raises(NoRoom, match=r"close .*out.*quota"):
        export_to(store, model, tmp_path / "out")
    monkeypatch.undo()
    export_to(store, model, tmp_path / "out")


def test_a_chunk_that_comes_after_the_deadline_reaches_no_file_that_was_opened_since(
    store: ObjectStore, model: ObjectId, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[Any] = []

    def time_out(_stored: object, name: str, *, consume: Any, **_more: object) -> None:
        late.append(consume)
        raise TransferTimeout("check", name, after_s=1)

    monkeypatch.setattr(StoredObject, "read_file", time_out)
    with pytest.raises(TransferTimeout):
        export_to(store, model, tmp_path / "out")
    others = [os.open(tmp_path / f"other{number}", os.O_RDWR | os.O_CREAT) for number in range(8)]
    with pytest.raises(TransferFailed):
        late[0](0, memoryview(b"weights"))
    assert [os.fstat(other).st_size for other in others] == [0] * 8
    for other in others:
        os.close(other)


def test_a_link_in_the_place_of_a_part_is_not_followed(store: ObjectStore, model: ObjectId, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        export_to(store, model, out, stop_at=1)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    part = out / f".{FIRST}.part"
    part.unlink(missing_ok=True)
    part.symlink_to(victim)
    with pytest.raises(TransferFailed, match="symbolic links"):
        export_to(store, model, out)
    assert victim.read_text() == "precious"


# ---- to URLs


class Bucket:
    """An object store in memory."""

    def __init__(self) -> None:
        self.fs = fsspec.filesystem("memory")

    def names(self) -> set[str]:
        return {path.rpartition("/")[2] for path in self.fs.find("/bucket")}

    def content(self, name: str) -> bytes:
        found: bytes = self.fs.cat_file(f"/bucket/out/{name}")
        return found


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = Bucket()
    monkeypatch.setattr(model_export, "STRETCH_BYTES", 3 * CHUNK)
    yield found
    if found.fs.exists("/bucket"):
        found.fs.rm("/bucket", recursive=True)


URL = "memory://bucket/out"


def check_bucket(bucket: Bucket, folder: Path, arrays: Arrays, tmp_path: Path) -> None:
    assert bucket.names() == {path.name for path in folder.iterdir()}
    (tmp_path / "down").mkdir()
    for name in bucket.names():
        (tmp_path / "down" / name).write_bytes(bucket.content(name))
    check(tmp_path / "down", folder, arrays)


def test_a_url_gets_the_same(
    store: ObjectStore, model: ObjectId, bucket: Bucket, folder: Path, arrays: Arrays, tmp_path: Path
) -> None:
    done = export_to(store, model, URL)
    assert done.where == URL and done.written_bytes == store.manifest(model).size_bytes
    check_bucket(bucket, folder, arrays, tmp_path)
    with pytest.raises(Refused, match="not empty"):
        export_to(store, model, URL)


def test_an_upload_that_was_cut_off_sends_finished_files_no_second_time(
    store: ObjectStore, model: ObjectId, bucket: Bucket, folder: Path, arrays: Arrays, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        export_to(store, model, URL, stop_at=int(store.manifest(model).size_bytes * 0.9))
    assert MARKER in bucket.names()
    done_before = json.loads(bucket.content(MARKER))["done"]
    assert FIRST in done_before
    done = export_to(store, model, URL)
    assert done.saved_bytes == sum(done_before.values())
    check_bucket(bucket, folder, arrays, tmp_path)


def test_an_uploaded_file_of_another_length_is_sent_again(
    store: ObjectStore, model: ObjectId, bucket: Bucket, folder: Path, arrays: Arrays, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        export_to(store, model, URL, stop_at=int(store.manifest(model).size_bytes * 0.9))
    bucket.fs.pipe_file(f"/bucket/out/{FIRST}", b"short")
    export_to(store, model, URL)
    check_bucket(bucket, folder, arrays, tmp_path)


def test_what_is_there_is_not_overwritten_at_a_url_either(store: ObjectStore, model: ObjectId, bucket: Bucket) -> None:
    bucket.fs.pipe_file("/bucket/out/config.json", b"precious")
    with pytest.raises(Refused, match="not empty"):
        export_to(store, model, URL)
    assert bucket.content("config.json") == b"precious" and bucket.names() == {"config.json"}


def test_an_upload_that_did_not_arrive_whole_is_told(
    store: ObjectStore, model: ObjectId, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MemoryFileSystem.info

    def info(self: object, path: str, **more: object) -> dict[str, Any]:
        found: dict[str, Any] = real(self, path, **more)
        return found | {"size": found["size"] - 1} if path.endswith(FIRST) else found

    monkeypatch.setattr(MemoryFileSystem, "info", info)
    with pytest.raises(TransferFailed, match=f"{FIRST}.* bytes were written, and .* are there"):
        export_to(store, model, URL)
    assert MARKER in bucket.names()


@pytest.mark.parametrize("url", ["https://host/x", "http://host/x", "s3://b/x", "a::memory://x"])
def test_where_nothing_can_be_written_is_refused(store: ObjectStore, model: ObjectId, url: str) -> None:
    with pytest.raises(Refused):
        export_to(store, model, url)
