"""Laying out safetensors files that load well.

A file of ours is an ordinary safetensors file that any tool opens. Its header is padded with spaces so that the data
begins at a multiple of 4096; tensors whose size is a multiple of 4096 come first, in the order in which they are
loaded, so each begins on a page and can be read straight to where it belongs. The others follow by how often two
divides their size: every tensor is then aligned to its type, and to 64 bytes if its size is a multiple of 64, without
a pad tensor (which some loaders choke on) and without a gap (which the format forbids).

Not guaranteed: an order that follows the load order among the small ones; together they are a few pages.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ebbtide.storage.errors import Refused
from ebbtide.storage.safetensors.file_header import DTYPE_BITS, MAX_HEADER_BYTES, PREFIX_BYTES, TensorEntry
from ebbtide.storage.transport.transport import ALIGNMENT_BYTES, Fill

_CACHE_LINE_BYTES = 64  # what vector loads of kernels and copies want

# Called with a tensor's entry, a place in it (in bytes) and memory to fill with its bytes from there on; from any of
# the transport's threads.
FillTensor = Callable[[TensorEntry, int, memoryview], None]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that is to be stored.

    Attributes:
        dtype: in the format's names, such as ``BF16``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def length(self) -> int:
        """Its size in bytes.

        Raises:
            Refused: the type is unknown, or the elements do not fill whole bytes.
        """
        if self.dtype not in DTYPE_BITS:
            raise Refused(f"tensor {self.name!r} has the type {self.dtype!r}, which safetensors does not know")
        bits = math.prod(self.shape) * DTYPE_BITS[self.dtype]
        if bits % 8 or min(self.shape, default=0) < 0:
            raise Refused(f"tensor {self.name!r} of {self.dtype}, shape {list(self.shape)}, does not fill whole bytes")
        return bits // 8


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """A file that is to be written.

    Attributes:
        entries: in the order of their bytes.
        header: the file's first bytes, up to the first tensor; a multiple of 4096 long.
        file_bytes: the length of the whole file.
    """

    entries: tuple[TensorEntry, ...]
    header: bytes
    file_bytes: int


def plan_container(tensors: Iterable[TensorSpec], metadata: Mapping[str, str] | None = None) -> ContainerPlan:
    """Lay out a file.

    Args:
        tensors: in the order in which they will be loaded.
        metadata: free text to keep in the header.

    Raises:
        Refused: two tensors have one name, or one cannot be stored.
    """
    specs = sorted(tensors, key=lambda spec: _rank(spec.length))  # stable: load order within a rank
    fields: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    places: list[tuple[TensorSpec, int]] = []
    end = 0
    for spec in specs:
        if spec.name in fields or spec.name == "__metadata__":  # guard: two tensors of one name are refused
            raise Refused(f"two tensors of one file cannot both be called {spec.name!r}")
        places.append((spec, end))
        offsets = [end, end := end + spec.length]
        fields[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": offsets}
    header = _header(fields)
    entries = (TensorEntry(s.name, s.dtype, s.shape, len(header) + at, s.length) for s, at in places)
    return ContainerPlan(tuple(entries), header, len(header) + end)


def _rank(length: int) -> int:
    """Where a tensor of this length goes: whole pages first, then the larger the power of two in it the sooner."""
    if length % ALIGNMENT_BYTES == 0:
        return 0
    return 1 + _CACHE_LINE_BYTES // math.gcd(length, _CACHE_LINE_BYTES)


def _header(fields: Mapping[str, object]) -> bytes:
    try:
        text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise Refused(f"a name or text for a safetensors header is no valid Unicode: {error}") from error
    text += b" " * (-(PREFIX_BYTES + len(text)) % ALIGNMENT_BYTES)
    if len(text) > MAX_HEADER_BYTES:
        raise Refused(f"the header would have {len(text)} bytes; safetensors allows {MAX_HEADER_BYTES}: split the file")
    return len(text).to_bytes(PREFIX_BYTES, "little") + text


def filling(plan: ContainerPlan, fill_tensor: FillTensor) -> Fill:
    """What gives a transport the bytes of a planned file, asking ``fill_tensor`` for those of tensors."""
    entries = [entry for entry in plan.entries if entry.length]
    ends = [entry.end for entry in entries]

    def fill(offset: int, memory: memoryview) -> None:
        end = offset + len(memory)
        if offset < len(plan.header):
            part = plan.header[offset:end]
            memory[: len(part)] = part
        for entry in entries[bisect_right(ends, offset) :]:
            if entry.offset >= end:
                break
            first, last = max(entry.offset, offset), min(entry.end, end)
            fill_tensor(entry, first - entry.offset, memory[first - offset : last - offset])

    return fill


def from_buffers(buffers: Mapping[str, memoryview]) -> FillTensor:
    """Tensors whose bytes are in memory, by name, as flat memoryviews of bytes."""

    def fill_tensor(entry: TensorEntry, start: int, memory: memoryview) -> None:
        memory[:] = buffers[entry.name][start : start + len(memory)]

    return fill_tensor


def specs_of(entries: Sequence[TensorEntry]) -> list[TensorSpec]:
    """What is needed to lay the tensors of one file out anew."""
    return [TensorSpec(entry.name, entry.dtype, entry.shape) for entry in entries]
