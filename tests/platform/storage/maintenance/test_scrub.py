"""A scrub finds all damage, says how far it is, and does not stop at the first wrong chunk or a failing disk."""

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from ebbtide.storage.errors import Corrupt, NotPublished, TransferFailed, TransferTimeout
from ebbtide.storage.integrity.chunk_index import parse_index
from ebbtide.storage.maintenance.scrub import Damage, damage_of, scrub
from ebbtide.storage.names import COMMIT, ObjectId
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide.storage.transport.transport import Consume, Range
from tests.platform.storage.stores import CHUNK, POOL, each, overwrite, publish_model, random_bytes, store_at

FILE = "model.safetensors"
SIZE = 266_633  # of the file; its last chunk is the fifth


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return store_at(tmp_path / "store")


def test_a_good_object_has_no_damage_and_all_of_it_is_counted(store: ObjectStore) -> None:
    object_id = publish_model(store)
    for deep in (False, True):
        reports = list(scrub(store.ports, object_id, deep=deep))
        assert not any(report.damage for report in reports)
        assert [report.done_bytes for report in reports] == sorted(report.done_bytes for report in reports)
        total = store.manifest(object_id).size_bytes
        assert reports[-1].done_bytes == reports[-1].total_bytes == total
        assert {report.file for report in reports} == {FILE, "config.json"}


LAST = Range(4 * CHUNK, SIZE - 4 * CHUNK)
WHOLE = Range(0, SIZE)
DAMAGE: dict[str, tuple[Callable[[Path], object], list[tuple[str, Range | None]]]] = {
    "two chunks": (
        each(
            lambda at: overwrite(at / FILE, 5, b"\0\0\0\0"), lambda at: overwrite(at / FILE, 3 * CHUNK + 5, bytes(100))
        ),
        [(FILE, Range(0, CHUNK)), (FILE, Range(3 * CHUNK, CHUNK))],
    ),
    "truncated": (lambda at: os.truncate(at / FILE, 4 * CHUNK + 3), [(FILE, LAST)]),
    "truncated to two chunks": (
        lambda at: os.truncate(at / FILE, 2 * CHUNK),
        [(FILE, Range(2 * CHUNK, CHUNK)), (FILE, Range(3 * CHUNK, CHUNK)), (FILE, LAST)],
    ),
    "longer": (lambda at: os.truncate(at / FILE, SIZE + 7), [(FILE, Range(SIZE, 7))]),
    "missing": (lambda at: (at / FILE).unlink(), [(FILE, WHOLE)]),
    "index missing": (lambda at: (at / (FILE + ".idx")).unlink(), [(FILE, None)]),
    "index and a chunk": (
        each(
            lambda at: overwrite(at / (FILE + ".idx"), 80, b"\0\1\2\3"), lambda at: overwrite(at / FILE, 5, b"\0\0\0\0")
        ),
        [(FILE, None), (FILE, WHOLE)],
    ),
    "index missing and truncated": (
        each(lambda at: (at / (FILE + ".idx")).unlink(), lambda at: os.truncate(at / FILE, 9)),
        [(FILE, None), (FILE, WHOLE)],
    ),
    "a small file": (lambda at: overwrite(at / "config.json", 0, b"x"), [("config.json", Range(0, 13))]),
    "a small file cut": (lambda at: os.truncate(at / "config.json", 3), [("config.json", Range(0, 13))]),
    "a small file gone": (lambda at: (at / "config.json").unlink(), [("config.json", Range(0, 13))]),
}


