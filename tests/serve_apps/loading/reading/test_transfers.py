"""Files in segments: all of it, and once."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.storage.device.placements import Placement, Placements
from ebbtide_serve.loading.reading.transfers import by_device, bytes_of, read_all, segments
from tests.platform.storage.stores import CHUNK
from tests.serve_apps.loading.small_model import publish_tensors, reach

CPU = torch.device("cpu")


@given(size=st.integers(0, 10_000), chunk=st.sampled_from([16, 64, 512]), step=st.integers(1, 2000))
def test_segments_are_the_whole_file_in_whole_chunks(size: int, chunk: int, step: int) -> None:
    found = list(segments(size, chunk, step))
    assert [at for part in found for at in range(part.offset, part.end)] == list(range(size))
    assert all(part.offset % chunk == 0 and 0 < part.length <= max(step, chunk) for part in found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int64])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_bytes_of_any_tensor_are_its_own_memory(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.zeros(shape, dtype=dtype)
    memory = bytes_of(tensor)
    assert (memory.dtype, memory.numel()) == (torch.uint8, tensor.nbytes)
    memory.fill_(1)
    assert bool((tensor.reshape(-1).view(torch.uint8) == 1).all())


def test_bytes_of_memory_with_gaps_are_an_error() -> None:
    with pytest.raises(AssertionError, match="contiguous"):
        bytes_of(torch.zeros(4, 4)[:, :2])


def test_a_file_is_read_in_segments_all_of_it_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = reach(tmp_path / "store")
    published = publish_tensors(store.store, {"m.safetensors": {"w": torch.arange(2 * CHUNK)}})
    monkeypatch.setattr("ebbtide_serve.loading.reading.transfers.SEGMENT_BYTES", 2 * CHUNK)
    with store.store.open(published) as stored:
        target = torch.zeros(stored.file("m.safetensors").entry.size_bytes, dtype=torch.uint8)
        wanted = Placements([Placement(0, target)], CPU)
        report = read_all(stored, "m.safetensors", wanted, transport=store.to_device(CPU))
        assert report.bytes == target.numel()
        assert bytes(target.numpy()) == (stored.file("m.safetensors").path).read_bytes()


def test_placements_of_several_devices_are_kept_apart() -> None:
    here, there = torch.zeros(3, dtype=torch.uint8), torch.zeros(2, dtype=torch.uint8, device="meta")
    found = by_device([(0, here), (3, there), (5, here)])
    assert [one.offset for one in found[CPU]] == [0, 5]
    assert [one.offset for one in found[torch.device("meta")]] == [3]
