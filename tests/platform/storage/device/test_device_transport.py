"""Through host memory to a device that copies late and fails: right bytes, or one error that says where."""

import dataclasses
import os
import threading
import time
import weakref
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebbtide.storage.device.device_queue import DeviceQueue, HostQueue
from ebbtide.storage.device.device_transport import DeviceTransport
from ebbtide.storage.device.placements import Placement, place
from ebbtide.storage.device.staged_transport import StagedTransport
from ebbtide.storage.errors import Corrupt, FileTruncated, Refused, TransferFailed, TransferTimeout
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transfer_report import Mode, TransferReport
from ebbtide.storage.transport.transport import Consume, Pending, Range
from tests.examples import examples
from tests.platform.storage.device_fakes import CHUNK, CPU, LONG_S, LateQueue, content_of, flip, indexed, whole
from tests.platform.storage.stores import random_bytes

CONTENT = random_bytes(9 * CHUNK + 4099)
POOL = BufferPool(3, CHUNK)


def staged(queue: DeviceQueue | None = None, *, pool: BufferPool = POOL, threads: int = 2) -> StagedTransport:
    return StagedTransport(PosixTransport(pool, threads=threads), queue or LateQueue())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "f").write_bytes(CONTENT)
    return tmp_path / "f"


def conforms(transport: StagedTransport) -> DeviceTransport:
    """For the type checker."""
    return transport


@pytest.mark.parametrize("queue", [HostQueue, LateQueue])
def test_a_whole_file_arrives_and_the_report_says_how(path: Path, queue: type[HostQueue] | type[LateQueue]) -> None:
    placements, memory = whole(len(CONTENT))
    report = staged(queue()).read_device(path, placements, deadline_s=LONG_S)
    assert content_of(memory) == CONTENT
    assert report.bytes == len(CONTENT) and report.retries == 0 and report.seconds > 0
    assert set(report.bytes_by_mode) <= {Mode.DIRECT, Mode.BUFFERED}
    assert POOL.free == 3 and POOL.buried == 0


@pytest.mark.parametrize(("buffers", "threads"), [(1, 1), (2, 1), (2, 2), (3, 2)])
def test_a_buffer_is_not_lent_again_before_its_copies_have_ended(tmp_path: Path, buffers: int, threads: int) -> None:
    """LateQueue copies when it is waited for, so a buffer that was filled anew meanwhile would give wrong bytes."""
    pool, queue = BufferPool(buffers, CHUNK), LateQueue()
    file = indexed(tmp_path / "f", CONTENT)
    for _ in range(3):
        placements, memory = whole(len(CONTENT))
        staged(queue, pool=pool, threads=threads).read_device(file, placements, deadline_s=LONG_S)
        assert content_of(memory) == CONTENT
    assert pool.free == buffers


def test_the_callers_earlier_work_comes_first(path: Path) -> None:
    queue = LateQueue()
    staged(queue).read_device(path, whole(len(CONTENT))[0], deadline_s=LONG_S)
    assert queue.began == 1


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    spots=st.lists(
        st.tuples(st.integers(0, len(CONTENT)), st.sampled_from([0, 1, 2, 63, 4096, CHUNK, 3 * CHUNK + 1])), max_size=8
    ),
    verify=st.booleans(),
    chunk_bytes=st.sampled_from([4096, CHUNK]),
)
def test_scattered_placements_get_their_bytes(
    tmp_path: Path, spots: list[tuple[int, int]], verify: bool, chunk_bytes: int
) -> None:
    file = indexed(tmp_path / "f", CONTENT, chunk_bytes=chunk_bytes)
    wanted = [
        Placement(offset, torch.full((min(length, len(CONTENT) - offset),), 0xEE, dtype=torch.uint8))
        for offset, length in spots
    ]
    report = staged().read_device(file, wanted, verify=verify, deadline_s=LONG_S)
    for each in wanted:
        assert content_of(each.memory) == CONTENT[each.offset : each.part.end]
    covered = {at for each in wanted for at in range(each.offset, each.part.end)}
    assert report.bytes >= len(covered)
    if not verify:
        assert report.bytes == len(covered)


def test_tensors_of_a_model_are_filled_where_they_are(path: Path) -> None:
    weight, bias = torch.zeros(16, 32, dtype=torch.bfloat16), torch.zeros(7, dtype=torch.float32)
    staged().read_device(path, [place(8, weight), place(8 + 1024, bias)], deadline_s=LONG_S)
    assert content_of(weight.view(-1).view(torch.uint8)) == CONTENT[8 : 8 + 1024]
    assert content_of(bias.view(torch.uint8)) == CONTENT[8 + 1024 : 8 + 1024 + 28]


@pytest.mark.proves("a file on the way to a device is checked")
def test_a_flipped_bit_is_never_copied(tmp_path: Path) -> None:
    file = indexed(tmp_path / "f", CONTENT)
    flip(file.path, 4 * CHUNK + 5)
    placements, memory = whole(len(CONTENT))
    with pytest.raises(Corrupt, match=rf"f at byte {4 * CHUNK}: chunk of 65536 bytes of file f is not what"):
        staged().read_device(file, placements, deadline_s=LONG_S)
    assert content_of(memory[4 * CHUNK : 5 * CHUNK]) == b"\xee" * CHUNK
    assert POOL.free == 3
    staged().read_device(file, placements, verify=False, deadline_s=LONG_S)
    assert content_of(memory) == file.path.read_bytes()


