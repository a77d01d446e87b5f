"""Boxes of stored tensors come back to the bit, from the chunks that hold them and no others."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebbtide.storage.checkpoints.state.box_reader import BoxRequest
from ebbtide.storage.checkpoints.state.boxes import Box, overlap, runs_of_box
from ebbtide.storage.checkpoints.state.rank_file import Shard
from ebbtide.storage.transport.chunk_ranges import down, up
from ebbtide.storage.transport.transport import Range
from tests.builders.checkpoints import commit_sharded, cut
from tests.examples import examples
from tests.platform.storage.checkpoints.runs import CHUNK, CountedReads, at, make_run, make_transport, same


def wanted_of(checkpoint_tensor: object, box: Box, target: torch.Tensor) -> list[BoxRequest]:
    """What a planner would ask for: the overlap with each part."""
    found = []
    for part in checkpoint_tensor.parts:  # type: ignore[attr-defined]
        common = overlap(part.box, box)
        if common is None:
            continue
        inner = Box(tuple(a - b for a, b in zip(common.offsets, part.box.offsets, strict=True)), common.sizes)
        place = target
        for d, (a, b, size) in enumerate(zip(common.offsets, box.offsets, common.sizes, strict=True)):
            place = place.narrow(d, a - b, size)
        found.append(BoxRequest(part, target.dtype, inner, place))
    return found


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_box_comes_back_from_any_cut(tmp_path: Path, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 24), min_size=1, max_size=3).map(tuple))
    dtype = data.draw(st.sampled_from([torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2]))
    tensor = torch.randint(0, 256, (math.prod(shape) * dtype.itemsize,), dtype=torch.uint8).view(dtype).view(shape)
    along = data.draw(st.integers(0, len(shape) - 1))
    cuts = sorted(data.draw(st.lists(st.integers(0, shape[along]), max_size=3)))
    transport = CountedReads(make_transport())
    step = len(list(tmp_path.rglob("step-*")))
    checkpoints = make_run(tmp_path, transport=transport)
    commit_sharded(checkpoints, step, [[shard] for shard in cut("w", tensor, along, cuts)])
    firsts = [data.draw(st.integers(0, size)) for size in shape]
    lasts = [data.draw(st.integers(a, size)) for a, size in zip(firsts, shape, strict=True)]
    box = Box(tuple(firsts), tuple(b - a for a, b in zip(firsts, lasts, strict=True)))
    strided = data.draw(st.booleans())
    target = torch.zeros(tuple(reversed(box.sizes)), dtype=torch.uint8).to(dtype).permute(*range(len(shape))[::-1])
    if not strided:
        target = target.contiguous()
    with checkpoints.open(at(f"e1/step-{step}")) as opened:
        stored = opened.tensor("w")
        transport.read_ranges.clear()
        opened.read(wanted_of(stored, box, target))
    expected = tensor[tuple(slice(a, b) for a, b in zip(firsts, lasts, strict=True))]
    assert same(target, expected)
    assert transport.bytes_of(".safetensors") == _least_bytes(stored, box)


def _least_bytes(stored: object, box: Box) -> int:
    """Of the chunks in which an element of the box lies."""
    chunks = set()
    for part in stored.parts:  # type: ignore[attr-defined]
        common = overlap(part.box, box)
        if common is not None:
            inner = Box(tuple(a - b for a, b in zip(common.offsets, part.box.offsets, strict=True)), common.sizes)
            for first, last in runs_of_box(part.box.sizes, inner, 0):
                start, end = part.at + first * part.item_bytes, part.at + last * part.item_bytes
                for number in range(down(start, CHUNK) // CHUNK, up(end, CHUNK) // CHUNK):
                    size = part.file_bytes if hasattr(part, "file_bytes") else None
                    chunks.add((part.file, number, size))
    total = 0
    for file, number, _ in chunks:
        ends = max(part.end for part in stored.parts if part.file == file)  # type: ignore[attr-defined]
        total += min(CHUNK, ends - number * CHUNK)
    return total


def test_rows_of_a_tall_tensor_cost_their_chunks_only(tmp_path: Path) -> None:
    tensor = torch.randn(3000, 64)  # 256 bytes each row, 750 KiB
    transport = CountedReads(make_transport())
    checkpoints = make_run(tmp_path, transport=transport)
    commit_sharded(checkpoints, 1, [[shard] for shard in cut("w", tensor, 0, [1500])])
    with checkpoints.open(at("e1/step-1")) as opened:
        transport.read_ranges.clear()
        target = torch.empty(1000, 64)
        opened.read(wanted_of(opened.tensor("w"), Box((1000, 0), (1000, 64)), target))
        assert same(target, tensor[1000:2000])
        least = 1000 * 256
        assert least <= transport.bytes_of(".safetensors") <= least + 3 * CHUNK
        assert opened.report.bytes == transport.bytes_of(".safetensors")


def test_columns_far_apart_are_read_alone_and_near_ones_together(tmp_path: Path) -> None:
    wide, narrow = torch.randn(10, 8 * CHUNK // 4), torch.randn(500, 32)
    transport = CountedReads(make_transport())
    checkpoints = make_run(tmp_path, transport=transport)
    commit_sharded(checkpoints, 1, [[Shard.of_all("wide", wide), Shard.of_all("narrow", narrow)]])
    with checkpoints.open(at("e1/step-1")) as opened:
        transport.read_ranges.clear()
        target = torch.empty(10, 5)
        opened.read(wanted_of(opened.tensor("wide"), Box((0, 100), (10, 5)), target))
        assert same(target, wide[:, 100:105])
        assert transport.bytes_of(".safetensors") == 10 * CHUNK
        transport.read_ranges.clear()
        target = torch.empty(500, 3)
        opened.read(wanted_of(opened.tensor("narrow"), Box((0, 7), (500, 3)), target))
        assert same(target, narrow[:, 7:10])
        assert len(transport.read_ranges) == 1


def test_many_small_tensors_are_read_in_a_few_requests(tmp_path: Path) -> None:
    tensors = {f"t{number:05}": torch.full((3,), float(number)) for number in range(10_000)}
    transport = CountedReads(make_transport())
    checkpoints = make_run(tmp_path, transport=transport)
    checkpoints.save(tensors, epoch=1, step=1)
    with checkpoints.open(at("e1/step-1")) as opened:
        _ = opened.index
        transport.read_ranges.clear()
        assert same(opened.read_state(), tensors)
    assert [(name, each.offset > 0) for name, each in transport.read_ranges] == [("rank0.safetensors", True)]
    assert isinstance(transport.read_ranges[0][1], Range)


@pytest.mark.parametrize(("stored", "wanted"), [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)])
def test_another_type_is_converted_as_torch_does_it(tmp_path: Path, stored: torch.dtype, wanted: torch.dtype) -> None:
    tensor = torch.randn(50, 50).to(stored)
    checkpoints = make_run(tmp_path)
    checkpoints.save({"w": tensor}, epoch=1, step=1)
    with checkpoints.open(at("e1/step-1")) as opened:
        target = torch.zeros(50, 50, dtype=wanted)
        part = opened.tensor("w").parts[0]
        opened.read([BoxRequest(part, stored, part.box, target)])
    assert same(target, tensor.to(wanted))


@pytest.mark.proves("the bits of a chunk are copied as bits")
def test_bits_that_are_no_number_stay_as_they_are(tmp_path: Path) -> None:
    """A signalling NaN would become a quiet one in a conversion, and every truth value 0 or 1 in a copy."""
    tensor = torch.tensor([0x7F800001, -0x400001, 0x7FC12345], dtype=torch.int32).view(torch.float32)
    checkpoints = make_run(tmp_path)
    truths = torch.tensor([0, 1, 2], dtype=torch.uint8).view(torch.bool)
    checkpoints.save({"w": tensor, "truths": truths}, epoch=1, step=1)
    with checkpoints.open(at("e1/step-1")) as opened:
        found = opened.read_state()
    assert same(found["w"], tensor) and found["truths"].view(torch.uint8).tolist() == [0, 1, 2]
