"""One checkpoint of a state that is split over the ranks: each writes its own parts, the first commits.

::

    all:     what is mine, and is it storable     rank 0:  begin, with room for all
    all:     write my file                        rank 0:  commit what all have written

After each of these the ranks tell each other how it went, so that all go on or all give up, for the same reason.

Not guaranteed: that a rank notices a vanished peer sooner than the group does.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import torch

from ebbtide.storage.checkpoints.manager.checkpoint_manager import RunCheckpoints
from ebbtide.storage.checkpoints.manager.host_staging import HostCopies
from ebbtide.storage.checkpoints.state.about_json import About
from ebbtide.storage.checkpoints.state.rank_entry import RankEntry
from ebbtide.storage.checkpoints.state.rank_file import Shard, shard_bytes, write_shards
from ebbtide.storage.checkpoints.state.state_tree import Json
from ebbtide.storage.errors import NoRoom, Refused, StorageError, Superseded
from ebbtide_train.session.checkpoints.checkpoint_ref import Ref
from ebbtide_train.session.coordination.process_group import Group
from ebbtide_train.session.errors import CheckpointFailed, CommitHopeless
from ebbtide_train.session.state.tensor_shards import parts_here

_FINE, _FAILED, _NO_ROOM, _HOPELESS = range(4)  # the highest of all ranks counts
_logger = logging.getLogger(__name__)

T = TypeVar("T")


class _NoRoom(CheckpointFailed):
    """There was no space; some may be made."""


Parts = Callable[[], tuple[Json, list[Shard]]]
"""What this rank has of a state, see `parts_here`; or it raises why it has it not, and all ranks hear that."""


def parts_of(state: Mapping[str, object], group: Group) -> Parts:
    """Of a state that does not change before it is written."""

    def found() -> tuple[Json, list[Shard]]:
        try:
            return parts_here(state, rank=group.rank, world=group.world)
        except Refused as error:
            raise CommitHopeless(str(error)) from error

    return found


def copied_parts(state: Mapping[str, object], group: Group, copies: HostCopies) -> Parts:
    """The same, of a copy that is made now, so that ``state`` may change. Raises nothing: what fails, the parts say."""
    try:
        tree, shards = parts_of(state, group)()
        copy = copies.stage({str(at): shard.tensor for at, shard in enumerate(shards)})
        copied = [replace(shard, tensor=copy.state[str(at)]) for at, shard in enumerate(shards)]
    except (CommitHopeless, MemoryError, StorageError) as error:
        why = error

        def failed() -> tuple[Json, list[Shard]]:
            raise why

        return failed
    return lambda: (tree, copied)


def save_together(checkpoints: RunCheckpoints, group: Group, parts: Parts, ref: Ref) -> None:
    """Commit the ranks' parts as ``ref``; all ranks call it, and none is through before it is done or given up.

    Raises:
        CommitHopeless: this gang was replaced, or no checkpoint can hold the state.
        CheckpointFailed: anything else. Alike on all ranks; the commit before still counts.
    """
    tree, shards = _together(group, parts)
    sizes = group.gather(torch.tensor([shard_bytes(shards)], dtype=torch.int64))
    all_bytes = sum(int(size.item()) for size in sizes)
    try:
        _save(checkpoints, group, tree, shards, all_bytes, ref)
    except _NoRoom:  # all ranks hear of it
        if group.rank == 0:
            checkpoints.make_room(ref.epoch)
        _save(checkpoints, group, tree, shards, all_bytes, ref)
    if group.rank == 0:
        checkpoints.start_cleaning(ref.epoch)


def _save(checkpoints: RunCheckpoints, group: Group, tree: Json, shards: list[Shard], all_bytes: int, ref: Ref) -> None:
    leads = group.rank == 0
    saving = checkpoints.saving(ref.epoch, ref.step)

    def write() -> RankEntry:
        with saving.telling_of_successors():
            return write_shards(saving.staging, group.rank, shards)

    try:
        _together(group, lambda: saving.begin(all_bytes) if leads else None)
        entry = _together(group, write)
        entries = [RankEntry.from_json(text) for text in _everyones(group, entry.to_json())]
        _together(group, lambda: saving.commit(entries, tree, About(group.world, ref.note())) if leads else None)
    except BaseException:
        saving.drop()
        raise


def _together(group: Group, act: Callable[[], T]) -> T:
    """What ``act`` gives on this rank, if it went well on all; else raises, alike on all, what went wrong on any."""
    how, why, result = _FINE, "", None
    try:
        result = act()
    except (CommitHopeless, Superseded) as error:
        how, why = _HOPELESS, str(error)
    except NoRoom as error:
        how, why = _NO_ROOM, str(error)
    except Exception as error:  # the others wait for this rank: they must hear of it, whatever it was
        how, why = _FAILED, str(error) or type(error).__name__
        _logger.warning("rank %d could not do its part of a checkpoint", group.rank, exc_info=True)
    [worst] = group.max_of([how])
    if worst == _FINE:
        return result  # type: ignore[return-value]  # it is what act gave
    texts = group.gather_text(why if how == worst else "")
    told = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(texts) if text)
    raise {_HOPELESS: CommitHopeless, _NO_ROOM: _NoRoom}.get(worst, CheckpointFailed)(told)


def _everyones(group: Group, text: str) -> list[str]:
    """Every rank's text, however long, in rank order."""
    [longest] = group.max_of([len(text.encode())])
    return group.gather_text(text, size_bytes=longest)
