"""A `StorageWriter` for ``torch.distributed.checkpoint``: each rank writes its shards into one file of a save.

PyTorch plans (which rank writes what; what is replicated is written once) and gathers what the ranks have done; this
writes and commits. What is no tensor is packed as JSON instead of being pickled. One writer serves one save.

With plan caching (``DefaultSavePlanner(enable_plan_caching=True)``) PyTorch hands out plans of an earlier save, with
the storage data of that save: so nothing that belongs to one save only is put there.

Not guaranteed: that the work directory goes if a rank fails; PyTorch does not tell the writer. `gang.save_together`
does, and any later save of the gang removes it.
"""

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from ebbtide.storage.checkpoints.manager.two_phase_save import Saving
from ebbtide.storage.checkpoints.state.about_json import About, Note
from ebbtide.storage.checkpoints.state.plain_state import pack
from ebbtide.storage.checkpoints.state.rank_entry import RankEntry
from ebbtide.storage.checkpoints.state.rank_file import Shard, write_shards
from ebbtide.storage.checkpoints.state.state_tree import TENSOR, Json, nest
from ebbtide.storage.errors import Refused


class TrainingWriter(StorageWriter):
    """Writes one checkpoint; see `StorageWriter` for the order of the calls."""

    def __init__(self, saving: Saving, *, note: Note | None = None, planned: dict[int, int] | None = None) -> None:
        """Take part in a save.

        Args:
            saving: of the same step and epoch on all ranks.
            note: what to say about the checkpoint; that of the coordinator counts.
            planned: how many bytes each rank wrote the last time, for plans that PyTorch has cached. Kept by whoever
                makes the writers.
        """
        self.saving = saving
        self._note: Note = dict(note or {})
        self._planned = {} if planned is None else planned
        self._rank, self._is_coordinator = 0, False

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Called for a new save.

        Raises:
            Refused: a name is given; which checkpoint it is, says the save.
        """
        if checkpoint_id is not None:
            raise Refused(f"a checkpoint is named by epoch and step, here {self.saving.id}: give no checkpoint_id")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """No path leads to this writer."""
        return False

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Learn which rank this is."""
        if not kwargs.get("use_collectives", True):  # guard: ranks come together for a commit
            raise Refused("the ranks must come together for a commit: leave use_collectives as it is")
        self._is_coordinator, self._rank = is_coordinator, int(kwargs.get("rank") or 0)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Nothing is to be planned by a rank alone."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Begin the save, before any rank writes. Raises as `Saving.begin` does."""
        for rank, plan in enumerate(plans):
            if plan.usable:  # else it is one of an earlier save
                self._planned[rank] = sum(map(_item_bytes, plan.items))
        self.saving.begin(sum(self._planned.get(rank, 0) for rank in range(len(plans))))
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's file. Raises as `write_shards` does."""
        extra: dict[str, torch.Tensor] = {}
        objects = {item.index.fqn: _packed(item, planner, extra) for item in plan.items if not _is_tensor(item)}
        shards = [_shard(item, planner) for item in plan.items if _is_tensor(item)]
        names = {shard.name for shard in shards}
        if clash := names.intersection(extra):  # guard: tensors of an object that would hide others are refused
            raise Refused(f"two tensors of this state are called {min(clash)!r}: rename one")
        shards += [Shard.of_all(name, tensor) for name, tensor in extra.items()]
        with self.saving.telling_of_successors():
            entry = write_shards(self.saving.staging, self._rank, shards, objects=objects)
        size = entry.file.size_bytes if entry.file is not None else 0
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(MetadataIndex(f"rank {self._rank}"), size, entry.to_json())])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit. Raises as `Saving.commit` does."""
        entries = [RankEntry.from_json(result.storage_data) for ranks in results for result in ranks]
        self.saving.commit(entries, _tree(metadata, entries), About(len(results), self._note))


def _is_tensor(item: WriteItem) -> bool:
    return item.type is not WriteItemType.BYTE_IO


def _item_bytes(item: WriteItem) -> int:
    if item.tensor_data is None:
        return 0
    return math.prod(item.tensor_data.chunk.sizes) * item.tensor_data.properties.dtype.itemsize


def _shard(item: WriteItem, planner: SavePlanner) -> Shard:
    tensor = planner.resolve_data(item)
    assert isinstance(tensor, torch.Tensor) and item.tensor_data is not None
    chunk = item.tensor_data.chunk
    if tuple(tensor.shape) != tuple(chunk.sizes):
        raise Refused(f"{item.index.fqn!r}: the plan says {list(chunk.sizes)}, and the tensor is {list(tensor.shape)}")
    return Shard(item.index.fqn, tensor, tuple(item.tensor_data.size), tuple(chunk.offsets))


def _packed(item: WriteItem, planner: SavePlanner, extra: dict[str, torch.Tensor]) -> Json:
    look_up = getattr(planner, "lookup_object", None)
    if look_up is None:
        raise Refused(f"{type(planner).__name__} has no lookup_object: derive it from DefaultSavePlanner")
    return pack(look_up(item.index), item.index.fqn, extra)


def _tree(metadata: Metadata, entries: Sequence[RankEntry]) -> Json:
    """The state as it was before PyTorch flattened it."""
    paths = metadata.planner_data or {}
    return nest({tuple(paths.get(name, (name,))): value for name, value in _parts(metadata, entries)})


def _parts(metadata: Metadata, entries: Sequence[RankEntry]) -> Iterator[tuple[str, Json]]:
    objects = {name: value for entry in entries for name, value in entry.objects.items()}
    for name in metadata.state_dict_metadata:
        yield name, objects.get(name, {TENSOR: name})
