"""A transfer that fails or hangs: one error, the right one, in time, and nothing goes on behind its back."""

import errno
import threading
import time

import pytest

from ebbtide.storage.errors import FileTruncated, NoRoom, TransferFailed, TransferTimeout
from ebbtide.storage.memory.arena import Arena
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix import posix_transport
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transport import Range
from tests.platform.storage.posix.made_up_file import ALL, BYTES, CHUNK, LONG_S, PATH, ignore
from tests.platform.storage.shim.lying_system import Errno, Hang, LyingSystem, Most, until


def test_the_size_is_looked_at_before_anything_is_read(system: LyingSystem, transport: PosixTransport) -> None:
    with pytest.raises(FileTruncated) as caught:
        transport.read(PATH, [Range(0, len(BYTES) + 1)], ignore, deadline_s=LONG_S)
    assert (caught.value.offset, caught.value.expected_bytes) == (len(BYTES), len(BYTES) + 1)
    assert system.counts["read"] == 0 and system.flags == {}


def test_what_consume_raises_comes_out_unchanged_and_ends_the_transfer(
    system: LyingSystem, transport: PosixTransport, pool: BufferPool
) -> None:
    mine, calls = KeyError("mine"), []

    def consume(offset: int, memory: memoryview) -> None:
        calls.append(offset)
        raise mine

    with pytest.raises(KeyError) as caught:
        transport.read(PATH, ALL, consume, deadline_s=LONG_S)
    assert caught.value is mine
    assert len(calls) <= 2 and pool.free == 4 and system.flags == {}


def test_what_fill_raises_comes_out_unchanged_and_nothing_is_synced(
    system: LyingSystem, transport: PosixTransport, pool: BufferPool
) -> None:
    mine = KeyError("mine")

    def fill(offset: int, memory: memoryview) -> None:
        raise mine

    with pytest.raises(KeyError) as caught:
        transport.write(PATH, len(BYTES), fill, deadline_s=LONG_S)
    assert caught.value is mine
    assert system.counts["sync"] == 0 and pool.free == 4 and system.flags == {}


@pytest.mark.parametrize("in_place", [False, True])
def test_when_one_chunk_fails_the_others_end_before_the_caller_gets_control(pool: BufferPool, in_place: bool) -> None:
    slow, failed = threading.Event(), threading.Event()

    def lie(name: str, offset: int | None, direct: bool) -> Errno | Most | None:
        if name == "read" and offset == 0:
            slow.set()
            assert failed.wait(LONG_S)
            time.sleep(0.2)
        if name == "read" and offset == CHUNK:
            assert slow.wait(LONG_S)
            failed.set()
            return Errno(errno.EACCES)
        return None

    system = LyingSystem(bytearray(BYTES), lie)
    transport = PosixTransport(pool, threads=2, calls=system.calls())
    memory = Arena(len(BYTES)).view
    with pytest.raises(TransferFailed):
        transport.read(PATH, ALL, ignore, into=memory if in_place else None, deadline_s=LONG_S)
    system.over = True
    before = bytes(memory)
    time.sleep(0.4)
    assert bytes(memory) == before, "written after the return"
    assert system.violations == [] and system.flags == {} and pool.free == 4


def test_a_hanging_read_ends_in_time_names_its_byte_and_is_not_handed_over_when_it_answers(pool: BufferPool) -> None:
    hang, handed = Hang("read", CHUNK), list[int]()
    system = LyingSystem(bytearray(BYTES), hang)
    transport = PosixTransport(pool, threads=2, calls=system.calls())
    began = time.monotonic()
    with pytest.raises(TransferTimeout, match=f"read made-up at byte {CHUNK}") as caught:
        transport.read(PATH, ALL, lambda offset, memory: handed.append(offset), deadline_s=0.5)
    assert time.monotonic() - began < 5
    assert caught.value.offset == CHUNK
    seen = list(handed)
    assert pool.buried == 1 and CHUNK not in seen
    hang.answer.set()
    until(lambda: pool.buried == 0 and system.flags == {})
    assert handed == seen, "handed over after the return"
    assert system.violations == [], "its descriptors were closed under a call"