def test_the_whole_chunk_is_checked_even_if_less_is_wanted(tmp_path: Path) -> None:
    file = indexed(tmp_path / "f", CONTENT)
    flip(file.path, CHUNK - 1)
    placements, _memory = whole(1)
    with pytest.raises(Corrupt):
        staged().read_device(file, placements, deadline_s=LONG_S)


class SpoiltOnce:
    """A transport whose first chunk comes wrong, as from a bad page in a cache."""

    def __init__(self) -> None:
        self._real, self._spoilt = PosixTransport(POOL, threads=1), False

    def read(
        self, path: Path, ranges: Iterable[Range], consume: Consume, *, into: object = None, deadline_s: float
    ) -> TransferReport:
        def spoil(offset: int, memory: memoryview) -> Pending | None:
            if not self._spoilt:
                self._spoilt = True
                memory[3] ^= 1
            return consume(offset, memory)

        return self._real.read(path, ranges, spoil, deadline_s=deadline_s)

    write = PosixTransport.write


def test_a_chunk_that_came_wrong_is_looked_at_again_and_counted(tmp_path: Path) -> None:
    file = indexed(tmp_path / "f", CONTENT)
    placements, memory = whole(len(CONTENT))
    transport = StagedTransport(SpoiltOnce(), LateQueue())
    report = transport.read_device(file, placements, deadline_s=LONG_S)
    assert content_of(memory) == CONTENT and report.retries == 1


def test_a_file_that_ends_early_says_where(path: Path, tmp_path: Path) -> None:
    os.truncate(path, 5 * CHUNK + 1)
    placements, _ = whole(len(CONTENT))
    with pytest.raises(FileTruncated) as caught:
        staged().read_device(path, placements, deadline_s=LONG_S)
    assert caught.value.offset == 5 * CHUNK + 1 and caught.value.path == path
    with pytest.raises(TransferFailed, match="ENOENT"):
        staged().read_device(tmp_path / "none", placements, deadline_s=LONG_S)
    with pytest.raises(Refused, match="is not in file f"):
        staged().read_device(indexed(path, CONTENT[:-1]), placements, deadline_s=LONG_S)


@pytest.mark.parametrize("queue", [{"refuse": 4}, {"refuse_wait": 4}, {"refuse": 0}, {"refuse_wait": 0}])
def test_a_device_that_fails_is_one_error_with_file_and_place(path: Path, queue: dict[str, int]) -> None:
    placements, _ = whole(len(CONTENT))
    with pytest.raises(TransferFailed, match="the device refuses: CUDA error") as caught:
        staged(LateQueue(**queue)).read_device(path, placements, deadline_s=LONG_S)
    assert caught.value.action == "copy" and caught.value.path == path
    assert caught.value.offset is not None and caught.value.offset % CHUNK == 0
    assert "\n" not in str(caught.value)
    assert POOL.free == 3 and POOL.buried == 0


def test_a_device_that_hangs_ends_in_time_and_its_buffer_is_buried(path: Path) -> None:
    pool, queue, go = BufferPool(2, CHUNK), LateQueue(), threading.Event()
    queue.before_wait = lambda: go.wait(LONG_S)
    placements, _ = whole(len(CONTENT))
    began = time.monotonic()
    with pytest.raises(TransferTimeout):
        staged(queue, pool=pool, threads=1).read_device(path, placements, deadline_s=0.4)
    assert time.monotonic() - began < 10
    assert pool.buried >= 1
    went_on, memory_again = whole(CHUNK)  # the pool serves others meanwhile
    staged(LateQueue(), pool=pool, threads=1).read_device(path, went_on, deadline_s=LONG_S)
    assert content_of(memory_again) == CONTENT[:CHUNK]
    go.set()
    until = time.monotonic() + LONG_S
    while pool.buried and time.monotonic() < until:
        time.sleep(0.01)
    assert pool.buried == 0


def test_the_callers_memory_is_let_go_of(path: Path) -> None:
    placements, memory = whole(len(CONTENT))
    gone = weakref.ref(memory)
    staged().read_device(path, placements, deadline_s=LONG_S)
    del placements, memory
    assert gone() is None


def test_reasons_add_up_in_the_report(path: Path) -> None:
    transport = StagedTransport(PosixTransport(POOL, threads=1), LateQueue(), why_not_better="cuFile sulks")
    report = transport.read_device(path, whole(10)[0], deadline_s=LONG_S)
    assert report.why_not_better.startswith("cuFile sulks")
    assert dataclasses.replace(report, why_not_better="").bytes == 10
    assert transport.device == CPU


def test_nothing_wanted_is_nothing_read(path: Path) -> None:
    assert staged().read_device(path, [], deadline_s=LONG_S).bytes == 0
