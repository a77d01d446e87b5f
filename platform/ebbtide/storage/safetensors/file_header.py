"""Plain safetensors: reading headers that nobody vouches for.

A header is trusted in nothing: every name, type, shape and offset is checked against the file's length before a byte
of data is touched. What the reference implementation reads is read, and what it refuses is refused. Three things that
it lets pass are refused here: a tensor's name that stands there twice, which the format forbids and of which it keeps
the last, and the two other spellings that its JSON library has for a struct and for a type (an array; an object whose
value is null). How files of ours are laid out is in ``file_layout``.

Format: https://huggingface.co/docs/safetensors.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ebbtide.storage.errors import Corrupt

SUFFIX = ".safetensors"
PREFIX_BYTES = 8  # the header's length, little endian
MAX_HEADER_BYTES = 100_000_000  # the reference implementation's limit
_U64 = 1 << 64
_U64_DIGITS = 20  # a whole number of more digits is a float to the reference implementation
_WHITESPACE = b" \t\n\r"  # JSON's
_MAX_DEPTH = 127  # of objects and arrays within each other; serde_json's, which the reference implementation reads with
_FIELDS = frozenset(("dtype", "shape", "data_offsets"))

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
    if twice := _repeated(fields):  # guard: a tensor's name stands in a header once
        raise Corrupt(f"the name {min(twice)!r} stands in the header twice", path, offset=PREFIX_BYTES)
    metadata = _metadata(fields.pop("__metadata__", None), path)
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
    if not text.lstrip(_WHITESPACE).startswith(b"{"):
        raise Corrupt("the header does not begin with '{': this is no safetensors file", path, offset=PREFIX_BYTES)
    try:
        fields = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_whole_number,
            parse_float=_float,
            parse_constant=_refuse_constant,
        )
        # guard: a lone surrogate in a header is no text
        json.dumps(fields, ensure_ascii=False).encode("utf-8")  # a lone surrogate is no text
        # guard: a header is not nested deeper than the reference reads
        if _depth(fields) > _MAX_DEPTH:
            raise ValueError(f"more than {_MAX_DEPTH} objects and arrays stand within each other")
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"the header cannot be read: {error}", path, offset=PREFIX_BYTES) from error
    assert isinstance(fields, dict)
    return fields


class _Repeating(dict[str, Any]):
    """An object in which a name stands twice: its last value is kept, as the reference implementation does.

    Attributes:
        repeated: the names that do.
    """

    repeated: frozenset[str]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) == len(pairs):
        return plain
    repeating, counts = _Repeating(plain), Counter(name for name, _ in pairs)
    repeating.repeated = frozenset(name for name, count in counts.items() if count > 1)
    return repeating


def _repeated(fields: Mapping[str, object]) -> frozenset[str]:
    return fields.repeated if isinstance(fields, _Repeating) else frozenset()


def _whole_number(text: str) -> int | float:
    # Minus zero and what exceeds 64 bits are floats to the reference implementation, so no count.
    return _float(text) if text == "-0" or len(text) > _U64_DIGITS else int(text)


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):  # guard: a number in a header is finite
        raise ValueError("a number in it is too large")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _depth(fields: Mapping[str, object]) -> int:
    """How many objects and arrays stand within each other at most."""
    depth = 0
    layer: list[Any] = [fields]
    while layer:
        depth += 1
        inner = (one for outer in layer for one in (outer.values() if isinstance(outer, dict) else outer))
        layer = [one for one in inner if isinstance(one, dict | list)]
    return depth


def _metadata(value: object, path: Path) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise Corrupt("__metadata__ in the header is not a table of texts", path, offset=PREFIX_BYTES)
    return value


def _entry(name: str, value: object, data_offset: int, path: Path) -> TensorEntry:
    def refuse(what: str) -> NoReturn:
        raise Corrupt(f"tensor {name!r} in the header {what}", path, offset=PREFIX_BYTES)

    if not isinstance(value, dict) or not value.keys() >= _FIELDS:
        refuse("does not have dtype, shape and data_offsets")
    if twice := _repeated(value) & _FIELDS:  # guard: a tensor has one type, one shape and one place
        refuse(f"has {min(twice)} twice")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        refuse(f"has an unknown type: {dtype!r}")
    if not _is_counts(shape):
        refuse("has a shape that is not a list of whole numbers from 0")
    if not _is_counts(offsets) or len(offsets) != 2:
        refuse("has data_offsets that are not two whole numbers from 0")
    elements = 1
    for size in shape:
        elements *= size
        # guard: a shape is no product of huge numbers
        if elements >= _U64:  # here, so that no product of a thousand huge numbers is ever computed
            refuse("is larger than any file")
    bits = elements * DTYPE_BITS[dtype]
    if bits % 8 or bits // 8 != offsets[1] - offsets[0]:  # guard: a tensor's bytes fit its type and shape
        refuse(f"has {offsets[1] - offsets[0]} bytes; its type and shape need {bits / 8:g}")
    return TensorEntry(name, dtype, tuple(shape), data_offset + offsets[0], offsets[1] - offsets[0])


def _is_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(one) is int and 0 <= one < _U64 for one in value)
