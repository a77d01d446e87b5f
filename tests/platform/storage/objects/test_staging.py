"""Files in a work directory: hashed as they are written, whole once their index is there, and gone when they fail."""

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ebbtide.storage.errors import Corrupt, NoRoom, Refused, TransferFailed
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.integrity.chunk_hash import ContentHash, small_digest
from ebbtide.storage.integrity.chunk_index import Hashing, parse_index
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.objects.staging import HOT_BYTES, LEAST_DEADLINE_S, Staging, deadline_for, needs_index
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transport import CHUNK_BYTES, Range
from tests.platform.storage.failing_calls import CountedCalls, failing_at
from tests.platform.storage.stale import stale_at
from tests.platform.storage.stores import CHUNK, POOL, random_bytes

HOW = Hashing(bytes(16), CHUNK)


LARGE = BufferPool(2)


def staging_at(directory: Path, how: Hashing = HOW, disk: Disk | None = None, pool: BufferPool = POOL) -> Staging:
    return Staging(directory, how, PosixTransport(pool, threads=2), disk or Disk())


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    (tmp_path / "work").mkdir()
    return staging_at(tmp_path / "work")


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_a_file_is_the_same_however_it_was_staged(staging: Staging, tmp_path: Path, size: int) -> None:
    data = random_bytes(size)
    moved: list[int] = []
    (tmp_path / "source").write_bytes(data)

    def fill(offset: int, memory: memoryview) -> None:
        memory[:] = data[offset : offset + len(memory)]

    entries = [
        staging.write("x.safetensors", size, fill, progress=moved.append),
        staging.write_bytes("x.safetensors", data),
        staging.copy(tmp_path / "source", "x.safetensors", progress=moved.append),
        staging.adopt("x.safetensors"),
    ]
    (staging.directory / "x.safetensors.idx").unlink()
    entries.append(staging.adopt("x.safetensors", progress=moved.append))
    assert len(set(map(repr, entries))) == 1
    assert sum(moved) == 3 * size
    assert entries[0].size_bytes == size and (staging.directory / "x.safetensors").read_bytes() == data
    index = parse_index((staging.directory / "x.safetensors.idx").read_bytes(), Path("x"))
    assert index.digest == entries[0].digest and index.file_bytes == size


@pytest.mark.parametrize("chunk_bytes", [4096, CHUNK, CHUNK_BYTES])
def test_what_is_filled_is_hashed_piece_by_piece_and_comes_out_the_same(tmp_path: Path, chunk_bytes: int) -> None:
    """Pieces of whole chunks, no larger than a core's cache where chunks are not."""
    (tmp_path / "work").mkdir()
    staging, data = staging_at(tmp_path / "work", Hashing(bytes(16), chunk_bytes), pool=LARGE), random_bytes(9_000_001)
    pieces: list[Range] = []

    def fill(offset: int, memory: memoryview) -> None:
        pieces.append(Range(offset, len(memory)))
        memory[:] = data[offset : offset + len(memory)]

    entry = staging.write("x.safetensors", len(data), fill)
    assert (staging.directory / "x.safetensors").read_bytes() == data
    (staging.directory / "x.safetensors.idx").unlink()
    assert staging.adopt("x.safetensors") == entry, "the same hashes as of the file read anew"
    pieces.sort(key=lambda each: each.offset)
    assert all(each.offset % chunk_bytes == 0 for each in pieces)
    assert [each.end for each in pieces] == [each.offset for each in pieces[1:]] + [len(data)]
    assert max(each.length for each in pieces) == min(max(chunk_bytes, HOT_BYTES), len(data))


def test_small_files_have_no_index_and_the_same_digest_as_if_they_had() -> None:
    assert needs_index("a.safetensors", 0, CHUNK) and needs_index("a", CHUNK + 1, CHUNK)
    assert not needs_index("a.json", CHUNK, CHUNK)
    assert needs_index("a.json", (1 << 20) + 1, 16 << 20) and not needs_index("a.json", 1 << 20, 16 << 20)


def test_a_small_digest_is_that_of_an_index(staging: Staging) -> None:
    for kind in ContentHash:
        how = Hashing(bytes(16), CHUNK, kind)
        for data in (b"", b"abc"):
            entry = staging_at(staging.directory, how).write_bytes("a.safetensors", data)
            assert entry.digest == small_digest(data, kind)


@pytest.mark.proves(
    "a damaged index of a staged file is not believed",
    "an index of another length than its file is not believed",
    "an index that was made in another way is not believed",
)
def test_an_index_that_is_there_is_believed_unless_it_is_not_ours(staging: Staging) -> None:
    data = random_bytes(2 * CHUNK)
    entry = staging.write_bytes("a.safetensors", data)
    path = staging.directory / "a.safetensors"
    other = Hashing(b"1" * 16, CHUNK)
    salted = staging_at(staging.directory, other).adopt("a.safetensors")
    assert salted.digest == entry.digest and salted.index != entry.index
    assert staging_at(staging.directory).adopt("a.safetensors") == entry, "hashed anew under our salt"
    path.write_bytes(data + b"x")
    assert staging.adopt("a.safetensors").size_bytes == 2 * CHUNK + 1
    path.with_name("a.safetensors.idx").write_bytes(b"torn")
    path.write_bytes(data)
    assert staging.adopt("a.safetensors") == entry
    with pytest.raises(TransferFailed, match="missing"):
        staging.adopt("missing")