def test_a_hanging_read_is_not_copied_when_it_answers(pool: BufferPool) -> None:
    hang = Hang("read", 0)
    system = LyingSystem(bytearray(BYTES), hang)
    memory = Arena(len(BYTES) + 1).view[1:]  # not aligned like the file: read elsewhere, then copied
    memory[:] = bytes(len(memory))
    with pytest.raises(TransferTimeout):
        PosixTransport(pool, threads=1, calls=system.calls()).read(PATH, ALL, ignore, into=memory, deadline_s=0.3)
    hang.answer.set()
    until(lambda: system.flags == {})
    assert bytes(memory) == bytes(len(memory))


def test_memory_that_a_hanging_read_may_write_is_kept_alive(pool: BufferPool) -> None:
    hang = Hang("read")
    system = LyingSystem(bytearray(BYTES), hang)
    memory = bytearray(len(BYTES))
    with pytest.raises(TransferTimeout):
        PosixTransport(pool, threads=1, calls=system.calls()).read(
            PATH, ALL, ignore, into=memoryview(memory), deadline_s=0.3
        )
    with pytest.raises(BufferError):
        memory.extend(b"x")  # would move it
    hang.answer.set()


def test_a_hanging_mount_does_not_starve_another_and_comes_back(pool: BufferPool) -> None:
    hang = Hang("read")
    dead = PosixTransport(pool, threads=4, calls=LyingSystem(bytearray(BYTES), hang).calls())
    alive = PosixTransport(pool, threads=4, calls=LyingSystem(bytearray(BYTES)).calls())
    with pytest.raises(TransferTimeout):
        dead.read(PATH, ALL, ignore, deadline_s=0.3)
    assert pool.buried == 4
    assert alive.read(PATH, ALL, ignore, deadline_s=LONG_S).bytes == len(BYTES)
    with pytest.raises(TransferTimeout):
        dead.read(PATH, ALL, ignore, deadline_s=0.3)
    assert (pool.buried, pool.replacements) == (8, 4)
    with pytest.raises(TransferTimeout) as caught:
        alive.read(PATH, ALL, ignore, deadline_s=0.3)
    assert caught.value.action == "borrow a buffer for", "no buffer is left that may be lent"
    hang.answer.set()
    until(lambda: pool.buried == 0)
    assert alive.read(PATH, ALL, ignore, deadline_s=LONG_S).bytes == len(BYTES)


def test_too_many_hanging_transfers_turn_new_ones_away_at_once(
    pool: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posix_transport, "MOST_STUCK", 2)
    hang = Hang("open")
    system = LyingSystem(bytearray(BYTES), hang)
    transport = PosixTransport(pool, threads=1, calls=system.calls())
    for _ in range(2):
        with pytest.raises(TransferTimeout):
            transport.read(PATH, ALL, ignore, deadline_s=0.1)
    with pytest.raises(TransferTimeout):
        transport.read(PATH, ALL, ignore, deadline_s=5)
    assert system.counts["open"] == 2, "a third was begun"
    hang.answer.set()
    until(lambda: system.flags == {} and system.counts["close"] == 2)
    assert transport.read(PATH, ALL, ignore, deadline_s=LONG_S).bytes == len(BYTES)


@pytest.mark.parametrize("action", ["open", "read", "close"])
def test_a_hanging_read_says_at_what(pool: BufferPool, action: str) -> None:
    hang = Hang(action)
    system = LyingSystem(bytearray(BYTES), hang)
    with pytest.raises(TransferTimeout) as caught:
        PosixTransport(pool, threads=2, calls=system.calls()).read(PATH, ALL, ignore, deadline_s=0.4)
    assert caught.value.action == action
    hang.answer.set()
    until(lambda: system.flags == {} and pool.free == 4)
    assert system.violations == []


