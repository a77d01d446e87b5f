"""Imports that are cut off at every change, and work directories that were tampered with: right in the end, and saved
is what can be saved."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ebbtide.storage.errors import NoRoom, TransferFailed
from ebbtide.storage.models.importer.chunk_journal import journal_path
from ebbtide.storage.models.importer.import_terms import How
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide.storage.transport.transport import Consume, Range
from tests.builders.models import Tampered
from tests.hunts import spread
from tests.platform.storage.models.made import Arrays, assert_same, bring, make_checkpoint, stored_arrays
from tests.platform.storage.played import ROOT
from tests.platform.storage.stores import CHUNK, POOL, leftovers, quick_directory, store_at

quick = pytest.fixture(quick_directory)

# Changes of an import of two shards into a store that is not there yet; more than there are, so that some end well.
MOST_CHANGES = 128
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def killed(folder: Path, *words: object) -> list[dict[str, Any]]:
    make_checkpoint(folder / "model")
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.platform.storage.models.import_killer",
            folder,
            folder / "model",
            *map(str, words),
        ],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=ROOT,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.parametrize("first", spread(range(1, 9)))
def test_killed_before_any_change_the_next_import_is_right_and_copies_only_what_is_missing(
    quick: Path, first: int
) -> None:
    rows = killed(quick, first, 8, MOST_CHANGES)
    assert not rows[0]["ended"] and rows[-1]["ended"], "all changes were tried"
    saved = 0
    for row in rows:
        assert row["incoming"] == 0, row
        if row["how"] == "copied":
            assert row["saved"] + row["copied"] == row["total"] and row["saved"] >= saved, row
            saved = row["saved"]
        else:
            assert row["how"] == "known" and row["copied"] == 0, row
    assert saved > 0.9 * rows[0]["total"], "just before the end, all weights are saved"


@pytest.mark.hunt  # short: killed once
def test_killed_twice_it_is_right_in_the_end(quick: Path) -> None:
    rows = killed(quick, 3, 5, MOST_CHANGES, "AGAIN")
    assert len(rows) > 20 and all(row["incoming"] == 0 for row in rows)
    assert sum(row["saved"] > 0 for row in rows) > 5


# ---- what may have become of a work directory


class Half:
    """An import that was cut off when one shard was done and half of the other.

    Attributes:
        done_bytes, begun_bytes: of the two, written and on disk for sure.
    """

    def __init__(self, folder: Path) -> None:
        self.source = folder / "model"
        self.arrays: Arrays = make_checkpoint(self.source, layers=8)
        self.store: ObjectStore = store_at(folder / "store")
        source = Tampered(self.source)
        chunks_of_first = (self.source / FIRST).stat().st_size // CHUNK + 1

        def stop(number: int) -> None:
            if number == chunks_of_first + 6:
                raise KeyboardInterrupt

        source.before = stop
        with pytest.raises(KeyboardInterrupt):
            bring(self.store, source)
        (self.work,) = self.store.paths.incoming.iterdir()
        assert (self.work / (FIRST + ".idx")).exists() and not (self.work / (SECOND + ".idx")).exists()
        self.done, self.begun = self.work / FIRST, self.work / SECOND
        self.done_bytes = self.done.stat().st_size
        claims = (journal_path(self.begun).stat().st_size - 128) // 64
        self.begun_bytes = (claims - 2) * CHUNK  # but for those that the two threads were at
        assert self.begun_bytes > 0

    def go_on(self, store: ObjectStore | None = None) -> tuple[int, int]:
        """What is saved and copied in the end, of the weights."""
        found = store or self.store
        result = bring(found, self.source)
        assert result.how is How.COPIED and leftovers(found) == []
        assert_same(stored_arrays(self.store, result.object), self.arrays)
        assert result.saved_bytes + result.copied_bytes == result.size_bytes
        return result.saved_bytes, result.copied_bytes


@pytest.fixture
def half(tmp_path: Path) -> Half:
    return Half(tmp_path)


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def hole(path: Path, offset: int, length: int) -> None:
    """Zeros, as where a write never reached the disk."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(bytes(length))