@pytest.mark.proves("a file that another process left is synced before it counts", "a staged file's name is durable")
def test_an_index_vouches_for_what_is_durable_only(staging: Staging) -> None:
    calls = CountedCalls()
    other = staging_at(staging.directory, disk=Disk(calls))
    (staging.directory / "a.safetensors").write_bytes(random_bytes(CHUNK))  # as another process left it
    other.adopt("a.safetensors")
    events = [(what, path.name) for what, path, _ in calls.events]
    assert events.index(("fsync", "a.safetensors")) < events.index(("create", "a.safetensors.idx"))
    assert events[-1] == ("fsync", "work"), "the names are durable too"
    calls.events.clear()
    other.write_bytes("a.json", b"{}")
    assert calls.events[-1][:2] == ("fsync", staging.directory)


@pytest.mark.proves("an index that cannot be looked at is an error of ours")
def test_an_index_that_cannot_be_looked_at_is_one_error_with_its_place(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging.write_bytes("a.safetensors", random_bytes(CHUNK))
    stale_at(monkeypatch, staging.directory / "a.safetensors.idx")
    with pytest.raises(TransferFailed, match=r"cannot look at .*a\.safetensors\.idx: .*ESTALE"):
        staging.adopt("a.safetensors")


@pytest.mark.proves(
    "a file's old index goes before the file is written",
    "a staged file is never written over in place",
)
def test_writing_a_file_again_first_takes_away_the_index_that_vouched_for_it(staging: Staging) -> None:
    staging.write_bytes("a.safetensors", random_bytes(2 * CHUNK))
    before = (staging.directory / "a.safetensors").stat().st_ino
    seen = []

    def fill(offset: int, memory: memoryview) -> None:
        seen.append((staging.directory / "a.safetensors.idx").exists())
        memory[:] = bytes(len(memory))

    with (staging.directory / "a.safetensors").open("rb"):  # keeps the inode's number from being used again
        staging.write("a.safetensors", CHUNK, fill)
        assert (staging.directory / "a.safetensors").stat().st_ino != before, "a late write must not reach the new file"
    assert seen == [False]


@pytest.mark.proves("what was begun of a file that failed goes")
def test_a_fill_that_fails_leaves_nothing(staging: Staging) -> None:
    def fill(offset: int, memory: memoryview) -> None:
        if offset:
            raise ValueError("the source is gone")
        memory[:] = bytes(len(memory))

    with pytest.raises(ValueError, match="the source is gone"):
        staging.write("deep/a.safetensors", 3 * CHUNK, fill)
    assert [path.name for path in staging.directory.rglob("*")] == ["deep"]


@pytest.mark.parametrize("name", ["../x", "/x", ".x", "manifest.json", "COMMIT", "x.idx", ""])
def test_names_that_lead_outside_are_refused_before_anything_is_made(staging: Staging, name: str) -> None:
    acts: list[Callable[[], object]] = [
        lambda: staging.write_bytes(name, b""),
        lambda: staging.write(name, 1, lambda offset, memory: None),
        lambda: staging.adopt(name),
        lambda: staging.copy(Path(__file__), name),
    ]
    for act in acts:
        with pytest.raises(Refused):
            act()
    assert list(staging.directory.iterdir()) == [] and list(staging.directory.parent.iterdir()) == [staging.directory]


def test_without_room_for_a_small_file_nothing_of_it_stays(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    for call in range(1, 5):
        staging = staging_at(tmp_path / "work", disk=Disk(failing_at(call, errno.ENOSPC, for_ever=True)))
        with pytest.raises(NoRoom):
            staging.write_bytes("a.json", b"{}")
        assert list((tmp_path / "work").iterdir()) == [] or call == 4


@pytest.mark.proves("what was begun of a small file that failed goes")
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_small_file_that_fails_once_leaves_nothing(tmp_path: Path, call: str) -> None:
    (tmp_path / "work").mkdir()

    def refuse_once(number: int, name: str) -> None:
        if name == call and calls.names.count(call) == 1:
            raise OSError(errno.EIO, "Input/output error")

    calls = CountedCalls(refuse_once)
    with pytest.raises(TransferFailed):
        staging_at(tmp_path / "work", disk=Disk(calls)).write_bytes("a.json", b"{}")
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.proves("a source that shrinks while it is copied is told")
def test_a_source_that_shrinks_while_it_is_copied_is_told(
    staging: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.write_bytes(random_bytes(3 * CHUNK))
    staged = staging.write

    def shrink_first(*arguments: object, **more: object) -> object:
        source.write_bytes(b"short")
        return staged(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(staging, "write", shrink_first)
    monkeypatch.setattr("ebbtide.storage.objects.staging.deadline_for", lambda size_bytes: 20.0)
    with pytest.raises(Corrupt, match="became shorter"):
        staging.copy(source, "a.safetensors")
    assert list(staging.directory.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        staging.copy(tmp_path / "nothing", "a.safetensors")


def test_many_threads_stage_at_once(staging: Staging) -> None:
    from concurrent.futures import ThreadPoolExecutor

    arrays = [np.full(CHUNK // 2, number, dtype=np.uint8).tobytes() * 3 for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        entries = list(pool.map(lambda n: staging.write_bytes(f"d/{n}.safetensors", arrays[n]), range(8)))
    for number, entry in enumerate(entries):
        assert staging.adopt(entry.name) == entry
        assert (staging.directory / entry.name).read_bytes() == arrays[number]


def test_large_files_get_more_time() -> None:
    assert deadline_for(0) == LEAST_DEADLINE_S
    assert deadline_for(140 * 10**9) > 3600
