"""Files of ours: aligned, without pads and gaps, and read by the stock library; and the other way round."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.storage.errors import Refused
from ebbtide.storage.safetensors.file_header import DTYPE_BITS, header_bytes, parse_header
from ebbtide.storage.safetensors.file_layout import (
    ContainerPlan,
    TensorSpec,
    filling,
    from_buffers,
    plan_container,
    specs_of,
)
from tests.examples import examples
from tests.platform.storage.stores import stock_tensors

PATH = Path("model.safetensors")
DTYPES = [name for name, bits in DTYPE_BITS.items() if bits >= 8]
SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 5, 16, 64, 128, 512]), max_size=3).map(tuple)
SPECS = st.lists(
    st.builds(TensorSpec, st.text(max_size=8), st.sampled_from(DTYPES), SHAPES),
    max_size=12,
    unique_by=lambda spec: spec.name,
).map(lambda specs: [spec for spec in specs if spec.length < 1 << 20 and spec.name != "__metadata__"])
METADATA = st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)


def content_of(plan: ContainerPlan, buffers: dict[str, bytes], chunk: int) -> bytes:
    """The file, filled in pieces of ``chunk`` bytes, last to first."""
    content = bytearray(b"\xee" * plan.file_bytes)
    fill = filling(plan, from_buffers({name: memoryview(data) for name, data in buffers.items()}))
    for start in reversed(range(0, plan.file_bytes, chunk)):
        fill(start, memoryview(content)[start : start + chunk])
    return bytes(content)


def buffers_for(specs: list[TensorSpec]) -> dict[str, bytes]:
    rng = np.random.default_rng(1)
    return {spec.name: rng.bytes(spec.length) for spec in specs}


@settings(max_examples=examples(150), deadline=None)
@given(SPECS, METADATA, st.sampled_from([4096, 8192, 1 << 16]))
def test_stock_safetensors_reads_what_we_lay_out(
    specs: list[TensorSpec], metadata: dict[str, str] | None, chunk: int
) -> None:
    plan = plan_container(specs, metadata)
    buffers = buffers_for(specs)
    content = content_of(plan, buffers, chunk)
    assert stock_tensors(content) == {spec.name: (spec.dtype, spec.shape, buffers[spec.name]) for spec in specs}
    ours = parse_header(content[: header_bytes(content[:8], len(content), PATH)], len(content), PATH)
    assert ours.entries == plan.entries
    assert ours.metadata == (metadata or {})


@settings(max_examples=examples(150), deadline=None)
@given(SPECS)
def test_every_tensor_is_aligned_without_pads(specs: list[TensorSpec]) -> None:
    plan = plan_container(specs)
    assert len(plan.header) % 4096 == 0
    assert len(plan.entries) == len(specs)
    end = len(plan.header)
    for entry in plan.entries:
        assert entry.offset == end
        end = entry.end
        assert entry.offset % (DTYPE_BITS[entry.dtype] // 8) == 0
        for alignment in (64, 4096):
            if entry.length % alignment == 0:
                assert entry.offset % alignment == 0 or not entry.length
    assert end == plan.file_bytes
    whole_pages = [spec.name for spec in specs if spec.length % 4096 == 0]
    assert [entry.name for entry in plan.entries][: len(whole_pages)] == whole_pages, "load order"


def test_files_of_the_stock_library_are_understood_and_laid_out_anew(tmp_path: Path) -> None:
    arrays = {f"layer.{n}": np.random.default_rng(n).standard_normal((n, 33)).astype(np.float16) for n in range(1, 9)}
    content = safetensors.numpy.save(arrays, {"format": "np"})
    header = parse_header(content[: header_bytes(content[:8], len(content), PATH)], len(content), PATH)
    assert header.metadata == {"format": "np"}
    plan = plan_container(specs_of(header.entries), header.metadata)
    buffers = {entry.name: content[entry.offset : entry.end] for entry in header.entries}
    path = tmp_path / "again.safetensors"
    path.write_bytes(content_of(plan, buffers, 4096))
    for name, array in safetensors.numpy.load_file(path).items():
        np.testing.assert_array_equal(array, arrays[name])
    with safetensors.safe_open(path, "np") as opened:
        assert opened.metadata() == {"format": "np"}


def test_the_weights_of_a_llama_all_begin_on_pages() -> None:
    specs = [TensorSpec("norm", "BF16", (3072,))]
    specs += [TensorSpec(str(shape), "BF16", shape) for shape in ((8192, 3072), (3072, 3072), (128256, 3072))]
    plan = plan_container(specs)
    assert [entry.offset % 4096 for entry in plan.entries] == [0, 0, 0, 0]
    assert plan.entries[-1].name == "norm"


@pytest.mark.proves("two tensors of one name are refused")
@pytest.mark.parametrize(
    "specs",
    [
        [TensorSpec("a", "U8", (1,)), TensorSpec("a", "U8", (2,))],
        [TensorSpec("__metadata__", "U8", (1,))],
        [TensorSpec("a", "U9", (1,))],
        [TensorSpec("a", "U8", (-1,))],
        [TensorSpec("a", "F4", (3,))],
        [TensorSpec("\ud800", "U8", (1,))],
    ],
    ids=["twice", "metadata", "type", "negative", "half a byte", "surrogate"],
)
def test_what_cannot_be_stored_is_refused(specs: list[TensorSpec]) -> None:
    with pytest.raises(Refused):
        plan_container(specs)
    with pytest.raises(Refused, match="Unicode"):
        plan_container([], {"a": "\udfff"})


def test_a_header_that_stock_safetensors_would_refuse_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide.storage.safetensors.file_layout.MAX_HEADER_BYTES", 5000)
    with pytest.raises(Refused, match="split the file"):
        plan_container([], {"a": "x" * 5000})


def test_the_header_is_compact_json_padded_with_spaces() -> None:
    header = plan_container([TensorSpec("a", "U8", (4,))]).header
    assert len(header) == 4096
    assert json.loads(header[8:]) == {"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}
    assert header.endswith(b"}}" + b" " * (4096 - len(header.rstrip(b" "))))
