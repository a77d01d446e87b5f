"""Writing one shard: synced before it is said to be whole, counted once, and never waiting for ever."""

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.storage.errors import Superseded, TransferTimeout
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.models.importer import shard_writer as module
from ebbtide.storage.models.importer.chunk_journal import _TITLE_BYTES
from ebbtide.storage.models.importer.import_progress import ImportProgress, Phase, Tally
from ebbtide.storage.models.importer.shard_writer import ShardWriter, Workplace, _stretches
from ebbtide.storage.models.sources.local_source import LocalSource
from ebbtide.storage.models.sources.source import Part, SourceFile
from ebbtide.storage.models.sources.source_checkpoint import Shard, examine
from ebbtide.storage.names import attempt
from ebbtide.storage.objects.manifest import FileEntry, Kind
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.publication import Publication
from ebbtide.storage.posix.posix_calls import SystemCalls
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transport import Range, Transport
from tests.platform.storage.models.made import make_checkpoint
from tests.platform.storage.stores import CHUNK, POOL, store_at


class Leader:
    """What a flight gives to its leader."""

    def __init__(self) -> None:
        self.attempt, self.failures = 1, 0
        self.told: list[tuple[str, int, int]] = []
        self.checks = 0
        self.lost_at = 10**9

    def check(self) -> None:
        self.checks += 1
        if self.checks >= self.lost_at:
            raise Superseded("another process took over")

    def confirm(self) -> None: ...

    def report(self, phase: str, done_bytes: int = 0, total_bytes: int = 0) -> None:
        self.told.append((phase, done_bytes, total_bytes))


