"""The tensors of a safetensors file as numpy arrays over the bytes that were read: nothing is copied."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ebbtide.storage.safetensors.file_header import DTYPE_BITS, Header, TensorEntry

# What numpy can hold; BF16 and the 8-bit floats become unsigned integers of their size, with the same bits.
_NUMPY: Mapping[str, str] = {
    **{"BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4"},
    **{"U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8"},
}


def array_view(entry: TensorEntry, file_bytes: memoryview) -> NDArray[np.generic]:
    """One tensor.

    Args:
        entry: which; its offset counts from the beginning of ``file_bytes``.
        file_bytes: the whole file, flat.

    Returns:
        An array over that memory. Types that numpy lacks come as unsigned integers of the same size, of the tensor's
        shape; those of less than a byte as a flat array of bytes.
    """
    raw = np.frombuffer(file_bytes[entry.offset : entry.end], dtype="u1")
    bits = DTYPE_BITS[entry.dtype]
    if bits < 8:
        return raw
    return raw.view(_NUMPY.get(entry.dtype, f"<u{bits // 8}")).reshape(entry.shape)


def array_views(header: Header, file_bytes: memoryview) -> dict[str, NDArray[np.generic]]:
    """All tensors of a file by name, see `array_view`."""
    return {entry.name: array_view(entry, file_bytes) for entry in header.entries}
