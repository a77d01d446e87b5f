"""Random ranges, sizes, alignments, threads and lies of the operating system, against a plain model of bytes."""

import errno
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebbtide.storage.errors import FileTruncated, NoRoom, StorageError, TransferFailed
from ebbtide.storage.memory.arena import Arena
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix import posix_read
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transport import Pending, Range
from tests.examples import examples
from tests.platform.storage.shim.lying_system import Errno, LyingSystem, Most

PATH = Path("made-up")
POOLS = {size: BufferPool(5, size) for size in (4096, 16384, 65536)}
ARENA = Arena(1 << 20)
MOST = 200_000
UNTOUCHED = 0xA5

SETTINGS = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module", autouse=True)
def small_ranges_are_read_in_place_too() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(posix_read, "LEAST_IN_PLACE_BYTES", 4096)
        yield


class Bearable:
    """Lies that a transport must get over: drawn from a seed by place, so that threads do not change them.

    Each place lies a few times only, EIO once only, and the handle goes stale once only.
    """

    def __init__(self, seed: int, share: float) -> None:
        self._seed, self._share = seed, share
        self._told: dict[tuple[str, int | None], int] = {}
        self._once: set[object] = set()
        self._lock = threading.Lock()

    def __call__(self, name: str, offset: int | None, direct: bool) -> Errno | Most | None:
        with self._lock:
            times = self._told[name, offset] = self._told.get((name, offset), 0) + 1
            dice = Random(f"{self._seed} {name} {offset} {times}")
            if times > 4 or dice.random() >= self._share:
                return None
            if name in ("read", "write"):
                return self._about_moving(name, offset, direct, dice)
            return Errno(errno.EINTR) if name in ("open", "fstat", "allocate", "truncate", "sync", "close") else None

    def _about_moving(self, name: str, offset: int | None, direct: bool, dice: Random) -> Errno | Most | None:
        kind = dice.choice(["short", "page", "odd", "eintr", "eagain", "eio", "stale", "refused"])
        if kind in ("short", "page", "odd"):
            return Most(
                {
                    "short": dice.randint(1, 70_000),
                    "page": 4096,
                    "odd": 1 + 2 * dice.randint(0, dice.choice([1000, 9000])),
                }[kind]
            )
        if kind == "eio" and self._first("eio", name, offset):
            return Errno(errno.EIO)
        if kind == "stale" and name == "read" and self._first("stale"):
            return Errno(errno.ESTALE)
        if kind == "refused" and direct:
            return Errno(errno.EINVAL)
        return Errno({"eintr": errno.EINTR, "eagain": errno.EAGAIN}.get(kind, errno.EINTR))

    def _first(self, *what: object) -> bool:
        if what in self._once:
            return False
        self._once.add(what)
        return True


@dataclass
class Later:
    """A Pending: its memory must hold the chunk until it has ended."""

    memory: memoryview
    expected: bytes
    wrong: list[str]

    def wait(self) -> None:
        """Look at it once more."""
        if self.memory != self.expected:
            self.wrong.append("the memory was used again while a Pending needed it")


def wanted_of(seed: int) -> tuple[int, list[Range]]:
    """A file's size and disjoint ranges of it in any order: even where hypothesis would rather try small numbers."""
    dice = Random(seed)

    def place(most: int) -> int:
        near = dice.randint(0, most) // 4096 * 4096 + dice.choice([-1, 0, 0, 1])
        return min(max(dice.choice([near, dice.randint(0, most), dice.randint(0, most)]), 0), most)

    size = place(dice.choice([5000, 70_000, MOST]))
    if dice.random() < 0.4:
        return size, [Range(0, size)]
    cuts = sorted(place(size) for _ in range(2 * dice.randint(0, 4)))
    ranges = [Range(start, end - start) for start, end in zip(cuts[::2], cuts[1::2], strict=True)]
    dice.shuffle(ranges)
    return size, ranges


KINDS = {
    "chunk_bytes": st.sampled_from(sorted(POOLS)),
    "threads": st.integers(1, 4),
    "seed": st.integers(0, 1 << 30),
    "share": st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    "alignment": st.sampled_from([None, (512, 512), (4, 4096), (0, 0), (512, 1 << 15)]),
}


def consumer(
    model: bytes, seen: list[Range], wrong: list[str], seed: int
) -> Callable[[int, memoryview], Pending | None]:
    """Checks each chunk, and now and then asks for its memory for longer."""
    lock, dice = threading.Lock(), Random(seed)

    def consume(offset: int, memory: memoryview) -> Pending | None:
        expected = model[offset : offset + len(memory)]
        with lock:
            seen.append(Range(offset, len(memory)))
            if memory != expected:
                wrong.append(f"wrong bytes at {offset}")
            return Later(memory, expected, wrong) if dice.random() < 0.3 else None

    return consume


def joined(ranges: Iterable[Range]) -> list[Range]:
    """The same bytes in as few ranges as can be; a byte that is named twice shows."""
    found: list[Range] = []
    for each in sorted(ranges, key=lambda one: one.offset):
        if found and found[-1].end == each.offset:
            found[-1] = Range(found[-1].offset, found[-1].length + each.length)
        elif each.length:
            found.append(each)
    return found


