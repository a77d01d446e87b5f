"""What others do today, as processes: save, end, and start again from what was saved.

Each is given its best: nothing is saved but the tensors, the memory that is loaded into is not initialised, DCP's
staging has its buffers from a save before, and what was loaded is used as it is where that can be.
"""

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from benchmarks.preempt.events import Event, say
from benchmarks.preempt.state import LAST_STEP, STEPS_BEFORE, Model, finish, loss_of, make, plain_step, tensors

warnings.filterwarnings("ignore", message="torch.distributed is disabled")
State = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Saver:
    """One way to save and load.

    Attributes:
        save: durably, and says when it was staged, if it stages.
        load: into a state that has the right tensors already; what it returns is the state.
        warm_up: what it may do before anybody wants the slot.
    """

    save: Callable[[State, Path], None]
    load: Callable[[State, Path], Mapping[str, torch.Tensor]]
    warm_up: Callable[[State, Path], None] = lambda state, folder: None


def _torch_save(state: State, folder: Path) -> None:
    with (folder / "state.pt").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def _torch_load(state: State, folder: Path) -> Mapping[str, torch.Tensor]:
    found: State = torch.load(folder / "state.pt", weights_only=True)
    return found


def _dcp_save(state: State, folder: Path) -> None:
    state_dict_saver.save(dict(state), storage_writer=FileSystemWriter(folder / "dcp"), no_dist=True)


def _dcp_load(state: State, folder: Path) -> Mapping[str, torch.Tensor]:
    state_dict_loader.load(dict(state), storage_reader=FileSystemReader(folder / "dcp"), no_dist=True)
    return state


class _Async:
    """DCP's ``async_save`` with a stager that keeps its buffers, in memory that is shared with nobody slower."""

    def __init__(self) -> None:
        self._stager: DefaultStager | None = None

    def warm_up(self, state: State, folder: Path) -> None:
        """Stage once, so that the buffers are there."""
        options = StagingOptions(
            use_pinned_memory=False, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=False
        )  # pinned memory and copies that do not block are for GPUs
        self._stager = DefaultStager(options)
        self._stager.stage(dict(state))

    def save(self, state: State, folder: Path) -> None:
        """Stage, then wait until it is written."""
        writer = FileSystemWriter(folder / "dcp")
        writing = state_dict_saver.async_save(
            dict(state), storage_writer=writer, no_dist=True, async_stager=self._stager
        )
        say(Event.STAGED)  # it returns when it has its copy
        getattr(writing, "upload_completion", writing).result()  # type: ignore[union-attr]


_asynchronous = _Async()
TORCH, DCP, DCP_ASYNC = "torch.save", "DCP save", "DCP async_save"
SAVERS = {
    TORCH: Saver(_torch_save, _torch_load),
    DCP: Saver(_dcp_save, _dcp_load),
    DCP_ASYNC: Saver(_asynchronous.save, _dcp_load, _asynchronous.warm_up),
}


def save_and_end(saver: Saver, folder: Path, size_bytes: int) -> None:
    """Train, save when the slot is wanted, and end at once."""
    model, optimizer = make(size_bytes)
    for number in range(STEPS_BEFORE - 1):
        plain_step(model, optimizer, number)
    saver.warm_up(_state(model, optimizer), folder)
    loss = loss_of(model, STEPS_BEFORE - 1, model.embedding.num_embeddings)
    say(Event.DECISION)
    finish(loss, optimizer)
    say(Event.SAFE_POINT)
    saver.save(_state(model, optimizer), folder)
    say(Event.DURABLE)
    os._exit(0)  # nothing is waited for; the slot is free when the process is gone


def start_again(saver: Saver, folder: Path, size_bytes: int) -> None:
    """Load, and take one more step."""
    model, optimizer = make(size_bytes, empty=True)
    for parameter in model.parameters():
        moments = {key: torch.empty_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.zeros(()), **moments}
    found = saver.load(_state(model, optimizer), folder)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if (loaded := found[f"model.{name}"]).data_ptr() != parameter.data_ptr():
                parameter.copy_(loaded)
            state = optimizer.state[parameter]
            state.update({key: found[f"optimizer.{name}.{key}"] for key in state})
    say(Event.RUNNING)
    say(Event.LOSS, value=plain_step(model, optimizer, LAST_STEP))
    os._exit(0)


def undisturbed(folder: Path, size_bytes: int) -> None:
    """The loss that all must give."""
    model, optimizer = make(size_bytes)
    for number in range(LAST_STEP):
        plain_step(model, optimizer, number)
    say(Event.LOSS, value=plain_step(model, optimizer, LAST_STEP))
    os._exit(0)


def _state(model: Model, optimizer: torch.optim.Optimizer) -> State:
    return dict(tensors(model, optimizer))