@pytest.mark.parametrize("action", ["open", "allocate", "write", "sync", "close"])
def test_a_hanging_write_ends_in_time_and_says_where(pool: BufferPool, action: str) -> None:
    hang = Hang(action)
    system = LyingSystem(bytearray(BYTES), hang)
    with pytest.raises(TransferTimeout) as caught:
        PosixTransport(pool, threads=2, calls=system.calls()).write(PATH, len(BYTES), ignore, deadline_s=0.4)
    assert caught.value.action == action
    hang.answer.set()
    until(lambda: system.flags == {} and pool.free == 4)
    assert system.violations == []
    assert system.counts["sync"] <= (action in ("sync", "close")), "synced after it was given up"


def test_a_limit_of_threads_that_passes_turns_nothing_away_afterwards(
    transport: PosixTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(posix_transport.MOST_STUCK + 1):
            with pytest.raises(TransferFailed, match="limit of threads"):
                transport.read(PATH, ALL, ignore, deadline_s=LONG_S)
    transport.read(PATH, ALL, ignore, deadline_s=LONG_S)


def test_a_stale_handle_is_not_exchanged_for_another_file(pool: BufferPool) -> None:
    def lie(name: str, offset: int | None, direct: bool) -> Errno | Most | None:
        if name == "read" and offset == CHUNK and system.inode == 1:
            system.inode = 2  # another file has been renamed over it
            return Errno(errno.ESTALE)
        return None

    system = LyingSystem(bytearray(BYTES), lie)
    with pytest.raises(TransferFailed, match="another file has taken its place") as caught:
        PosixTransport(pool, threads=1, calls=system.calls()).read(PATH, ALL, ignore, deadline_s=LONG_S)
    assert caught.value.errno == errno.ESTALE
    assert system.flags == {}


def test_two_handles_that_lead_to_two_files_are_refused(pool: BufferPool) -> None:
    opened: list[int] = []

    def lie(name: str, offset: int | None, direct: bool) -> Errno | Most | None:
        if name == "open":
            opened.append(1)
            system.inode = len(opened)  # replaced between the one open and the other
        return None

    system = LyingSystem(bytearray(BYTES), lie)
    with pytest.raises(TransferFailed, match="another file"):
        PosixTransport(pool, threads=1, calls=system.calls()).write(PATH, len(BYTES), ignore, deadline_s=LONG_S)
    assert system.counts["write"] == 0 and system.flags == {}


def test_no_room_is_said_before_anything_is_written(pool: BufferPool) -> None:
    filled: list[int] = []

    def lie(name: str, offset: int | None, direct: bool) -> Errno | Most | None:
        return Errno(errno.ENOSPC) if name == "allocate" else None

    system = LyingSystem(bytearray(), lie)
    with pytest.raises(NoRoom, match=r"allocate made-up.*ENOSPC.*free some space"):
        PosixTransport(pool, calls=system.calls()).write(
            PATH, len(BYTES), lambda offset, memory: filled.append(offset), deadline_s=LONG_S
        )
    assert filled == [] and system.counts["write"] == 0


def test_what_an_earlier_request_brought_is_lost_when_a_later_one_went_over_it(pool: BufferPool) -> None:
    answers = [Most(1001), Most(501)]  # the second brings nothing new, and scribbles over half of the first

    def lie(name: str, offset: int | None, direct: bool) -> Errno | Most | None:
        return answers.pop(0) if name == "read" and answers else None

    found = bytearray(3000)

    def consume(offset: int, memory: memoryview) -> None:
        found[:] = memory

    system = LyingSystem(bytearray(BYTES[:3000]), lie)
    PosixTransport(pool, threads=1, calls=system.calls()).read(PATH, [Range(0, 3000)], consume, deadline_s=LONG_S)
    assert found == BYTES[:3000]
