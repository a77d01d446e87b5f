"""Tensors that are split over the ranks of a gang (DTensors, as FSDP2 makes them): the part that lies here, and back.

A checkpoint holds whole tensors, put together from the parts that ranks wrote. So what the next gang is made of decides
which part each of its ranks reads: of any number of ranks, split or not.

Not guaranteed: state of an optimizer that is split in another way than its parameter; it is refused when it is saved.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from ebbtide.storage.checkpoints.manager.open_checkpoint import OpenCheckpoint
from ebbtide.storage.checkpoints.state import rank_file
from ebbtide.storage.checkpoints.state.box_reader import DTYPES, BoxRequest
from ebbtide.storage.checkpoints.state.boxes import Box, Ints, overlap
from ebbtide.storage.checkpoints.state.plain_state import pack
from ebbtide.storage.checkpoints.state.rank_file import must_be_storable
from ebbtide.storage.checkpoints.state.state_tree import Json
from ebbtide.storage.checkpoints.state.tensor_index import StoredTensor
from ebbtide.storage.errors import Refused
from ebbtide_train.session.errors import SessionMisuse

_OF_OPTIMIZER = "optimizer.state."
_OF_MODEL = "model."


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies on the ranks.

    Attributes:
        shape, stride: of the whole tensor.
        box: what of it lies on this rank.
        writes: whether this rank is the one that writes that part; others may hold the same.
    """

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: torch.Size
    stride: Ints
    box: Box
    writes: bool

    def around(self, local: torch.Tensor) -> DTensor:
        """The whole tensor, of which ``local`` is the part that lies here."""
        return DTensor.from_local(
            local, self.mesh, self.placements, run_check=False, shape=self.shape, stride=self.stride
        )


def is_split(model: nn.Module) -> bool:
    """Whether any of its parameters lies on several ranks.

    Raises:
        SessionMisuse: it was split by FSDP1, whose parameters do not say what of them lies where.
    """
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        raise SessionMisuse(
            "this model is in a FullyShardedDataParallel (FSDP1): shard it by fully_shard(..., mesh=session.mesh())"
        )
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def layouts(state: Mapping[str, object], *, world: int) -> dict[str, Layout]:
    """Of all split tensors in a state, by the names that a checkpoint gives them.

    Raises:
        Refused: one is split in a way that cannot be stored.
    """
    tensors: dict[str, torch.Tensor] = {}
    pack(state, "", tensors)
    return {name: _layout(name, tensor, world) for name, tensor in tensors.items() if isinstance(tensor, DTensor)}


def parts_here(state: Mapping[str, object], *, rank: int, world: int) -> tuple[Json, list[rank_file.Shard]]:
    """What is no tensor, alike on every rank; and what this rank writes: its parts, and the first rank all else.

    Nothing is copied.

    Raises:
        Refused: the state holds something that cannot be stored.
    """
    tensors: dict[str, torch.Tensor] = {}
    tree = pack(state, "", tensors)
    split = {name: _layout(name, tensor, world) for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
    shards = []
    for name, tensor in tensors.items():
        if (layout := split.get(name)) is None:
            if isinstance(tensor, DTensor):  # for mypy
                continue
            must_be_storable(name, tensor)
            shards += [rank_file.Shard.of_all(name, tensor)] if rank == 0 else []
            continue
        if name.startswith(_OF_OPTIMIZER) and _of_parameter(name, layout.shape, split) != layout:
            raise Refused(
                f"{name!r} is split in another way than the parameter that it belongs to, so nobody could tell how a "
                "gang of another size shall split it: use an optimizer whose state lies as its parameters do"
            )
        local = tensor.to_local().detach()  # type: ignore[attr-defined]  # it is a DTensor: it has a layout
        must_be_storable(name, local)
        if layout.writes:
            shards.append(rank_file.Shard(name, local, tuple(layout.shape), layout.box.offsets))
    return tree, shards


def read_parts(opened: OpenCheckpoint, here: Mapping[str, Layout]) -> dict[str, torch.Tensor]:
    """Of a checkpoint those tensors that are split here, by name; of each, only the part of this rank is read.

    Args:
        opened: the checkpoint.
        here: of the state as it is before anything is loaded; an optimizer may have none yet.

    Raises:
        Corrupt, TransferFailed: as `OpenCheckpoint.read_state`.
    """
    made: dict[str, tuple[Layout, torch.Tensor]] = {}
    wanted: list[BoxRequest] = []
    for name, stored in opened.index.tensors.items():
        shape = torch.Size(stored.shape)
        layout = here.get(name) or (_of_parameter(name, shape, here) if name.startswith(_OF_OPTIMIZER) else None)
        if layout is None or layout.shape != shape:
            continue  # read whole; one of another shape is refused by whoever takes the state back
        local = torch.empty(layout.box.sizes, dtype=DTYPES[stored.dtype])
        made[name] = layout, local
        wanted += _wanted(stored, layout.box, local)
    opened.read(wanted)
    return {name: layout.around(local) for name, (layout, local) in made.items()}


def _of_parameter(name: str, shape: torch.Size, known: Mapping[str, Layout]) -> Layout | None:
    """How the parameter lies that this tensor of an optimizer belongs to, if both have one shape."""
    layout = known.get(_OF_MODEL + name.removeprefix(_OF_OPTIMIZER).rpartition(".")[0])
    return layout if layout is not None and layout.shape == shape else None


def _layout(name: str, tensor: DTensor, world: int) -> Layout:
    mesh, placements = tensor.device_mesh, tuple(tensor.placements)
    if odd := [placement for placement in placements if type(placement) not in (Shard, Replicate)]:
        raise Refused(f"{name!r} is placed as {odd[0]}: only whole and evenly split tensors can be stored")
    if mesh.ndim != 1 or mesh.size() != world:
        raise Refused(
            f"{name!r} is split over a mesh of {tuple(mesh.shape)}, and the gang has {world} ranks in a row: shard the "
            "model over those (mesh=session.mesh())"
        )
    chunks: Any = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
    box = Box(tuple(chunks[0].offsets), tuple(chunks[0].sizes))
    first = type(placements[0]) is Shard or mesh.get_local_rank() == 0
    return Layout(mesh, placements, tensor.shape, tuple(tensor.stride()), box, first and box.volume > 0)


def _wanted(stored: StoredTensor, box: Box, local: torch.Tensor) -> list[BoxRequest]:
    found = []
    for part in stored.parts:
        if (common := overlap(part.box, box)) is None:
            continue
        target = local
        for dimension, (at, size, start) in enumerate(zip(common.offsets, common.sizes, box.offsets, strict=True)):
            target = target.narrow(dimension, at - start, size)
        inside = tuple(at - start for at, start in zip(common.offsets, part.box.offsets, strict=True))
        found.append(BoxRequest(part, DTYPES[stored.dtype], Box(inside, common.sizes), target))
    return found
