"""Runs for tests: small chunks, real files, and as little room kept for others as possible."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ebbtide.storage.checkpoints.manager.checkpoint_manager import RunCheckpoints
from ebbtide.storage.checkpoints.manager.open_checkpoint import OpenCheckpoint
from ebbtide.storage.checkpoints.run_directory.checkpoint_retention import Retention
from ebbtide.storage.checkpoints.run_directory.run_paths import CheckpointId, run_paths
from ebbtide.storage.checkpoints.run_directory.run_ports import Keeping, TrainingPorts
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.leases.object_leases import Leases
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.objects.store_limits import Budget
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide.storage.transport.transport import Consume, Range, Transport

CHUNK = 4096  # the smallest there is, so that little tensors have many
PIECE = 16 << 10  # what the transport moves at once
RUN = "tide"


def make_transport() -> PosixTransport:
    """In the process that uses it: a pool does not live on in a forked one."""
    return PosixTransport(BufferPool(4, PIECE), threads=2)


def make_run(
    shared: Path,
    *,
    transport: Transport | None = None,
    disk: Disk | None = None,
    keep: Retention | None = None,
    budget: Budget | None = None,
    grace_s: float = 900.0,
    leases: Leases | None = None,
) -> RunCheckpoints:
    """The checkpoints of a run below ``shared``."""
    ports = TrainingPorts(transport or make_transport(), disk or Disk(), leases, chunk_bytes=CHUNK)
    keeping = Keeping(keep or Retention(), budget or Budget(keep_free_bytes=0), grace_s)
    return RunCheckpoints(run_paths(shared, RUN), ports, keeping)


def state_at(step: int, *, rows: int = 40) -> dict[str, Any]:
    """A state that tells its step, of some 30 KiB: several chunks, odd sizes, plain data between."""
    torch.manual_seed(step)
    return {
        "model": {"weight": torch.randn(rows, 129), "bias": torch.randn(7).bfloat16()},
        "optimizer": {"state": {0: {"exp_avg": torch.randn(rows, 33), "step": torch.tensor(float(step))}}},
        "scheduler": {"betas": (0.9, 0.999), "lr": 1e-3, "name": "cosine", "last": [step, None, True]},
        "step": step,
    }


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal to the bit, containers and types too."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and bits(one) == bits(other)
        )
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, Mapping):
        return isinstance(other, Mapping) and list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


def bits(tensor: torch.Tensor) -> bytes:
    """The elements of a tensor, row by row."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def step_read(checkpoints: RunCheckpoints) -> int | None:
    """The step of the newest checkpoint, after reading all of it and comparing it with what was saved; None: none."""
    found = checkpoints.read_newest(OpenCheckpoint.read_state)
    if found is None:
        return None
    assert same(found.value, state_at(found.id.step)), f"{found.id} is not what was saved"
    return found.id.step


def ids(checkpoints: RunCheckpoints) -> list[str]:
    """What is listed, the highest first."""
    return [str(one.id) for one in checkpoints.list()]


def at(text: str) -> CheckpointId:
    return CheckpointId.parse(text)


def leftovers(checkpoints: RunCheckpoints) -> list[str]:
    """Names with a dot anywhere in the run's directory."""
    return sorted(path.name for path in checkpoints.paths.directory.rglob(".*"))


class CountedReads:
    """A transport that notes what is read of which file."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.read_ranges: list[tuple[str, Range]] = []

    @property
    def write(self) -> Any:
        return self._transport.write

    def read(
        self,
        path: Path,
        ranges: Iterable[Range],
        consume: Consume,
        *,
        into: memoryview | None = None,
        deadline_s: float,
    ) -> TransferReport:
        wanted = list(ranges)
        self.read_ranges += [(path.name, each) for each in wanted]
        return self._transport.read(path, wanted, consume, into=into, deadline_s=deadline_s)

    def bytes_of(self, suffix: str) -> int:
        """Bytes read of files whose names end so."""
        return sum(each.length for name, each in self.read_ranges if name.endswith(suffix))
