"""Wrong bytes are never handed on: each damage by name, what it raises, and where it says that it is."""

import dataclasses
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ebbtide.storage.errors import Corrupt, NotPublished, Refused, StorageError, TransferFailed
from ebbtide.storage.integrity.chunk_hash import ContentHash
from ebbtide.storage.integrity.chunk_index import Index
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.names import COMMIT, MANIFEST, ObjectId
from ebbtide.storage.objects import object_contents, stored_file
from ebbtide.storage.objects.manifest import FileEntry, Manifest
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.stored_file import StoredFile, read_stored
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide.storage.transport.transport import Consume, Pending, Range
from tests.platform.storage.stale import stale_at
from tests.platform.storage.stores import (
    CHUNK,
    POOL,
    overwrite,
    publish_model,
    random_bytes,
    store_at,
    tensors,
)

FILE = "model.safetensors"


@dataclass(frozen=True)
class Published:
    """A store with one object of two files, and a second one."""

    store: ObjectStore
    id: ObjectId
    other: ObjectId

    def path(self, name: str = FILE) -> Path:
        return self.store.paths.object(self.id) / name

    def read_all(self) -> dict[str, bytes]:
        """As a loader does: by ref, all files."""
        with self.store.open_ref("org/model", "latest") as found:
            return {entry.name: found.read_bytes(entry.name) for entry in found.manifest.files}


@pytest.fixture
def published(tmp_path: Path) -> Published:
    store = store_at(tmp_path / "store")
    other = publish_model(store, seed=1, tag="other")
    return Published(store, publish_model(store), other)


def flip(path: Path, offset: int) -> None:
    overwrite(path, offset, bytes([path.read_bytes()[offset] ^ 1]))


def swap_chunks(path: Path) -> None:
    content = path.read_bytes()
    overwrite(path, CHUNK, content[2 * CHUNK : 3 * CHUNK] + content[CHUNK : 2 * CHUNK])