class SyncsSeen(Disk):
    """Remembers what was synced and what was written, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.deeds: list[str] = []

    def sync_file(self, path: Path) -> None:
        self.deeds.append(f"sync {path.name}")
        super().sync_file(path)

    def write(self, path: Path, data: bytes) -> None:
        self.deeds.append(f"write {path.name}")
        super().write(path, data)


class Bench:
    """A store with a publication under way, and a source of one shard."""

    def __init__(self, folder: Path, *, transport: Transport | None = None) -> None:
        make_checkpoint(folder / "model", shards=1)
        self.source = LocalSource(folder / "model")
        self.disk, self.leader, self.seen = SyncsSeen(), Leader(), list[ImportProgress]()
        self.store: ObjectStore = store_at(folder / "store", transport=transport, disk=self.disk)
        checkpoint = examine(self.source)
        (self.shard,) = checkpoint.shards
        self.key = checkpoint.key

    def write(self, source: "LocalSource | Hanging | None" = None, shard: Shard | None = None) -> FileEntry:
        with self.publication() as work:
            tally = Tally(self.leader, self.shard.layout.plan.file_bytes, self.seen.append)  # type: ignore[arg-type]
            place = Workplace(self.store.ports, work.staging, tally, stretch_bytes=2 * CHUNK)
            return ShardWriter(place, source or self.source, shard or self.shard).write()

    def publication(self) -> Publication:
        return self.store.publication(Kind.MODEL, self.key, chunk_bytes=CHUNK, attempt_name="work", keep=True)

    @property
    def size_bytes(self) -> int:
        return self.shard.layout.plan.file_bytes


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def counted(bench: Bench) -> dict[Phase, int]:
    """How many bytes were counted as copied, and how many as verified."""
    last = bench.seen[-1]
    return {Phase.COPYING: last.done_bytes - last.saved_bytes, Phase.VERIFYING: last.saved_bytes}


def test_a_shard_is_synced_before_its_index_says_that_it_is_whole(bench: Bench) -> None:
    bench.write()
    name = bench.shard.file.name
    assert bench.disk.deeds.index(f"sync {name}") < bench.disk.deeds.index(f"write {name}.idx")
    assert counted(bench) == {Phase.COPYING: bench.size_bytes, Phase.VERIFYING: 0}


def test_what_an_earlier_attempt_wrote_is_synced_too(bench: Bench) -> None:
    """That attempt may have been killed before it synced; its bytes are read back from memory, not from the disk."""
    first = bench.write()
    bench.disk.deeds.clear()
    assert bench.write() == first
    assert bench.disk.deeds[0] == f"sync {bench.shard.file.name}"
    assert counted(bench) == {Phase.COPYING: 0, Phase.VERIFYING: bench.size_bytes}


def test_a_sync_that_failed_means_copying_again_and_counting_once(tmp_path: Path) -> None:
    """As a disk that loses writes and says so once."""
    syncs: list[int] = []

    def fsync(fd: int) -> None:
        syncs.append(fd)
        if len(syncs) == 1:
            raise OSError(errno.EIO, "lost")
        os.fsync(fd)

    bench = Bench(tmp_path, transport=PosixTransport(POOL, threads=2, calls=SystemCalls(fsync=fsync)))
    bench.write()
    stretches = -(-bench.size_bytes // (2 * CHUNK))
    assert len(syncs) == stretches + 1 and bench.leader.checks > bench.size_bytes // CHUNK + 2, "filled again"
    assert counted(bench) == {Phase.COPYING: bench.size_bytes, Phase.VERIFYING: 0}
    assert max(done for _, done, _ in bench.leader.told) == bench.size_bytes


@pytest.mark.parametrize("lost_at", [1, 2, 4])
def test_one_that_was_superseded_stops_before_the_next_chunk(bench: Bench, lost_at: int) -> None:
    bench.leader.lost_at = lost_at
    with pytest.raises(Superseded):
        bench.write()
    assert counted(bench)[Phase.COPYING] <= lost_at * CHUNK


def test_what_was_verified_and_could_then_not_be_read_back_is_counted_once(tmp_path: Path) -> None:
    """A bad sector in what an earlier attempt left: all of it is copied again."""
    Bench(tmp_path).write()
    reads: list[int] = []

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        reads.append(offset)
        if len(reads) > 2:
            raise OSError(errno.EIO, "bad sector")
        return os.preadv(fd, buffers, offset)

    calls = SystemCalls(preadv=preadv, resident_share=lambda *_: None)
    bench = Bench(tmp_path, transport=PosixTransport(POOL, threads=1, calls=calls))
    bench.write()
    assert max(one.saved_bytes for one in bench.seen) > 0, "some of it was verified"
    assert counted(bench) == {Phase.COPYING: bench.size_bytes, Phase.VERIFYING: 0}
    assert max(done for _, done, _ in bench.leader.told) <= bench.size_bytes


class Hanging:
    """A source that answers nothing for long."""

    def __init__(self, real: LocalSource, end: threading.Event) -> None:
        self.real, self.where, self._end = real, real.where, end

    def listing(self) -> list[SourceFile]:
        return self.real.listing()

    def look_for(self, names: object) -> list[SourceFile]:
        return []

    def open(self, file: SourceFile) -> "Hanging":
        return self

    def read(self, parts: Sequence[Part]) -> None:
        self._end.wait(100)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@pytest.fixture
def end() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_source_that_hangs_is_named_and_not_the_store(
    bench: Bench, end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAST_PATIENCE_S", 0.3)
    with pytest.raises(TransferTimeout, match=rf"cannot read {bench.source.where}/model\.safetensors"):
        bench.write(Hanging(bench.source, end))


def test_a_source_that_answers_after_all_reaches_no_file_that_was_opened_since(
    bench: Bench, end: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "LEAST_PATIENCE_S", 0.3)
    before = set(threading.enumerate())
    with pytest.raises(TransferTimeout):
        bench.write(Hanging(bench.source, end))
    others = [os.open(tmp_path / f"other{number}", os.O_RDWR | os.O_CREAT) for number in range(8)]
    end.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert [os.fstat(other).st_size for other in others] == [0] * 8
    for other in others:
        os.close(other)


def test_one_that_was_superseded_while_the_source_took_its_time_claims_nothing(bench: Bench) -> None:
    class Slow(Hanging):
        def read(self, parts: Sequence[Part]) -> None:
            bench.leader.lost_at = 0

    with pytest.raises(Superseded):
        bench.write(Slow(bench.source, threading.Event()))
    (journal,) = bench.store.paths.work(attempt("work")).glob(".*.chunks")
    assert journal.stat().st_size == _TITLE_BYTES


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), max_size=6), st.integers(1, 200), st.integers(0, 9))
def test_stretches_hold_all_bytes_in_order_and_are_cut_at_chunks(
    gaps: list[tuple[int, int]], stretch_bytes: int, rest: int
) -> None:
    chunk, at, ranges = 10, 0, []
    for skip, count in gaps:
        ranges.append(Range(at + skip * chunk, count * chunk))
        at = ranges[-1].end + chunk
    if ranges and rest:  # the last chunk of a file is shorter
        ranges[-1] = Range(ranges[-1].offset, ranges[-1].length - chunk + rest)
    found = list(_stretches(ranges, stretch_bytes, chunk))
    flat = [byte for stretch in found for part in stretch for byte in range(part.offset, part.end)]
    assert flat == [byte for part in ranges for byte in range(part.offset, part.end)]
    assert all(part.offset % chunk == 0 for stretch in found for part in stretch)
    assert all(sum(part.length for part in stretch) <= max(stretch_bytes, chunk) for stretch in found)
