"""Page-locking that fails leaves a pool that works; the rest of the queue of a GPU is tested on one (tests/gpu)."""

import logging

import pytest
import torch

from ebbtide.storage.device.device_queue import CudaQueue, HostQueue, Pinning, pinned_pool, queue_for
from ebbtide.storage.memory.arena import Arena
from ebbtide.storage.transport.transport import CHUNK_BYTES


class Runtime:
    """The CUDA runtime, which answers a registration with ``status``."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.calls: list[tuple[int, int, int]] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.calls.append((address, size, flags))
        return self.status


def test_each_arena_is_page_locked_once_for_all_devices() -> None:
    runtime = Runtime()
    pinning = Pinning(lambda: runtime)
    arena = Arena(5 << 20, register=pinning)
    assert runtime.calls == [(arena.address, 6 << 20, 1)]
    assert pinning.why_not == ""


def test_a_refusal_is_told_and_the_pool_works_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        pool, why = pinned_pool(1, pinning=Pinning(lambda: Runtime(2)))
    assert why == "host memory is not page-locked: cudaHostRegister gives error 2"
    assert [record.message for record in caplog.records] == [f"{why}; copies to the device will be slow"]
    buffer = pool.borrow(0)
    assert buffer is not None and len(buffer.memory) == CHUNK_BYTES


def test_an_error_of_registering_is_not_left_for_the_next_kernel() -> None:
    asked: list[str] = []

    def take_up() -> None:
        asked.append("a kernel")
        raise RuntimeError("CUDA error: out of memory")

    Pinning(lambda: Runtime(2), take_up)(0, 4096)
    Pinning(lambda: Runtime(), take_up)(0, 4096)
    assert asked == ["a kernel"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_cuda_the_reason_is_torchs() -> None:
    pinning = Pinning()
    pinning(0, 4096)
    assert pinning.why_not.startswith("host memory is not page-locked: ")


def test_a_pool_that_pins_is_made_of_one_arena() -> None:
    runtime = Runtime()
    _pool, why = pinned_pool(2, pinning=Pinning(lambda: runtime))
    assert why == "" and [size for _address, size, _flags in runtime.calls] == [2 * CHUNK_BYTES]


def test_the_host_as_a_device_copies_at_once() -> None:
    queue = queue_for("cpu")
    assert isinstance(queue, HostQueue) and queue.device == torch.device("cpu")
    queue.begin()
    queue.enter()
    source, target = torch.arange(4, dtype=torch.uint8), torch.zeros(4, dtype=torch.uint8)
    with queue.scope():
        queue.copy(target, source)
    source.zero_()
    assert queue.mark() is None and target.tolist() == [0, 1, 2, 3]


class FakeStream:
    """A CUDA stream that writes down what is asked of it."""

    def __init__(self, log: list[object], device: object = None) -> None:
        self.log, self.device = log, device

    def wait_stream(self, other: object) -> None:
        self.log.append(("wait for", other))

    def __enter__(self) -> None:
        self.log.append("in")

    def __exit__(self, *_error: object) -> None:
        self.log.append("out")


class FakeEvent:
    def __init__(self, log: list[object], *, blocking: bool) -> None:
        assert blocking, "who waits must not spin"
        self.log = log

    def record(self, stream: object) -> None:
        self.log.append(("record on", stream))

    def synchronize(self) -> None:
        self.log.append("waited")


def test_a_gpus_copies_follow_the_callers_work_and_are_waited_for_by_event(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[object] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(log, device))
    monkeypatch.setattr(torch.cuda, "Event", lambda *, blocking: FakeEvent(log, blocking=blocking))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("the caller's", device))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: log.append(("device", device)))
    queue = queue_for("cuda")
    device = torch.device("cuda", 3)
    assert isinstance(queue, CudaQueue) and queue.device == device
    queue.begin()
    queue.enter()
    target = torch.zeros(2, dtype=torch.uint8)
    queue.copy(target, torch.ones(2, dtype=torch.uint8))
    pending = queue.mark()
    assert pending is not None
    pending.wait()
    stream = queue._stream
    assert stream.device == device
    assert log == [
        ("wait for", ("the caller's", device)),
        ("device", device),
        "in",
        "out",
        ("record on", stream),
        "waited",
    ]
    assert target.tolist() == [1, 1]
    assert queue_for("cuda:1").device == torch.device("cuda", 1)