def edit(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


def link_instead(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def directory_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def uncommit(p: Published) -> None:
    p.path(COMMIT).unlink()
    p.path(MANIFEST).unlink()


def put_other_instead(p: Published) -> None:
    shutil.rmtree(p.path(""))
    shutil.copytree(p.store.paths.object(p.other), p.path(""))


MATRIX: dict[str, tuple[Callable[[Published], object], type[StorageError], str]] = {
    "file truncated": (lambda p: os.truncate(p.path(), 100_000), Corrupt, r"model\.safetensors at byte 100000"),
    "file empty": (lambda p: os.truncate(p.path(), 0), Corrupt, r"model\.safetensors at byte 0"),
    "file missing": (lambda p: p.path().unlink(), Corrupt, r"model\.safetensors: this file of the object is missing"),
    "extra bytes": (
        lambda p: os.truncate(p.path(), p.path().stat().st_size + 1),
        Corrupt,
        r"model\.safetensors at byte",
    ),
    "hole of zeros": (
        lambda p: overwrite(p.path(), 2 * CHUNK, bytes(4096)),
        Corrupt,
        rf"safetensors at byte {2 * CHUNK}",
    ),
    "a bit flipped in the first chunk": (lambda p: flip(p.path(), 3), Corrupt, r"model\.safetensors at byte 0"),
    "a bit flipped in the last chunk": (
        lambda p: flip(p.path(), p.path().stat().st_size - 1),
        Corrupt,
        rf"model\.safetensors at byte {4 * CHUNK}",
    ),
    "two chunks swapped": (
        lambda p: swap_chunks(p.path()),
        Corrupt,
        rf"model\.safetensors at byte ({CHUNK}|{2 * CHUNK}):",
    ),
    "a chunk of another object": (
        lambda p: overwrite(p.path(), CHUNK, (p.store.paths.object(p.other) / FILE).read_bytes()[CHUNK : 2 * CHUNK]),
        Corrupt,
        rf"model\.safetensors at byte {CHUNK}",
    ),
    "all of another object's file": (
        lambda p: shutil.copy(p.store.paths.object(p.other) / FILE, p.path()),
        Corrupt,
        r"model\.safetensors at byte",
    ),
    "file and index of another object": (
        lambda p: [shutil.copy(p.store.paths.object(p.other) / name, p.path(name)) for name in (FILE, FILE + ".idx")],
        Corrupt,
        r"model\.safetensors\.idx: this index is not the one that the manifest names",
    ),
    "index of another object": (
        lambda p: shutil.copy(p.store.paths.object(p.other) / (FILE + ".idx"), p.path(FILE + ".idx")),
        Corrupt,
        r"model\.safetensors\.idx: this index is not the one",
    ),
    "index missing": (lambda p: p.path(FILE + ".idx").unlink(), Corrupt, r"model\.safetensors\.idx: .* missing"),
    "a bit flipped in the index": (lambda p: flip(p.path(FILE + ".idx"), 70), Corrupt, r"model\.safetensors\.idx"),
    "index truncated": (lambda p: os.truncate(p.path(FILE + ".idx"), 10), Corrupt, r"model\.safetensors\.idx"),
    "small file changed": (lambda p: overwrite(p.path("config.json"), 2, b"X"), Corrupt, r"config\.json at byte 0"),
    "a link in a file's place": (
        lambda p: link_instead(p.path()),
        Corrupt,
        r"model\.safetensors: .*no ordinary file",
    ),
    "a directory in a file's place": (
        lambda p: directory_instead(p.path("config.json")),
        Corrupt,
        r"config\.json: .*no ordinary file",
    ),
    "half published": (
        uncommit,
        NotPublished,
        r"was never committed: there is no .*manifest\.json",
    ),
    "COMMIT missing": (lambda p: p.path(COMMIT).unlink(), NotPublished, r"was never committed: there is no .*COMMIT"),
    "manifest missing": (lambda p: p.path(MANIFEST).unlink(), NotPublished, r"there is no .*manifest\.json"),
    "manifest edited": (
        lambda p: edit(p.path(MANIFEST), b"bfloat16", b"bfloat17"),
        Corrupt,
        r"COMMIT: COMMIT names another manifest",
    ),
    "manifest and COMMIT of another object": (
        lambda p: [shutil.copy(p.store.paths.object(p.other) / name, p.path(name)) for name in (MANIFEST, COMMIT)],
        Corrupt,
        r"manifest\.json: this is the manifest of object",
    ),
    "COMMIT edited": (lambda p: edit(p.path(COMMIT), b"sha256", b"sha255"), Corrupt, "COMMIT"),
    "COMMIT empty": (lambda p: os.truncate(p.path(COMMIT), 0), Corrupt, "COMMIT"),
    "object gone": (lambda p: shutil.rmtree(p.path("")), NotPublished, r"points to object .* is not published"),
    "another object in its place": (
        put_other_instead,
        Corrupt,
        r"manifest\.json: this is the manifest of object",
    ),
}


@pytest.mark.proves(
    "COMMIT names the manifest",
    "a manifest is that of its object",
    "a small file is compared with its digest",
    "an index is the one that the manifest names",
    "each file of an object has its length",
    "each file of an object is an ordinary one",
    "without COMMIT it is no object",
)
@pytest.mark.parametrize(("damage", "error", "place"), MATRIX.values(), ids=MATRIX.keys())
def test_damage_is_told_by_name_and_no_wrong_byte_is_handed_on(
    published: Published, damage: Callable[[Published], object], error: type[StorageError], place: str
) -> None:
    damage(published)
    with pytest.raises(error, match=place) as told:
        published.read_all()
    assert published.id in str(told.value) or str(published.path("")) in str(told.value)
    with published.store.open_ref("org/model", "other") as other:
        np.testing.assert_array_equal(other.read_arrays(FILE)["layer.weight"], tensors(1)["layer.weight"])


def test_chunks_before_the_damage_come_and_the_damaged_one_does_not(published: Published) -> None:
    content = published.path().read_bytes()
    flip(published.path(), 2 * CHUNK + 7)
    came: list[int] = []

    def keep(offset: int, memory: memoryview) -> None:
        assert memory == content[offset : offset + len(memory)]
        came.append(offset)

    with published.store.open(published.id) as found, pytest.raises(Corrupt):
        found.read_file(FILE, consume=keep)
    assert 2 * CHUNK not in came
    with published.store.open(published.id) as found:
        came.clear()
        ranges = [Range(0, 2 * CHUNK), Range(3 * CHUNK, CHUNK)]
        found.read_file(FILE, consume=keep, ranges=ranges)
    assert sorted(came) == [0, CHUNK, 3 * CHUNK], "the other chunks can be read"


class Lying:
    """A transport whose first bytes are wrong, as from a bad page in a cache."""

    def __init__(self, times: int = 1) -> None:
        self._real, self._lock, self.times = PosixTransport(POOL, threads=2), threading.Lock(), times

    def read(
        self,
        path: Path,
        ranges: Iterable[Range],
        consume: Consume,
        *,
        into: memoryview | None = None,
        deadline_s: float,
    ) -> TransferReport:
        def lie(offset: int, memory: memoryview) -> Pending | None:
            with self._lock:
                self.times -= 1
                if self.times >= 0:
                    memory[5] ^= 1
            return consume(offset, memory)

        return self._real.read(path, ranges, lie, into=into, deadline_s=deadline_s)

    write = PosixTransport.write


@pytest.mark.parametrize("in_place", [True, False])
def test_a_chunk_that_came_wrong_is_read_once_more_and_counted(tmp_path: Path, in_place: bool) -> None:
    object_id = publish_model(store_at(tmp_path / "store"))
    lying = Lying(times=2)
    store = store_at(tmp_path / "store", transport=lying)
    with store.open(object_id) as found:
        content = (store.paths.object(object_id) / FILE).read_bytes()
        memory = bytearray(len(content))

        def copy(offset: int, part: memoryview) -> None:
            memory[offset : offset + len(part)] = part

        report = found.read_file(FILE, into=memoryview(memory)) if in_place else found.read_file(FILE, consume=copy)
        assert memory == content
        assert report.retries == 2
        lying.times = 1
        assert found.read_bytes("config.json") == b'{"layers": 1}'


@pytest.mark.proves("a second look that fails means damage")
def test_the_second_look_decides(published: Published) -> None:
    with published.store.open(published.id) as found:
        file = found.file(FILE)
        content = published.path().read_bytes()
        flip(published.path(), 5)
        looks: list[Range] = []

        def good(_path: Path, part: Range) -> bytes:
            looks.append(part)
            return content[part.offset : part.end]

        transport = published.store.ports.transport
        assert read_stored(transport, file, read_again=good).retries == 1
        assert looks == [Range(0, CHUNK)]
        for bad in (b"", content[: CHUNK - 1], content[CHUNK : 2 * CHUNK]):
            with pytest.raises(Corrupt, match="repair the object, or import it again"):
                read_stored(transport, file, read_again=lambda _path, _part, bad=bad: bad)  # type: ignore[misc]

        def failing(_path: Path, _part: Range) -> bytes:
            raise OSError(5, "Input/output error")

        with pytest.raises(Corrupt) as told:
            read_stored(transport, file, read_again=failing)
        assert isinstance(told.value.__cause__, OSError)


def test_unverified_reads_give_what_is_there(published: Published) -> None:
    flip(published.path(), 5)
    memory = bytearray(published.path().stat().st_size)
    with published.store.open(published.id) as found:
        found.read_file(FILE, into=memoryview(memory), verify=False)
    assert memory == published.path().read_bytes()


def test_parts_are_rounded_out_to_chunks_in_the_order_in_which_they_are_wanted(published: Published) -> None:
    with published.store.open(published.id) as found:
        file, size = found.file(FILE), found.manifest.file(FILE).size_bytes
        wanted = [Range(3 * CHUNK + 1, 1), Range(CHUNK - 1, 2), Range(5, 0), Range(0, 9)]
        assert file.chunks(wanted) == [Range(3 * CHUNK, CHUNK), Range(0, CHUNK), Range(CHUNK, CHUNK)]
        assert file.chunks()[-1].end == size
        for bad in (Range(0, size + 1), Range(-1, 1), Range(5, -1)):
            with pytest.raises(Refused, match="is not in"):
                found.read_file(FILE, ranges=[bad])
        with pytest.raises(Refused, match="has no file 'x'"):
            found.read_file("x")
        with pytest.raises(Refused, match="small files are checked as a whole"):
            found.index("config.json")


@pytest.mark.proves("only whole chunks are checked")
def test_a_transport_with_buffers_smaller_than_a_chunk_is_refused_not_trusted(published: Published) -> None:
    small = PosixTransport(BufferPool(2, CHUNK // 2), threads=1)
    with published.store.open(published.id) as found, pytest.raises(Refused, match="give it buffers of at least"):
        read_stored(small, found.file(FILE))


def test_larger_buffers_than_chunks_are_well(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    object_id = publish_model(store)
    large = store_at(tmp_path / "store", transport=PosixTransport(BufferPool(2, 4 * CHUNK), threads=2))
    with large.open(object_id) as found:
        np.testing.assert_array_equal(found.read_arrays(FILE)["norm"], tensors()["norm"])


@pytest.mark.proves("an object that was removed meanwhile is not published, and not failing")
def test_an_object_that_is_removed_while_it_is_open_is_not_published(published: Published) -> None:
    with published.store.open(published.id) as found:
        shutil.rmtree(published.path(""))
        with pytest.raises(NotPublished, match="removed while"):
            found.read_bytes(FILE)


class Gone(PosixTransport):
    """Its files are answered for with an error."""

    def __init__(self, code: int) -> None:
        super().__init__(POOL)
        self._code = code

    def read(self, path: Path, *_: object, **__: object) -> TransferReport:
        raise TransferFailed("read", path, errno=self._code)


@pytest.mark.proves("what may still be there is not taken for removed")
@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESTALE])
def test_a_file_of_which_nobody_can_tell_whether_it_is_there_keeps_its_error(
    published: Published, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    with published.store.open(published.id) as found:
        stale_at(monkeypatch, published.path())
        with pytest.raises(TransferFailed) as caught:
            read_stored(Gone(code), found.file(FILE))
        assert caught.value.errno == code


@pytest.mark.proves("only what looks like absence is taken for it")
def test_a_failure_that_is_no_absence_keeps_its_error_though_the_file_is_gone(published: Published) -> None:
    with published.store.open(published.id) as found:
        published.path().unlink()
        with pytest.raises(TransferFailed, match="EIO"):
            read_stored(Gone(errno.EIO), found.file(FILE))


@pytest.mark.proves("an empty file was empty when it was published")
def test_an_empty_file_that_was_not_empty_when_it_was_published_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    entry = FileEntry(name="a", size_bytes=0, digest="0" * 64, index=None)
    file = StoredFile(ObjectId("0" * 64), tmp_path / "a", entry, None, ContentHash.SHA256)
    with pytest.raises(Corrupt, match="was not empty"):
        read_stored(PosixTransport(POOL), file)


@pytest.mark.proves("a look at a file without a thread leaves the first error")
def test_a_file_of_which_nobody_can_tell_for_want_of_a_thread_keeps_its_error(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with published.store.open(published.id) as found:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(TransferFailed, match=r"cannot read .*ESTALE"):
            read_stored(Gone(errno.ESTALE), found.file(FILE))


@pytest.mark.proves("a look at a file that hangs leaves the first error")
def test_whether_a_file_was_removed_is_not_asked_for_ever(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, real = threading.Event(), os.stat

    def hang(at: Path, **options: bool) -> os.stat_result:
        if at == published.path():
            answer.wait(60)
        return real(at, **options)

    monkeypatch.setattr(stored_file, "LOOK_S", 0.2)
    with published.store.open(published.id) as found:
        monkeypatch.setattr(os, "stat", hang)
        began = time.monotonic()
        with pytest.raises(TransferFailed, match="ESTALE"):
            read_stored(Gone(errno.ESTALE), found.file(FILE))
        assert time.monotonic() - began < 30
        answer.set()


@pytest.mark.proves("what moved while it was looked at is looked at again")
def test_an_object_that_was_moved_away_and_back_while_it_was_opened_is_looked_at_again(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a collector trashes it, and a publisher places it anew: half of what was seen was of the one."""
    real, aside, moved = object_contents.read_index, published.store.paths.root / "aside", list[Path]()

    def once(directory: Path, manifest: Manifest, entry: FileEntry) -> Index:
        if moved:
            return real(directory, manifest, entry)
        moved.append(directory)
        directory.rename(aside)
        try:
            return real(directory, manifest, entry)
        finally:
            aside.rename(directory)

    monkeypatch.setattr(object_contents, "read_index", once)
    with published.store.open(published.id) as found:
        assert moved and found.read_bytes("config.json")
    published.path(FILE + ".idx").unlink()
    with pytest.raises(Corrupt):  # nobody moved it this time
        published.store.open(published.id)


def test_a_file_truncated_while_it_is_open_fails_with_its_place(published: Published) -> None:
    with published.store.open(published.id) as found:
        os.truncate(published.path(), 100_000)
        with pytest.raises((TransferFailed, Corrupt), match=r"model\.safetensors at byte"):
            found.read_bytes(FILE)


def test_files_in_folders_and_empty_files_are_read(tmp_path: Path) -> None:
    from ebbtide.storage.objects.manifest import Kind

    store, large = store_at(tmp_path / "store"), random_bytes(2_000_000)
    with store.publication(Kind.ARTEFACT, {}, chunk_bytes=CHUNK) as work:
        for name, data in (("a/b/empty", b""), ("a/b/large", large), ("a/empty.safetensors", b"")):
            work.add(work.staging.write_bytes(name, data))
        object_id = work.publish()
    with store.open(object_id) as found:
        assert found.read_bytes("a/b/empty") == found.read_bytes("a/empty.safetensors") == b""
        assert found.read_bytes("a/b/large") == large
        with pytest.raises(Corrupt):
            found.header("a/empty.safetensors")


def test_every_chunk_is_bound_to_object_and_file(tmp_path: Path) -> None:
    """Equal bytes in two objects have different quick hashes, so an index cannot vouch for the wrong file."""
    store = store_at(tmp_path / "store")
    one = publish_model(store, tag=None)
    other = publish_model(store, tag=None, key={"model": "other"})
    with store.open(one) as first, store.open(other) as second:
        pairs = zip(first.index(FILE).chunks, second.index(FILE).chunks, strict=True)
        for mine, yours in pairs:
            assert mine.content == yours.content
            assert mine.quick != yours.quick and mine.device != yours.device
        file = first.file(FILE)
        index = dataclasses.replace(second.index(FILE), salt=first.index(FILE).salt)
        mixed = StoredFile(file.object_id, file.path, file.entry, index, file.content_kind)
        with pytest.raises(Corrupt):
            read_stored(store.ports.transport, mixed)
