"""Which tensors a checkpoint has, where the parts of each lie, and what is no tensor: the content of ``state.json``.

A tensor is cut into boxes, each written by one rank into its file; together they cover it exactly once, which is
checked when the checkpoint is committed and again when it is read: a hole would be filled with whatever the memory
held before. Two tensors may lie in the same place (tied weights).

Believed of a file is what can be checked: types, shapes, places within the files that the manifest names.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ebbtide.storage.checkpoints.state.boxes import Box, Ints, why_no_tiling
from ebbtide.storage.checkpoints.state.rank_entry import Piece, RankEntry
from ebbtide.storage.checkpoints.state.state_tree import Json, tensors_in
from ebbtide.storage.errors import Corrupt, Refused
from ebbtide.storage.safetensors.file_header import DTYPE_BITS

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Part:
    """A box of a tensor, where it lies.

    Attributes:
        at: of its first byte in the file.
        item_bytes: of one element.
    """

    box: Box
    file: str
    at: int
    item_bytes: int

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.at + self.box.volume * self.item_bytes


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor; ``dtype`` in the names of safetensors."""

    name: str
    dtype: str
    shape: Ints
    parts: tuple[Part, ...]

    @property
    def size_bytes(self) -> int:
        """Of all its elements."""
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


@dataclass(frozen=True, slots=True)
class StateIndex:
    """All tensors by name, and the tree that points to them."""

    tensors: Mapping[str, StoredTensor]
    tree: Json

    def to_bytes(self) -> bytes:
        """The content of ``state.json``."""
        files = sorted({part.file for tensor in self.tensors.values() for part in tensor.parts})
        number = {name: index for index, name in enumerate(files)}
        tensors = {
            tensor.name: {
                "dtype": tensor.dtype,
                "shape": tensor.shape,
                "parts": [[number[part.file], part.at, part.box.offsets, part.box.sizes] for part in tensor.parts],
            }
            for tensor in self.tensors.values()
        }
        fields = {"schema": SCHEMA, "files": files, "tensors": tensors, "tree": self.tree}
        return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def gather_index(entries: Iterable[RankEntry], tree: Json) -> StateIndex:
    """The index of what all ranks wrote.

    Raises:
        Refused: their shards do not agree, or leave something out; the message names the tensor.
    """
    pieces: dict[str, list[tuple[str, Piece]]] = {}
    for entry in entries:
        for piece in entry.pieces:
            pieces.setdefault(piece.name, []).append((entry.file_name, piece))
    tensors = {}
    for name, found in pieces.items():
        first = found[0][1]
        parts = []
        for file, piece in found:
            # guard: all ranks have one shape and type of a tensor
            if (piece.dtype, piece.shape) != (first.dtype, first.shape):
                kinds = f"{first.dtype} {list(first.shape)} and {piece.dtype} {list(piece.shape)}"
                raise Refused(f"tensor {name!r} is not the same on all ranks: {kinds}")
            parts.append(Part(Box(piece.offsets, piece.sizes), file, piece.at, DTYPE_BITS[piece.dtype] // 8))
        # guard: the parts of the ranks make whole tensors when they are committed
        if why := why_no_tiling(first.shape, [part.box for part in parts]):
            raise Refused(f"tensor {name!r} was not written whole by the ranks: {why}")
        tensors[name] = StoredTensor(name, first.dtype, first.shape, tuple(parts))
    for name in tensors_in(tree):
        if name not in tensors:  # guard: every tensor that the state names was written
            raise Refused(f"the state needs tensor {name!r}, which no rank has written")
    return StateIndex(tensors, tree)


def parse_index(raw: bytes, path: Path, file_bytes: Mapping[str, int]) -> StateIndex:
    """Read ``state.json``.

    Args:
        raw: its content.
        path: for messages.
        file_bytes: the lengths of the checkpoint's files, as its manifest says.

    Raises:
        Corrupt: it makes no sense.
        Refused: a newer version wrote it.
    """
    try:
        fields = json.loads(raw)
        schema = fields["schema"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"this is no index of tensors: {error}", path) from error
    if schema != SCHEMA:  # guard: an index of tensors of a newer format is refused
        raise Refused(f"{path} has schema {schema!r}; this version of ebbtide reads {SCHEMA}: update it")
    try:
        files, tensors, tree = fields["files"], fields["tensors"], fields["tree"]
        read = {name: _tensor(name, about, files, file_bytes) for name, about in tensors.items()}
        missing = [name for name in tensors_in(tree) if name not in read]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise Corrupt(f"this index of tensors makes no sense: {error}", path) from error
    if missing:  # guard: every tensor of the tree is there
        raise Corrupt(f"the state needs tensor {missing[0]!r}, which is not there", path)
    return StateIndex(read, tree)


def _tensor(name: str, about: Mapping[str, Any], files: list[str], file_bytes: Mapping[str, int]) -> StoredTensor:
    def wrong(what: str) -> NoReturn:
        raise ValueError(f"tensor {name!r} {what}")

    dtype, shape = about["dtype"], _ints(about["shape"])
    if DTYPE_BITS.get(dtype, 0) % 8 or dtype not in DTYPE_BITS:
        wrong(f"has the type {dtype!r}")
    item_bytes, parts = DTYPE_BITS[dtype] // 8, []
    for number, at, offsets, sizes in about["parts"]:
        if type(number) is not int or type(at) is not int or not 0 <= number < len(files) or at < 0:
            wrong(f"has a part at byte {at!r} of file {number!r}")
        part = Part(Box(_ints(offsets), _ints(sizes)), files[number], at, item_bytes)
        if (
            at % item_bytes
            # guard: parts lie within the files that the manifest names
            or part.end > file_bytes.get(part.file, -1)
        ):
            wrong(f"has a part from byte {at} to {part.end} of {part.file}, where none can be")
        parts.append(part)
    if why := why_no_tiling(shape, [part.box for part in parts]):  # guard: parts make whole tensors when they are read
        wrong(f"is not whole: {why}")
    return StoredTensor(name, dtype, shape, tuple(parts))


def _ints(value: object) -> Ints:
    if not isinstance(value, list) or not all(type(one) is int and 0 <= one < 1 << 63 for one in value):
        raise ValueError(f"{value!r} is no list of whole numbers from 0")
    return tuple(value)
