"""Plain safetensors: reading headers that nobody vouches for.

A header is trusted in nothing: every name, type, shape and offset is checked against the file's length before a byte
of data is touched, and whatever the reference implementation refuses is refused here too. How files of ours are laid
out is in ``file_layout``.

Format: https://huggingface.co/docs/safetensors.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ebbtide.storage.errors import Corrupt

SUFFIX = ".safetensors"
PREFIX_BYTES = 8  # the header's length, little endian
MAX_HEADER_BYTES = 100_000_000  # the reference implementation's limit
_U64 = 1 << 64

# Bits of one element, by the names of the format.
DTYPE_BITS: Mapping[str, int] = {
    **{"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64},
    **{"F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64},
    **{"F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8},
    **{"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4},
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies in a file.

    Attributes:
        offset: of its first byte, from the beginning of the file.
        length: in bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class Header:
    """What a safetensors file says of itself.

    Attributes:
        entries: in the order of their bytes.
        metadata: free text.
        data_offset: of the first byte after the header.
        file_bytes: the file's length.
    """

    entries: tuple[TensorEntry, ...]
    metadata: Mapping[str, str]
    data_offset: int
    file_bytes: int

    def named(self) -> dict[str, TensorEntry]:
        """The entries by name."""
        return {entry.name: entry for entry in self.entries}


def header_bytes(prefix: bytes, file_bytes: int, path: Path) -> int:
    """How long the header is, the eight bytes of its length included.

    Args:
        prefix: the first eight bytes of the file, or all of it if there are fewer.
        file_bytes: the file's length.
        path: for messages.

    Raises:
        Corrupt: that cannot be.
    """
    if len(prefix) < PREFIX_BYTES or file_bytes < PREFIX_BYTES:
        raise Corrupt(f"a safetensors file has at least 8 bytes, this one has {file_bytes}", path, offset=0)
    length = int.from_bytes(prefix[:PREFIX_BYTES], "little")
    if length > MAX_HEADER_BYTES:  # guard: a tensor file's header is not longer than allowed
        raise Corrupt(f"the header claims {length} bytes; more than {MAX_HEADER_BYTES} are not allowed", path, offset=0)
    if PREFIX_BYTES + length > file_bytes:  # guard: a tensor file's header ends within the file
        raise Corrupt(f"the header claims {length} bytes, but the file has {file_bytes}", path, offset=0)
    return PREFIX_BYTES + length


def parse_header(raw: bytes, file_bytes: int, path: Path) -> Header:
    """Read a header.

    Args:
        raw: the file's first `header_bytes` bytes.
        file_bytes: the file's length.
        path: for messages.

    Raises:
        Corrupt: the header does not make sense, or does not describe every byte of the file exactly once.
    """
    data_offset = header_bytes(raw[:PREFIX_BYTES], file_bytes, path)
    if len(raw) != data_offset:
        raise ValueError(f"{data_offset} bytes of header are needed, {len(raw)} were given")
    fields = _parse_json(raw[PREFIX_BYTES:], path)
    metadata = _metadata(fields.pop("__metadata__", {}), path)
    entries = [_entry(name, value, data_offset, path) for name, value in fields.items()]
    entries.sort(key=lambda entry: (entry.offset, entry.end))
    end = data_offset
    for entry in entries:
        if entry.offset != end:  # guard: tensors leave no gap and do not overlap
            what = "overlaps what is before it" if entry.offset < end else "leaves a gap before it"
            raise Corrupt(f"tensor {entry.name!r} {what}", path, offset=entry.offset)
        end = entry.end
    if end != file_bytes:  # guard: tensors fill their file
        what = f"its tensors end at byte {end}, but the file has {file_bytes}"
        raise Corrupt(what, path, offset=min(end, file_bytes))
    return Header(tuple(entries), metadata, data_offset, file_bytes)


def read_header(path: Path) -> Header:
    """Read the header of a file outside the store, by plain reads.

    Raises:
        Corrupt: see `parse_header`.
        OSError: it cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        file_bytes = file.seek(0, 2)
        file.seek(0)
        prefix = file.read(PREFIX_BYTES) or b""
        length = header_bytes(prefix, file_bytes, path)
        raw = bytearray(prefix)
        while len(raw) < length and (part := file.read(length - len(raw))):
            raw += part
    if len(raw) != length:
        raise Corrupt("the file ends within its header", path, offset=len(raw))
    return parse_header(bytes(raw), file_bytes, path)


def _parse_json(text: bytes, path: Path) -> dict[str, Any]:
    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, value in pairs:
            if name in result:  # guard: a name stands in a header once
                raise ValueError(f"the name {name!r} stands there twice")
            result[name] = value
        return result

    if not text.startswith(b"{"):
        raise Corrupt("the header does not begin with '{': this is no safetensors file", path, offset=PREFIX_BYTES)
    try:
        fields = json.loads(text.decode("utf-8").rstrip(" "), object_pairs_hook=no_duplicates)
        # guard: a lone surrogate in a header is no text
        json.dumps(fields, ensure_ascii=False).encode("utf-8")  # a lone surrogate is no text
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"the header cannot be read: {error}", path, offset=PREFIX_BYTES) from error
    assert isinstance(fields, dict)
    return fields


def _metadata(value: object, path: Path) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise Corrupt("__metadata__ in the header is not a table of texts", path, offset=PREFIX_BYTES)
    return value


def _entry(name: str, value: object, data_offset: int, path: Path) -> TensorEntry:
    def refuse(what: str) -> NoReturn:
        raise Corrupt(f"tensor {name!r} in the header {what}", path, offset=PREFIX_BYTES)

    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        refuse("does not have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        refuse(f"has an unknown type: {dtype!r}")
    if not _is_counts(shape):
        refuse("has a shape that is not a list of whole numbers from 0")
    if not _is_counts(offsets) or len(offsets) != 2:
        refuse("has data_offsets that are not two whole numbers from 0")
    bits = DTYPE_BITS[dtype]
    for size in shape:
        bits *= size
        # guard: a shape is no product of huge numbers
        if bits >= 8 * _U64:  # here, so that no product of a thousand huge numbers is ever computed
            refuse("is larger than any file")
    if bits % 8 or bits // 8 != offsets[1] - offsets[0]:  # guard: a tensor's bytes fit its type and shape
        refuse(f"has {offsets[1] - offsets[0]} bytes; its type and shape need {bits / 8:g}")
    return TensorEntry(name, dtype, tuple(shape), data_offset + offsets[0], offsets[1] - offsets[0])


def _is_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(one) is int and 0 <= one < _U64 for one in value)
