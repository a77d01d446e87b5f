"""Saving and loading with all ranks of a gang, each with its own shards; the errors of PyTorch's rounds made ours.

Saving is collective: PyTorch gathers plans and results over the process group (gloo; for a save in the background one
of its own), and its last round tells every rank that the commit is done. Loading is not: each rank reads what it needs
by itself, so ranks of any number may load at any time. They must agree beforehand on which checkpoint.

Not guaranteed: that the others notice when a rank dies in mid-save before the group's timeout (gloo notices a closed
socket at once).
"""

from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.planner import LoadPlanner, SavePlanner
from torch.distributed.checkpoint.stateful import Stateful

from ebbtide.storage.checkpoints.dcp.storage_reader import TrainingReader
from ebbtide.storage.checkpoints.dcp.storage_writer import TrainingWriter
from ebbtide.storage.checkpoints.manager.checkpoint_manager import RunCheckpoints
from ebbtide.storage.checkpoints.manager.open_checkpoint import OpenCheckpoint
from ebbtide.storage.checkpoints.run_directory.run_paths import CheckpointId
from ebbtide.storage.checkpoints.state.about_json import Note
from ebbtide.storage.errors import NoRoom, StorageError


def save_together(
    state: dict[str, Any],
    checkpoints: RunCheckpoints,
    *,
    at: CheckpointId,
    note: Note | None = None,
    group: dist.ProcessGroup | None = None,
    planner: SavePlanner | None = None,
) -> CheckpointId:
    """Commit the state of a gang; all ranks call it. When it returns on any of them, the commit is done.

    A gang of one needs no group.

    Args:
        state: as for ``torch.distributed.checkpoint.save``; it must not change meanwhile.
        checkpoints: of the run.
        at: the gang's epoch and the finished steps, the same on all ranks.
        note: what to say about it; that of the first rank counts.
        group: over which; the default group, if left out.
        planner: PyTorch's default, if left out.

    Raises:
        Superseded, NoRoom, Refused, StorageError: as `Saving.begin` and `Saving.commit` do, the same on all ranks.
        RuntimeError: the group is broken (torch's own error): a rank has died.
    """
    leads = not dist.is_initialized() or dist.get_rank(group) == 0
    with checkpoints.alone():
        try:
            _save_once(state, checkpoints, at, note, group, planner)
        # All ranks hear of it, and come together again.
        except NoRoom:  # guard: a full disk is cleaned before all ranks of a gang fail
            if leads:
                checkpoints.make_room(at.epoch)
            _save_once(state, checkpoints, at, note, group, planner)
    if leads:
        checkpoints.start_cleaning(at.epoch)
    return at


def _save_once(
    state: dict[str, Any],
    checkpoints: RunCheckpoints,
    at: CheckpointId,
    note: Note | None,
    group: dist.ProcessGroup | None,
    planner: SavePlanner | None,
) -> None:
    saving = checkpoints.saving(at.epoch, at.step)
    writer = TrainingWriter(saving, note=note, planned=checkpoints.planned_bytes)
    planner = planner or DefaultSavePlanner()
    try:
        if dist.is_initialized():
            state_dict_saver.save(state, storage_writer=writer, planner=planner, process_group=group)
        else:
            _save_alone(state, writer, planner)
    except CheckpointException as error:  # a BaseException
        saving.drop()  # guard: a gang that fails leaves nothing
        raise first_failure(error) from None
    except BaseException:
        saving.drop()  # guard: a gang of one that fails leaves nothing
        raise
    finally:
        if isinstance(planner, DefaultSavePlanner):
            planner.state_dict = {}  # one that is kept must not keep a copy in host memory


def _save_alone(state: dict[str, Any], writer: TrainingWriter, planner: SavePlanner) -> None:
    """What PyTorch does in its rounds, without others."""
    planner.set_up_planner(_plain(state), is_coordinator=True)
    writer.set_up_storage_writer(True)
    plans, metadata = planner.create_global_plan([planner.create_local_plan()])
    [plan] = writer.prepare_global_plan(plans)
    writer.finish(metadata, [writer.write_data(planner.finish_plan(plan), planner).wait()])


def load_into(state: dict[str, Any], opened: OpenCheckpoint, *, planner: LoadPlanner | None = None) -> None:
    """Fill a state with what an open checkpoint has of it; each rank for itself, without collectives.

    Args:
        state: as for ``torch.distributed.checkpoint.load``: its tensors are filled in place, what is no tensor is
            replaced, objects that have ``load_state_dict`` get theirs.
        opened: the checkpoint.
        planner: PyTorch's default, if left out.

    Raises:
        Corrupt: something is not what was committed; names file and offset. The state holds a mixture then.
        TransferFailed: it cannot be read.
        RuntimeError, ValueError: the state does not fit (torch's own errors).
    """
    reader, planner = TrainingReader(opened), planner or DefaultLoadPlanner()
    plain = _plain(state)
    planner.set_up_planner(plain, reader.read_metadata(), False)
    plan = planner.finish_plan(planner.create_local_plan())
    reader.read_data(plan, planner).wait()
    for key, value in state.items():
        if isinstance(value, Stateful):
            value.load_state_dict(plain[key])
        else:
            state[key] = plain[key]


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in state.items()}


def first_failure(error: CheckpointException) -> BaseException:
    """What went wrong on the first of the ranks that failed, ours before others'."""
    failures = [failure for _, (failure, _) in sorted(error.failures.items())]
    ours = [failure for failure in failures if isinstance(failure, StorageError)]
    return (ours or failures)[0]
