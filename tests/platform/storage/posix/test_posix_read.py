"""Chunks handed over: how long their memory is theirs, and who waits for whom."""

import errno
import threading
import time
from typing import Any

import pytest

from ebbtide.storage.errors import TransferFailed
from ebbtide.storage.memory.arena import Arena
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix import posix_read
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transport import Pending, Range
from tests.platform.storage.posix.made_up_file import ALL, BYTES, CHUNK, LONG_S, PATH, ignore
from tests.platform.storage.shim.lying_system import Errno, LyingSystem, Most


class Later:
    """A Pending that ends when told."""

    def __init__(self, memory: memoryview, error: Exception | None = None) -> None:
        self.memory, self.error = memory, error
        self.may_end, self.ended = threading.Event(), False

    def wait(self) -> None:
        """Until told."""
        assert self.may_end.wait(LONG_S)
        self.ended = True
        if self.error is not None:
            raise self.error


def test_a_buffer_is_not_lent_again_before_its_pending_has_ended(system: LyingSystem, pool: BufferPool) -> None:
    pendings: dict[int, Later] = {}
    both = threading.Event()

    def consume(offset: int, memory: memoryview) -> Pending:
        pendings[offset] = Later(memory)
        if len(pendings) == 2:
            both.set()
        return pendings[offset]

    transport, reports = PosixTransport(pool, threads=1, calls=system.calls()), list[Any]()
    runs = threading.Thread(target=lambda: reports.append(transport.read(PATH, ALL, consume, deadline_s=LONG_S)))
    runs.start()
    assert both.wait(LONG_S), "the second chunk is fetched while the first is still being copied away"
    time.sleep(0.1)
    assert sorted(pendings) == [0, CHUNK], "no third before the first has ended: two buffers for each thread"
    assert pendings[0].memory == BYTES[:CHUNK] and pendings[CHUNK].memory == BYTES[CHUNK : 2 * CHUNK]
    while runs.is_alive():
        for one in list(pendings.values()):
            one.may_end.set()
        time.sleep(0.001)
    assert all(one.ended for one in pendings.values()) and len(pendings) == 5
    assert reports[0].bytes == len(BYTES) and pool.free == 4


def test_one_buffer_is_enough_also_with_pendings_and_threads(system: LyingSystem) -> None:
    pool = BufferPool(1, CHUNK)

    def consume(offset: int, memory: memoryview) -> Pending:
        later = Later(memory)
        later.may_end.set()
        return later

    transport = PosixTransport(pool, threads=4, calls=system.calls())
    assert transport.read(PATH, ALL, consume, deadline_s=LONG_S).bytes == len(BYTES)
    assert transport.write(PATH, len(BYTES), ignore, deadline_s=LONG_S).bytes == len(BYTES)
    assert pool.free == 1


def test_what_a_pending_raises_ends_the_transfer_and_comes_out(
    system: LyingSystem, transport: PosixTransport, pool: BufferPool
) -> None:
    mine = RuntimeError("the device is gone")

    def consume(offset: int, memory: memoryview) -> Pending:
        later = Later(memory, mine)
        later.may_end.set()
        return later

    with pytest.raises(RuntimeError) as caught:
        transport.read(PATH, ALL, consume, deadline_s=LONG_S)
    assert caught.value is mine and pool.free == 4 and system.flags == {}


def test_the_first_failure_counts_also_when_a_pending_fails_while_cleaning_up(pool: BufferPool) -> None:
    def lie(name: str, offset: int | None, direct: bool) -> Errno | Most | None:
        return Errno(errno.EACCES) if name == "read" and offset == CHUNK else None

    def consume(offset: int, memory: memoryview) -> Pending:
        later = Later(memory, RuntimeError("second"))
        later.may_end.set()
        return later

    system = LyingSystem(bytearray(BYTES), lie)
    with pytest.raises(TransferFailed) as caught:
        PosixTransport(pool, threads=1, calls=system.calls()).read(PATH, ALL, consume, deadline_s=LONG_S)
    assert caught.value.errno == errno.EACCES and pool.free == 4


def test_a_reference_kept_beyond_the_callback_raises_and_shows_no_other_chunk(transport: PosixTransport) -> None:
    kept: list[memoryview] = []
    transport.read(PATH, ALL, lambda offset, memory: kept.append(memory), deadline_s=LONG_S)
    with pytest.raises(ValueError, match="released"):
        kept[0][0]


def test_threads_share_one_transport(pool: BufferPool, system: LyingSystem) -> None:
    transport, failures = PosixTransport(pool, threads=3, calls=system.calls()), list[BaseException]()

    def work() -> None:
        for _ in range(10):
            found = bytearray(len(BYTES))

            def consume(offset: int, memory: memoryview, found: bytearray = found) -> None:
                found[offset : offset + len(memory)] = memory

            transport.read(PATH, ALL, consume, deadline_s=LONG_S)
            if found != BYTES:
                failures.append(AssertionError("wrong bytes"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert failures == [] and pool.free == 4


def test_views_of_the_callers_own_memory_may_be_kept(transport: PosixTransport) -> None:
    kept: dict[int, memoryview] = {}
    memory = memoryview(bytearray(len(BYTES)))
    transport.read(PATH, ALL, lambda offset, chunk: kept.update({offset: chunk}), into=memory, deadline_s=LONG_S)
    assert b"".join(kept[offset] for offset in sorted(kept)) == BYTES


@pytest.mark.parametrize("start", [0, 1, 4095, 4096])
@pytest.mark.parametrize("end", [CHUNK, CHUNK + 4095, 2 * CHUNK - 1, 3 * CHUNK + 1000, len(BYTES)])
def test_in_place_only_the_aligned_middle_is_read_and_nothing_outside_the_range_is_touched(
    system: LyingSystem, transport: PosixTransport, monkeypatch: pytest.MonkeyPatch, start: int, end: int
) -> None:
    monkeypatch.setattr(posix_read, "LEAST_IN_PLACE_BYTES", 4096)
    memory = Arena(2 * len(BYTES)).view
    memory[:] = b"u" * len(memory)
    transport.read(PATH, [Range(start, end - start)], ignore, into=memory, deadline_s=LONG_S)
    assert memory[start:end] == BYTES[start:end]
    assert bytes(memory[:start]) == b"u" * start
    assert bytes(memory[end:]) == b"u" * (len(memory) - end)
    assert system.violations == []


def test_small_ranges_and_memory_that_lies_elsewhere_take_one_request_for_each_chunk(
    system: LyingSystem, transport: PosixTransport
) -> None:
    memory = Arena(2 * len(BYTES)).view
    transport.read(PATH, [Range(1, 9000)], ignore, into=memory, deadline_s=LONG_S)
    assert (system.counts["read"], bytes(memory[1:9001])) == (1, BYTES[1:9001])
    transport.read(PATH, ALL, ignore, into=memory[64:], deadline_s=LONG_S)
    assert (system.counts["read"], bytes(memory[64 : 64 + len(BYTES)])) == (6, BYTES)
