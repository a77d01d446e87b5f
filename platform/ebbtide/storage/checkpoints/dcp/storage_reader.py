"""A `StorageReader` for ``torch.distributed.checkpoint``: each rank reads the chunks that hold its rows, and no others.

PyTorch plans which boxes of which saved parts a rank needs, for any number of ranks and any way of sharding. Nothing
but these is read. What is no tensor comes from JSON; stock planners want a pickle of it, which is made in memory and
goes nowhere else: no byte of a file is ever unpickled.
"""

import io
import os
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from ebbtide.storage.checkpoints.manager.open_checkpoint import OpenCheckpoint
from ebbtide.storage.checkpoints.state.box_reader import DTYPES, BoxRequest
from ebbtide.storage.checkpoints.state.boxes import Box
from ebbtide.storage.checkpoints.state.tensor_index import Part, StoredTensor
from ebbtide.storage.errors import Refused


class TrainingReader(StorageReader):
    """Reads one open checkpoint, as often as one likes."""

    def __init__(self, opened: OpenCheckpoint) -> None:
        """Look into its index, so that what is wrong with it is said here, and not hidden by PyTorch's fallbacks.

        Raises:
            Corrupt: the index is not what was committed.
            Refused: two parts of the state have one name.
        """
        self._opened = opened
        self._metadata = metadata_of(opened)
        self._parts: dict[MetadataIndex, tuple[StoredTensor, Part]] = self._metadata.storage_data

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Called for a new load; raises Refused if a name is given."""
        if checkpoint_id is not None:
            raise Refused(f"this reader reads {self._opened.id}: give no checkpoint_id")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """No path leads to this reader."""
        return False

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What is in the checkpoint."""
        return self._metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing is to be done."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Nothing is to be planned."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Each rank reads for itself."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what is planned.

        Raises:
            Corrupt: a chunk is not what was committed; names file and offset. The state holds a mixture then.
            TransferFailed: it cannot be read.
        """
        tensors = [(item, planner.resolve_tensor(item)) for item in plan.items if item.type is LoadItemType.TENSOR]
        self._opened.read(self._wanted(item, target.detach()) for item, target in tensors)
        for item, target in tensors:
            planner.commit_tensor(item, target)
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._object(item))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _wanted(self, item: ReadItem, target: torch.Tensor) -> BoxRequest:
        try:
            tensor, part = self._parts[item.storage_index]
        except KeyError:
            raise Refused(f"checkpoint {self._opened.id} has no part {item.storage_index}") from None
        box = Box(tuple(item.storage_offsets), tuple(item.lengths))
        if tuple(target.shape) != box.sizes:
            raise Refused(f"{item.dest_index.fqn!r}: {list(target.shape)} is wanted, {list(box.sizes)} is planned")
        return BoxRequest(part, DTYPES[tensor.dtype], box, target)

    def _object(self, item: ReadItem) -> io.BytesIO:
        value = self._opened.read_object(self._opened.leaves[item.storage_index.fqn].value)
        found = io.BytesIO()
        torch.save(value, found)
        found.seek(0)
        return found


def metadata_of(opened: OpenCheckpoint) -> Metadata:
    """What is in a checkpoint, as PyTorch wants it; ``storage_data`` is ours."""
    known: dict[str, Any] = {}
    parts: dict[MetadataIndex, tuple[StoredTensor, Part]] = {}
    for name, leaf in opened.leaves.items():
        if leaf.tensor is None:
            known[name] = BytesStorageMetadata()
            continue
        tensor = opened.tensor(leaf.tensor)
        known[name] = TensorStorageMetadata(
            TensorProperties(dtype=DTYPES[tensor.dtype]),
            torch.Size(tensor.shape),
            [ChunkStorageMetadata(torch.Size(part.box.offsets), torch.Size(part.box.sizes)) for part in tensor.parts],
        )
        parts |= {MetadataIndex(name, part.box.offsets): (tensor, part) for part in tensor.parts}
    return Metadata(known, {name: leaf.path for name, leaf in opened.leaves.items()}, parts)
