"""Writing the shards of one rank into one file, an ordinary safetensors file that any tool opens.

A tensor in it has the name that it has in the state, and the shape of this rank's part; where that part belongs stands
in the header's metadata, as stock PyTorch writes it (``DCP_SHARDING_INFO``), so its reader of safetensors directories
understands the files too. Only if a rank holds two parts of one tensor do both have their place behind the name.

All tensors go through a few large requests, however many and however small they are. Two that are the same memory
(tied weights) are written once. A tensor whose elements do not follow each other in memory is copied first.

Source: torch/distributed/checkpoint/_hf_utils.py (2.13) for the metadata.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ebbtide.storage.checkpoints.run_directory.run_paths import rank_file
from ebbtide.storage.checkpoints.state.boxes import Box, Ints
from ebbtide.storage.checkpoints.state.rank_entry import Piece, RankEntry
from ebbtide.storage.checkpoints.state.state_tree import Json
from ebbtide.storage.errors import Refused
from ebbtide.storage.objects.staging import Progress, Staging
from ebbtide.storage.safetensors.file_header import TensorEntry
from ebbtide.storage.safetensors.file_layout import ContainerPlan, FillTensor, TensorSpec, filling, plan_container
from ebbtide.storage.safetensors.torch_views import DTYPE_NAMES


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a tensor of the state.

    Attributes:
        name: of the tensor.
        tensor: the part; on any device, of any strides. It must not change while it is written.
        shape: of the whole tensor.
        offsets: of the part in it.
    """

    name: str
    tensor: torch.Tensor
    shape: Ints
    offsets: Ints

    @classmethod
    def of_all(cls, name: str, tensor: torch.Tensor) -> "Shard":
        """A tensor that one rank holds whole."""
        return cls(name, tensor, tuple(tensor.shape), (0,) * tensor.dim())

    @property
    def box(self) -> Box:
        """Which part it is."""
        return Box(self.offsets, tuple(self.tensor.shape))


def shard_bytes(shards: Iterable[Shard]) -> int:
    """What their elements take."""
    return sum(shard.tensor.numel() * shard.tensor.itemsize for shard in shards)


def write_shards(
    staging: Staging,
    rank: int,
    shards: Sequence[Shard],
    *,
    objects: Mapping[str, Json] | None = None,
    progress: Progress | None = None,
) -> RankEntry:
    """Write one rank's file, durably; if it has no shards, there is none.

    Args:
        staging: of the save, see `two_phase_save.Saving`.
        rank: whose.
        shards: in any order.
        objects: packed parts of the state that go along to the rank that commits.
        progress: called with the number of bytes, whenever a piece was handed to the filesystem.

    Raises:
        Refused: a tensor is of a kind that cannot be stored.
        NoRoom: there is no space; what was begun of the file is removed.
        TransferFailed: it cannot be written; what was begun of the file is removed.
    """
    if not shards:
        return RankEntry(rank, objects=dict(objects or {}))
    keys, sources = _keys(shards), {}
    specs: list[TensorSpec] = []
    for key, shard in zip(keys, shards, strict=True):
        if key not in sources:
            sources[key] = _flat_bytes(shard)
            specs.append(TensorSpec(key, DTYPE_NAMES[shard.tensor.dtype], tuple(shard.tensor.shape)))
    plan = plan_container(specs, _metadata(keys, shards))
    name = rank_file(rank)
    file = staging.write(name, plan.file_bytes, filling(plan, _from_tensors(sources)), progress=progress)
    return RankEntry(rank, file, _pieces(plan, keys, shards), dict(objects or {}))


def _keys(shards: Sequence[Shard]) -> list[str]:
    """The name in the file for each shard; the same for two that are the same memory."""
    names = Counter(shard.name for shard in shards)
    by_memory: dict[tuple[object, ...], str] = {}
    taken: set[str] = set()
    keys = []
    for shard in shards:
        memory = _memory(shard.tensor)
        key = by_memory.get(memory) if memory else None
        if key is None:
            key = shard.name if names[shard.name] == 1 else f"{shard.name}{shard.box}"
            while key in taken or key == "__metadata__":
                key += "~"
            taken.add(key)
            by_memory[memory] = key
        keys.append(key)
    return keys


def _memory(tensor: torch.Tensor) -> tuple[object, ...]:
    """What two tensors have in common that are the same bytes; empty for one without bytes, and for strangers."""
    if not tensor.numel() or tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return ()
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def must_be_storable(name: str, tensor: torch.Tensor) -> None:
    """Go on only if a rank's file can hold a tensor; nothing is copied.

    Raises:
        Refused: it cannot.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise Refused(f"tensor {name!r} is not dense ({tensor.layout}): store its parts, each a dense tensor")
    if tensor.dtype not in DTYPE_NAMES:  # guard: a tensor that no file can hold is refused
        raise Refused(f"tensor {name!r} is {tensor.dtype}, which safetensors does not know: convert it")
    if tensor.device.type == "meta":
        raise Refused(f"tensor {name!r} is on the meta device and has no values")


def _flat_bytes(shard: Shard) -> torch.Tensor:
    """Its bytes, one after the other; the same memory where that is possible."""
    must_be_storable(shard.name, shard.tensor)
    tensor = shard.tensor.detach()
    if tensor.dtype.is_complex:
        tensor = tensor.resolve_conj()
    flat = tensor.resolve_neg().contiguous()
    # Neither of `contiguous` and `reshape` mends the stride of a single element, and `view` refuses it.
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)


def _metadata(keys: Sequence[str], shards: Sequence[Shard]) -> dict[str, str]:
    info: dict[str, object] = {}
    for key, shard in zip(keys, shards, strict=True):
        info.setdefault(key, {"saved_offsets": shard.offsets})
    return {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(info, separators=(",", ":"))}


def _from_tensors(sources: Mapping[str, torch.Tensor]) -> FillTensor:
    # By DLPack: `Tensor.numpy` marks the storage as one that can never be resized, and then it could not be parked.
    arrays = {key: np.from_dlpack(flat) for key, flat in sources.items() if flat.device.type == "cpu"}

    def fill_tensor(entry: TensorEntry, start: int, memory: memoryview) -> None:
        array = arrays.get(entry.name)
        if array is not None:  # by numpy, which lets go of the interpreter's lock; a memoryview would not
            np.copyto(np.frombuffer(memory, np.uint8), array[start : start + len(memory)])
        else:
            torch.frombuffer(memory, dtype=torch.uint8).copy_(sources[entry.name][start : start + len(memory)])

    return fill_tensor


def _pieces(plan: ContainerPlan, keys: Sequence[str], shards: Sequence[Shard]) -> tuple[Piece, ...]:
    at = {entry.name: entry for entry in plan.entries}
    return tuple(
        Piece(shard.name, at[key].dtype, shard.shape, shard.offsets, tuple(shard.tensor.shape), at[key].offset)
        for key, shard in zip(keys, shards, strict=True)
    )
