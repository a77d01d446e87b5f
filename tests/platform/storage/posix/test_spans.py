"""One span in several requests: where each begins, and what ends them."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from ebbtide.storage.errors import StorageError, TransferFailed
from ebbtide.storage.memory.arena import Arena
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix.file_handle import OpenedFile
from ebbtide.storage.posix.posix_calls import Requests
from ebbtide.storage.posix.spans import Spans
from ebbtide.storage.posix.transfer_threads import TransferThreads
from ebbtide.storage.transport.transfer_report import Mode
from tests.platform.storage.shim.lying_system import Errno, LyingSystem, Most

PATH = Path("made-up")
POOL = BufferPool(1, 4096)
BYTES = Random(0).randbytes(40_000)
MEMORY = Arena(1 << 16).view
ASKED = list[tuple[int, bool]]


class Nothing(StorageError):
    """What a request that moved nothing is."""


def made(lies: list[Errno | Most | None]) -> tuple[Callable[[int, int, bool], Mode], ASKED, Requests]:
    """A function that reads a span under these lies, one for each request, and where its requests began."""
    asked: ASKED = []

    def lie(name: str, offset: int | None, direct: bool) -> Errno | Most | None:
        if name != "read" or offset is None:
            return None
        asked.append((offset, direct))
        return lies.pop(0) if lies else None

    system = LyingSystem(bytearray(BYTES), lie)
    requests = Requests(PATH, TransferThreads(PATH, POOL, threads=1, deadline_s=60))
    file = OpenedFile(PATH, requests, system.calls(), flags=os.O_RDONLY, chunk_bytes=1 << 20)
    spans = Spans("read", file, requests, system.preadv, nothing=lambda at: Nothing(str(at)), reopen=True)

    def move(start: int, need: int, direct: bool) -> Mode:
        whole = -(-need // 4096) * 4096
        mode = spans.move(MEMORY[: whole if direct else need], start, need, direct=direct)
        assert MEMORY[:need] == BYTES[start : start + need]
        assert system.violations == []
        return mode

    return move, asked, requests


def test_a_whole_answer_needs_one_request() -> None:
    move, asked, requests = made([])
    assert move(4096, 10_000, True) is Mode.DIRECT
    assert (asked, requests.retries) == ([(4096, True)], 0)


@pytest.mark.parametrize(("most", "again"), [(8192, 12288), (8191, 8192), (4097, 8192), (4095 + 4096, 8192)])
def test_a_direct_request_goes_on_from_the_aligned_byte(most: int, again: int) -> None:
    move, asked, requests = made([Most(most)])
    assert move(4096, 20_000, True) is Mode.DIRECT
    assert (asked, requests.retries) == ([(4096, True), (again, True)], 1)


def test_a_cached_request_goes_on_from_the_very_byte() -> None:
    move, asked, _ = made([Most(1), Most(9)])
    assert move(3, 20_000, False) is Mode.BUFFERED
    assert asked == [(3, False), (4, False), (13, False)]


def test_a_direct_request_that_brings_nothing_new_is_the_last_direct_one() -> None:
    move, asked, requests = made([Most(5000), Most(900)])
    assert move(0, 20_000, True) is Mode.BUFFERED
    assert asked == [(0, True), (4096, True), (4096, False)]
    assert requests.retries == 2


def test_a_span_that_ends_at_the_files_odd_end_needs_no_second_request() -> None:
    move, asked, _ = made([])
    assert move(36864, len(BYTES) - 36864, True) is Mode.DIRECT
    assert asked == [(36864, True)]


def test_nothing_is_an_error_at_its_byte() -> None:
    move, _, _ = made([Most(8192), Most(0)])
    with pytest.raises(Nothing, match=r"^8192$"):
        move(0, 20_000, True)


def test_a_stale_handle_is_asked_on_a_new_one_from_where_it_stood() -> None:
    move, asked, _ = made([Most(8192), Errno(errno.ESTALE)])
    assert move(0, 20_000, True) is Mode.DIRECT
    assert asked == [(0, True), (8192, True), (8192, True)]


def test_stale_twice_is_an_error_at_its_byte() -> None:
    move, _, _ = made([Most(8192), Errno(errno.ESTALE), Errno(errno.ESTALE)])
    with pytest.raises(TransferFailed) as caught:
        move(0, 20_000, True)
    assert (caught.value.errno, caught.value.offset) == (errno.ESTALE, 8192)


def test_a_refusal_is_asked_again_through_the_cache() -> None:
    move, asked, _ = made([Most(5000), Errno(errno.EINVAL)])
    assert move(0, 20_000, True) is Mode.BUFFERED
    assert asked == [(0, True), (4096, True), (4096, False)]


def test_a_refusal_through_the_cache_is_an_error() -> None:
    move, _, _ = made([Errno(errno.EINVAL)])
    with pytest.raises(TransferFailed) as caught:
        move(0, 20_000, False)
    assert caught.value.errno == errno.EINVAL