@pytest.mark.proves(
    "a damaged index is damage",
    "a scrub goes on after damage",
    "bytes after a file's end are damage",
    "what is cut off a file is damage",
    "without its index a file is compared as a whole",
)
@pytest.mark.parametrize(("act", "expected"), DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("deep", [False, True])
def test_all_damage_is_found(
    store: ObjectStore, act: Callable[[Path], object], expected: list[tuple[str, Range | None]], deep: bool
) -> None:
    object_id = publish_model(store)
    assert store.manifest(object_id).file(FILE).size_bytes == SIZE
    act(store.paths.object(object_id))
    found = damage_of(store.ports, object_id, deep=deep)
    assert [(one.file, one.part) for one in found] == expected
    assert all(one.what and one.file in str(one) for one in found)


def test_manifest_and_commit_are_needed(store: ObjectStore) -> None:
    object_id = publish_model(store)
    (store.paths.object(object_id) / COMMIT).write_bytes(b"")
    with pytest.raises(Corrupt, match="COMMIT"):
        damage_of(store.ports, object_id)
    with pytest.raises(NotPublished):
        damage_of(store.ports, "0" * 64)


@pytest.mark.proves("a deep look compares the other hashes")
def test_a_deep_scrub_sees_what_quick_hashes_cannot_vouch_for(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a chunk of other bytes had the same quick hash: here the index is made to say so."""
    object_id = publish_model(store)
    real = parse_index

    def parse(raw: bytes, path: Path) -> object:
        index = real(raw, path)
        wrong = index.chunks[1]._replace(device=1)
        forged = type(index)(
            index.file_bytes,
            index.chunk_bytes,
            index.salt,
            index.content_kind,
            index.has_device,
            (index.chunks[0], wrong, *index.chunks[2:]),
        )
        return forged

    monkeypatch.setattr("ebbtide.storage.objects.object_contents.parse_index", parse)
    assert damage_of(store.ports, object_id) == []
    [damage] = damage_of(store.ports, object_id, deep=True)
    assert damage == Damage(FILE, Range(CHUNK, CHUNK), "its quick hash is right, and others are not")


class Failing(PosixTransport):
    """Fails at one byte of a file, as a bad sector does."""

    def __init__(self, at: int, error: Callable[[Path, int], TransferFailed]) -> None:
        super().__init__(POOL, threads=2)
        self._at, self._error = at, error

    def read(
        self,
        path: Path,
        ranges: Iterable[Range],
        consume: Consume,
        *,
        into: memoryview | None = None,
        deadline_s: float,
    ) -> TransferReport:
        known = list(ranges)
        if path.name == FILE and any(part.offset <= self._at < part.end for part in known):
            raise self._error(path, self._at)
        return super().read(path, known, consume, into=into, deadline_s=deadline_s)


@pytest.mark.proves("a sector that cannot be read is damage of its chunk alone")
def test_a_sector_that_cannot_be_read_is_damage_of_its_chunk_alone(store: ObjectStore, tmp_path: Path) -> None:
    object_id = publish_model(store)
    failing = Failing(2 * CHUNK + 9, lambda path, at: TransferFailed("read", path, errno=errno.EIO, offset=at))
    [damage] = damage_of(store_at(tmp_path / "store", transport=failing).ports, object_id)
    assert (damage.file, damage.part) == (FILE, Range(2 * CHUNK, CHUNK))
    assert "EIO" in damage.what
    (store.paths.object(object_id) / (FILE + ".idx")).unlink()
    whole = damage_of(store_at(tmp_path / "store", transport=failing).ports, object_id)
    assert [(one.file, one.part) for one in whole] == [(FILE, None), (FILE, WHOLE)]


@pytest.mark.proves("a hang is no damage")
def test_a_hang_is_no_damage(store: ObjectStore, tmp_path: Path) -> None:
    object_id = publish_model(store)
    hanging = Failing(0, lambda path, at: TransferTimeout("read", path, after_s=1, offset=at))
    with pytest.raises(TransferTimeout):
        damage_of(store_at(tmp_path / "store", transport=hanging).ports, object_id)


@pytest.mark.proves("an object is held while it is looked through")
def test_a_scrub_can_be_left_and_gives_its_lease_back(store: ObjectStore) -> None:
    object_id: ObjectId = publish_model(store)
    run = scrub(store.ports, object_id)
    next(run)
    assert store.ports.leases.living()
    run.close()
    assert not store.ports.leases.living()


def test_an_empty_file_and_state_without_device_hashes_are_checked_too(store: ObjectStore) -> None:
    with store.publication(Kind.TRAINING, {"run": "r"}, chunk_bytes=CHUNK) as work:
        work.add(work.staging.write_bytes("empty", b""))
        work.add(work.staging.write_bytes("rank0.safetensors", random_bytes(100_000)))
        object_id = work.publish()
    assert damage_of(store.ports, object_id, deep=True) == []
    path = store.paths.object(object_id)
    overwrite(path / "rank0.safetensors", 99_999, b"\0\0"[: 1 + (path / "rank0.safetensors").stat().st_size - 100_000])
    (path / "empty").write_bytes(b"x")
    found = damage_of(store.ports, object_id, deep=True)
    assert [(one.file, one.part) for one in found if one.file == "empty"] == [("empty", Range(0, 1))]