def swap_chunks(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[:CHUNK], content[CHUNK : 2 * CHUNK] = content[CHUNK : 2 * CHUNK], content[:CHUNK]
    path.write_bytes(content)


def test_undisturbed_all_that_was_written_is_saved(half: Half) -> None:
    saved, _ = half.go_on()
    assert half.done_bytes + half.begun_bytes <= saved <= half.done_bytes + half.begun_bytes + 2 * CHUNK


TAMPERING: list[tuple[str, Callable[[Half], object], str]] = [
    # what, how, and what it costs
    ("a bit in a finished shard", lambda h: flip(h.done, CHUNK + 7), "chunk"),
    ("a bit in a begun shard", lambda h: flip(h.begun, 7), "chunk"),
    ("a hole in a finished shard", lambda h: hole(h.done, CHUNK, CHUNK), "chunk"),
    ("a hole in a begun shard", lambda h: hole(h.begun, 0, 5000), "chunk"),
    ("two chunks swapped", lambda h: swap_chunks(h.done), "chunks"),
    ("a finished shard cut off", lambda h: os.truncate(h.done, CHUNK), "done"),
    ("a finished shard longer", lambda h: h.done.open("ab").write(b"x"), "done"),
    ("a begun shard cut off", lambda h: os.truncate(h.begun, CHUNK), "begun"),
    ("no journal", lambda h: journal_path(h.begun).unlink(), "begun"),
    ("a journal of another file", lambda h: shutil.copy(journal_path(h.done), journal_path(h.begun)), "begun"),
    ("a journal of junk", lambda h: journal_path(h.begun).write_bytes(b"junk" * 999), "begun"),
    ("an index of junk", lambda h: (h.work / (FIRST + ".idx")).write_bytes(b"junk"), ""),  # there is a journal, too
    ("an index of another", lambda h: shutil.copy(h.work / (FIRST + ".idx"), h.work / (SECOND + ".idx")), ""),
    ("a shard gone", lambda h: h.done.unlink(), "done"),
    ("strangers", lambda h: (h.work / "stranger.safetensors").write_bytes(b"x" * 9999), ""),
    ("an old manifest", lambda h: (h.work / "manifest.json").write_bytes(b"{}"), ""),
    ("all gone", lambda h: shutil.rmtree(h.work), "all"),
]


@pytest.mark.parametrize(("tamper", "costs"), [row[1:] for row in TAMPERING], ids=[row[0] for row in TAMPERING])
def test_what_was_tampered_with_is_copied_again_and_the_rest_is_not(
    half: Half, tamper: Callable[[Half], object], costs: str
) -> None:
    all_bytes = half.done_bytes + half.begun_bytes
    lost = {
        "chunk": CHUNK,
        "chunks": 2 * CHUNK,
        "done": half.done_bytes,
        "begun": half.begun_bytes,
        "all": all_bytes,
        "": 0,
    }[costs]
    tamper(half)
    saved, _ = half.go_on()
    assert all_bytes - lost <= saved <= all_bytes - lost + (2 * CHUNK if costs not in ("begun", "all") else 0)


def test_a_work_directory_of_a_higher_number_is_taken_over_too(half: Half) -> None:
    """As when the claims were removed and counting began anew."""
    half.work.rename(half.work.with_name(half.work.name.rpartition("-")[0] + "-40"))
    saved, _ = half.go_on()
    assert saved > 5 * CHUNK


def test_a_directory_that_only_looks_like_one_is_left_alone(half: Half) -> None:
    stranger = half.work.with_name(half.work.name + "-x")
    stranger.mkdir()
    assert bring(half.store, half.source).saved_bytes > 5 * CHUNK and stranger.is_dir()


class Unreadable(PosixTransport):
    """Cannot read back what is in work directories."""

    def read(
        self,
        path: Path,
        ranges: Iterable[Range],
        consume: Consume,
        *,
        into: memoryview | None = None,
        deadline_s: float,
    ) -> TransferReport:
        if "incoming" in path.parts:
            raise TransferFailed("read", path, errno=errno.EIO, offset=0)
        return super().read(path, ranges, consume, into=into, deadline_s=deadline_s)


def test_what_cannot_be_read_back_is_copied_again_into_a_new_file(half: Half) -> None:
    with half.done.open("rb") as done, half.begun.open("rb") as begun:
        saved, _ = half.go_on(store_at(half.store.paths.root, transport=Unreadable(POOL, threads=2)))
        assert saved == 0
        assert os.fstat(done.fileno()).st_nlink == os.fstat(begun.fileno()).st_nlink == 0, "the old files are gone"


def test_a_source_that_changed_since_starts_anew_and_mixes_nothing(half: Half) -> None:
    arrays = make_checkpoint(half.source, seed=3, layers=8)
    result = bring(half.store, half.source)
    assert result.saved_bytes == 0
    assert_same(stored_arrays(half.store, result.object), arrays)


# ---- a disk that is full for real


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a filesystem can be mounted by root only")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_that_is_full_is_told_and_left_as_it_was(small_disk: Path, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "model", layers=9)
    store = store_at(small_disk / "store")
    with pytest.raises(NoRoom, match="no room for"):
        bring(store, tmp_path / "model")
    assert leftovers(store) == [] and store.list_objects() == []
    assert sum(path.stat().st_size for path in small_disk.rglob("*") if path.is_file()) < 20_000


def test_a_disk_that_fills_up_meanwhile_is_told_and_left_as_it_was(small_disk: Path, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "model", layers=1)
    store = store_at(small_disk / "store")
    source = Tampered(tmp_path / "model")

    def fill(number: int) -> None:
        if number == 2:
            with pytest.raises(OSError, match="No space"), (small_disk / "other").open("wb", buffering=0) as other:
                while True:
                    other.write(bytes(4096))

    source.before = fill
    with pytest.raises(NoRoom):
        bring(store, source)
    assert leftovers(store) == [] and store.list_objects() == []
    (small_disk / "other").unlink()
    assert bring(store, tmp_path / "model").how is How.COPIED
