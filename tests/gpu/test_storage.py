"""On a real GPU: streams, page-locked memory, hashes and, where cuFile works, DMA. Needs PyTorch, numpy and xxhash.

On a bare machine: ``PYTHONPATH=platform:. python -m pytest -c /dev/null --rootdir . --import-mode=importlib
tests/gpu/test_storage.py`` (pytest and hypothesis are needed). What is not there is skipped with its reason.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebbtide.storage.device.device_hash import DeviceHasher
from ebbtide.storage.device.device_queue import CudaQueue, Pinning, pinned_pool, queue_for
from ebbtide.storage.device.device_transport import DeviceTransport
from ebbtide.storage.device.gds_transport import GdsSettings, GdsTransport
from ebbtide.storage.device.kvikio_files import KvikioFiles
from ebbtide.storage.device.placements import Placement, place
from ebbtide.storage.device.staged_transport import StagedTransport
from ebbtide.storage.device.transport_choice import Way, device_transport, probe_directory
from ebbtide.storage.errors import Corrupt
from ebbtide.storage.integrity.chunk_hash import device_hash
from ebbtide.storage.memory.arena import Arena
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transfer_report import Mode
from ebbtide.storage.transport.transport import CHUNK_BYTES
from tests.platform.storage.device_fakes import LONG_S, flip, indexed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use"),
]
CONTENT = np.random.default_rng(0).bytes(2 * CHUNK_BYTES + 4099)


def cuda() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def whole_on_gpu(size: int) -> tuple[list[Placement], torch.Tensor]:
    memory = torch.full((size,), 0xEE, dtype=torch.uint8, device=cuda())
    return [Placement(0, memory)], memory


@pytest.fixture(params=["staged", "kvikio through host memory", "gds", "gds registered"])
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> DeviceTransport:
    """Each way that this machine has."""
    if request.param == "staged":
        return StagedTransport(PosixTransport(pinned_pool(8)[0], threads=4), queue_for("cuda"))
    pytest.importorskip("kvikio", exc_type=ImportError)
    if request.param == "kvikio through host memory":
        return GdsTransport(KvikioFiles(through_host=True), queue_for("cuda"))
    verdict = probe_directory(tmp_path)
    if not verdict.works:
        pytest.skip(verdict.why)
    return GdsTransport(KvikioFiles(), queue_for("cuda"), GdsSettings(register=request.param == "gds registered"))


def test_the_bytes_arrive_and_are_checked(tmp_path: Path, transport: DeviceTransport) -> None:
    file = indexed(tmp_path / "f", CONTENT, chunk_bytes=CHUNK_BYTES)
    placements, memory = whole_on_gpu(len(CONTENT))
    report = transport.read_device(file, placements, deadline_s=LONG_S)
    assert bytes(memory.cpu().numpy()) == CONTENT and report.bytes == len(CONTENT)
    flip(file.path, CHUNK_BYTES + 7)
    with pytest.raises(Corrupt):
        transport.read_device(file, placements, deadline_s=LONG_S)


def test_scattered_parameters_get_their_bytes(tmp_path: Path, transport: DeviceTransport) -> None:
    path = tmp_path / "f"
    path.write_bytes(CONTENT)
    weight = torch.zeros(1000, 511, dtype=torch.bfloat16, device=cuda())
    bias = torch.zeros(77, dtype=torch.float32, device=cuda())
    transport.read_device(path, [place(CHUNK_BYTES - 10, weight), place(3, bias)], deadline_s=LONG_S)
    assert bytes(weight.view(torch.uint8).reshape(-1).cpu().numpy()) == CONTENT[CHUNK_BYTES - 10 :][: 2 * 511_000]
    assert bytes(bias.view(torch.uint8).cpu().numpy()) == CONTENT[3 : 3 + 308]


def test_what_the_caller_had_queued_comes_first(tmp_path: Path, transport: DeviceTransport) -> None:
    """A long kernel that writes into the same memory was queued before: its bytes must not win."""
    path = tmp_path / "f"
    path.write_bytes(CONTENT)
    placements, memory = whole_on_gpu(len(CONTENT))
    large = torch.ones(8192, 8192, device=cuda())
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(50):
            large @= large
            large /= 8192
        memory.fill_(0x11)
        transport.read_device(path, placements, deadline_s=LONG_S)
    assert bytes(memory.cpu().numpy()) == CONTENT


def test_what_the_caller_queues_after_finds_the_bytes(tmp_path: Path, transport: DeviceTransport) -> None:
    path = tmp_path / "f"
    path.write_bytes(CONTENT)
    placements, memory = whole_on_gpu(len(CONTENT))
    transport.read_device(path, placements, deadline_s=LONG_S)
    other = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(other):
        copy = memory.clone()
    other.synchronize()
    assert bytes(copy.cpu().numpy()) == CONTENT


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=70_000), st.integers(0, 2**64 - 1), st.integers(0, 7))
def test_the_device_hash_is_numpys(data: bytes, seed: int, shift: int) -> None:
    hasher = DeviceHasher(cuda(), block_words=1 << 10)
    memory = torch.zeros(shift + len(data) + 1, dtype=torch.uint8, device=cuda())
    chunk = memory[shift : shift + len(data)]
    if data:
        chunk.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    assert hasher(chunk, seed) == device_hash(data, seed)


def test_a_chunk_of_the_largest_size_has_numpys_hash() -> None:
    data = np.random.default_rng(5).bytes(CHUNK_BYTES)
    chunk = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(cuda())
    assert DeviceHasher(cuda())(chunk, 9) == device_hash(data, 9)


def test_the_pool_is_page_locked() -> None:
    pinning = Pinning()
    arena = Arena(4 << 20, register=pinning)
    assert pinning.why_not == ""
    assert torch.frombuffer(arena.view, dtype=torch.uint8).is_pinned()


def test_memory_that_is_not_page_locked_is_right_too(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(CONTENT)
    placements, memory = whole_on_gpu(len(CONTENT))
    StagedTransport(PosixTransport(BufferPool(4), threads=2), CudaQueue(cuda())).read_device(
        path, placements, deadline_s=LONG_S
    )
    assert bytes(memory.cpu().numpy()) == CONTENT


def test_the_chosen_way_loads_and_says_how(tmp_path: Path) -> None:
    file = indexed(tmp_path / "f", CONTENT, chunk_bytes=CHUNK_BYTES)
    transport = device_transport(tmp_path, "cuda")
    placements, memory = whole_on_gpu(len(CONTENT))
    report = transport.read_device(file, placements, deadline_s=LONG_S)
    assert bytes(memory.cpu().numpy()) == CONTENT
    if transport.choice.way is Way.STAGED:
        assert report.mode in (Mode.DIRECT, Mode.BUFFERED) and report.why_not_better