@SETTINGS
@given(
    wish=st.integers(0, 1 << 40).map(wanted_of),
    resident=st.sampled_from([None, 0.0, 0.5, 1.0]),
    shift=st.sampled_from([None, 0, 1, 64, 4096]),
    **KINDS,
)
def test_reads_what_the_model_holds_whatever_the_system_does(
    wish: tuple[int, list[Range]],
    resident: float | None,
    shift: int | None,
    chunk_bytes: int,
    threads: int,
    seed: int,
    share: float,
    alignment: tuple[int, int] | None,
) -> None:
    size, ranges = wish
    model = Random(seed).randbytes(size)
    system = LyingSystem(bytearray(model), Bearable(seed, share), resident, alignment)
    pool = POOLS[chunk_bytes]
    transport = PosixTransport(pool, threads=threads, calls=system.calls())
    seen: list[Range] = []
    wrong: list[str] = []
    into = None if shift is None else ARENA.view[shift : shift + size + 5000]
    if into is not None:
        into[:] = bytes([UNTOUCHED]) * len(into)
    report = transport.read(PATH, ranges, consumer(model, seen, wrong, seed), into=into, deadline_s=60)
    assert wrong == []
    assert system.violations == []
    assert system.flags == {}, "descriptors stay open"
    assert joined(seen) == joined(ranges)
    assert all(
        each.length <= chunk_bytes and each.offset // chunk_bytes == (each.end - 1) // chunk_bytes for each in seen
    )
    assert report.bytes == sum(each.length for each in ranges)
    assert pool.free == pool.count
    if into is not None:
        expected = bytearray([UNTOUCHED]) * len(into)
        for each in ranges:
            expected[each.offset : each.end] = model[each.offset : each.end]
        assert into == expected, "bytes outside the ranges were written, or bytes inside were not"


@SETTINGS
@given(
    wish=st.integers(0, 1 << 40).map(wanted_of),
    old_size=st.integers(0, MOST),
    exists=st.booleans(),
    loses=st.booleans(),
    **KINDS,
)
def test_writes_what_the_model_holds_and_keeps_the_rest_whatever_the_system_does(
    wish: tuple[int, list[Range]],
    old_size: int,
    exists: bool,
    loses: bool,
    chunk_bytes: int,
    threads: int,
    seed: int,
    share: float,
    alignment: tuple[int, int] | None,
) -> None:
    size, ranges = wish
    dice = Random(seed)
    model, old = dice.randbytes(size), dice.randbytes(old_size if exists else 0)
    bearable = Bearable(seed, share)
    synced = 0

    def lie(name: str, offset: int | None, direct: bool) -> Errno | Most | None:
        nonlocal synced
        if name == "sync":
            synced += 1
            if loses and synced == 1:
                return Errno(errno.EIO)
        return bearable(name, offset, direct)

    system = LyingSystem(bytearray(old), lie, alignment=alignment, exists=exists)
    pool = POOLS[chunk_bytes]
    transport = PosixTransport(pool, threads=threads, calls=system.calls())
    filled: list[Range] = []

    def fill(offset: int, memory: memoryview) -> None:
        filled.append(Range(offset, len(memory)))
        memory[:] = model[offset : offset + len(memory)]

    report = transport.write(PATH, size, fill, ranges=ranges, deadline_s=60)
    expected = bytearray(old[:size]) + bytearray(max(size - len(old), 0))
    for each in ranges:
        expected[each.offset : each.end] = model[each.offset : each.end]
    assert system.durable == expected
    assert system.violations == []
    assert system.flags == {}, "descriptors stay open"
    assert joined(set(filled)) == joined(ranges)
    assert set(Counter(filled).values()) <= {2 if loses else 1}
    assert report.bytes == sum(each.length for each in ranges)
    assert pool.free == pool.count


FATAL = st.sampled_from(
    [
        ("read", Errno(errno.EIO), TransferFailed),
        ("read", Errno(errno.EACCES), TransferFailed),
        ("read", Most(0), FileTruncated),
        ("write", Errno(errno.ENOSPC), NoRoom),
        ("write", Errno(errno.EIO), TransferFailed),
        ("write", Most(0), TransferFailed),
    ]
)


@SETTINGS
@given(fatal=FATAL, at=st.integers(0, 15), direct_only=st.booleans(), threads=st.integers(1, 4), in_place=st.booleans())
def test_what_cannot_be_borne_is_one_error_after_which_nothing_moves(
    fatal: tuple[str, Errno | Most, type[StorageError]], at: int, direct_only: bool, threads: int, in_place: bool
) -> None:
    action, lie, kind = fatal
    model, chunk = Random(at).randbytes(16 * 16384 + 100), 16384

    def told(name: str, offset: int | None, direct: bool) -> Errno | Most | None:
        here = name == action and offset is not None and offset // chunk == at
        return lie if here and (direct or not direct_only) else None

    system, pool = LyingSystem(bytearray(model), told), POOLS[chunk]
    transport = PosixTransport(pool, threads=threads, calls=system.calls())
    into = ARENA.view[: len(model)] if in_place else None
    with pytest.raises(StorageError) as caught:
        if action == "read":
            transport.read(PATH, [Range(0, len(model))], lambda *_: None, into=into, deadline_s=60)
        else:
            transport.write(PATH, len(model), lambda *_: None, deadline_s=60)
    system.over = True
    assert type(caught.value) is kind
    assert str(PATH) in str(caught.value) and "at byte" in str(caught.value)
    if isinstance(caught.value, TransferFailed):
        assert caught.value.offset is not None and caught.value.offset // chunk == at
    assert system.violations == []
    assert system.flags == {}, "descriptors stay open"
    assert pool.free == pool.count
