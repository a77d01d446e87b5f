"""Tensors as views: no copy, the right types, on both libraries."""

import numpy as np
import pytest
import torch

from ebbtide.storage.errors import Refused
from ebbtide.storage.safetensors.file_header import DTYPE_BITS, parse_header
from ebbtide.storage.safetensors.file_layout import TensorSpec, filling, plan_container
from ebbtide.storage.safetensors.numpy_views import array_views
from ebbtide.storage.safetensors.torch_views import DTYPE_NAMES, torch_view, torch_views

SPECS = [TensorSpec(dtype, dtype, (2, 4)) for dtype in DTYPE_BITS] + [TensorSpec("scalar", "F32", ())]
SPECS += [TensorSpec("none", "BF16", (0, 3))]


def file_of(specs: list[TensorSpec]) -> np.ndarray:
    plan = plan_container(specs)
    content = np.zeros(plan.file_bytes, dtype=np.uint8)

    def ones(entry: object, start: int, memory: memoryview) -> None:
        memory[:] = b"\1" * len(memory)

    filling(plan, ones)(0, content.data)
    return content


def test_arrays_are_views_of_the_bytes_with_the_types_of_the_file() -> None:
    content = file_of(SPECS)
    header = parse_header(content.tobytes()[: 8 + int.from_bytes(content[:8].tobytes(), "little")], len(content), None)  # type: ignore[arg-type]
    arrays = array_views(header, content.data)
    assert arrays.keys() == {spec.name for spec in SPECS}
    assert arrays["F32"].dtype == np.float32 and arrays["BF16"].dtype == np.uint16
    assert arrays["F4"].shape == (4,) and arrays["scalar"].shape == () and arrays["none"].shape == (0, 3)
    assert all(array.shape == (2, 4) for name, array in arrays.items() if DTYPE_BITS.get(name, 0) >= 8)
    assert all(np.shares_memory(array, content) for array in arrays.values() if array.size)


def test_torch_tensors_are_views_too_and_what_torch_lacks_is_refused() -> None:
    specs = [spec for spec in SPECS if spec.dtype in DTYPE_NAMES.values()]
    content = torch.from_numpy(file_of(specs))
    raw = content.numpy().tobytes()
    header = parse_header(raw[: 8 + int.from_bytes(raw[:8], "little")], len(raw), None)  # type: ignore[arg-type]
    found = torch_views(header, content)
    assert {name: tuple(one.shape) for name, one in found.items()} == {spec.name: spec.shape for spec in specs}
    assert all(DTYPE_NAMES[one.dtype] == name for name, one in found.items() if name in DTYPE_BITS)
    found["F32"].fill_(3.0)
    entry = header.named()["F32"]
    assert content[entry.offset : entry.end].view(torch.float32).eq(3.0).all()
    with pytest.raises(Refused, match="torch does not have"):
        torch_view(plan_container([TensorSpec("a", "F4", (2,))]).entries[0], content)


def test_a_tensor_that_is_not_aligned_is_refused_not_misread() -> None:
    content = torch.zeros(64, dtype=torch.uint8)
    entry = plan_container([TensorSpec("a", "F32", (2,))]).entries[0]
    shifted = type(entry)(entry.name, entry.dtype, entry.shape, 3, entry.length)
    with pytest.raises(Refused, match="wants another alignment"):
        torch_view(shifted, content)
