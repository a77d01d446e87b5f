"""The tensors of a safetensors file as torch tensors over the bytes that were read, wherever these are.

The only file of the object floor that imports torch.
"""

from collections.abc import Mapping

import torch

from ebbtide.storage.errors import Refused
from ebbtide.storage.safetensors.file_header import Header, TensorEntry

_TORCH: Mapping[str, torch.dtype] = {
    **{"BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16},
    **{"U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64},
    **{"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64},
    **{"C64": torch.complex64, "F8_E5M2": torch.float8_e5m2, "F8_E4M3": torch.float8_e4m3fn},
    **{"F8_E5M2FNUZ": torch.float8_e5m2fnuz, "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E8M0": torch.float8_e8m0fnu},
}
DTYPE_NAMES: Mapping[torch.dtype, str] = {dtype: name for name, dtype in _TORCH.items()}


def torch_view(entry: TensorEntry, file_bytes: torch.Tensor) -> torch.Tensor:
    """One tensor.

    Args:
        entry: which; its offset counts from the beginning of ``file_bytes``.
        file_bytes: the whole file as a flat uint8 tensor, on any device; its memory must be aligned to 64 bytes.

    Raises:
        Refused: torch has no such type, or the tensor is not aligned to it (files not laid out by this package).
    """
    if entry.dtype not in _TORCH:
        raise Refused(f"tensor {entry.name!r} is of type {entry.dtype}, which torch does not have")
    dtype = _TORCH[entry.dtype]
    part = file_bytes[entry.offset : entry.end]
    if entry.length and part.data_ptr() % dtype.itemsize:
        raise Refused(f"tensor {entry.name!r} begins at byte {entry.offset}: {entry.dtype} wants another alignment")
    if not entry.length:
        return torch.empty(entry.shape, dtype=dtype, device=file_bytes.device)
    return part.view(dtype).view(entry.shape)


def torch_views(header: Header, file_bytes: torch.Tensor) -> dict[str, torch.Tensor]:
    """All tensors of a file by name, see `torch_view`."""
    return {entry.name: torch_view(entry, file_bytes) for entry in header.entries}
