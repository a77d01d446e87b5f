"""Everything that saves a training state durably here: ours, and what others use. In one process for a whole run.

``python -m benchmarks.bulk.writers DIRECTORY BYTES`` makes a state of so many bytes and then, for each name that it is
told on its standard input, saves it with that contender, prints one `Outcome`, and removes what was written. Durable
means that files and directories were synced: DCP and ours do that themselves.
"""

import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from benchmarks.bulk.outcome import Outcome, measured
from benchmarks.bulk.weights import random_bytes
from ebbtide.storage.bandwidth.node_traffic import node_traffic
from ebbtide.storage.bandwidth.rate_scheduler import TrafficClass
from ebbtide.storage.checkpoints.manager.checkpoint_manager import RunCheckpoints
from ebbtide.storage.checkpoints.run_directory.run_paths import run_paths
from ebbtide.storage.checkpoints.run_directory.run_ports import TrainingPorts, run_leases
from ebbtide.storage.memory.buffer_pool import process_pool
from ebbtide.storage.posix.posix_transport import PosixTransport

OURS, DCP, SAFETENSORS, TORCH = "ebbtide", "torch DCP", "safetensors + fsync", "torch.save + fsync"
State = dict[str, torch.Tensor]
TENSOR_BYTES = 256 << 20  # a matrix of 8192 x 8192 fp32, as Adam keeps three of for each parameter


def make_state(size_bytes: int) -> State:
    """Tensors of fp32 in ordinary memory."""
    random = np.random.default_rng(0)
    count = -(-size_bytes // TENSOR_BYTES)
    return {
        f"state.{number}": torch.from_numpy(random_bytes(TENSOR_BYTES, random)).view(torch.float32).view(8192, 8192)
        for number in range(count)
    }


def ours(directory: Path) -> Callable[[State], None]:
    """A checkpoint of a run: hashed, with manifest and commit."""
    paths = run_paths(directory, "bench")
    shutil.rmtree(paths.directory, ignore_errors=True)
    transport = PosixTransport(process_pool(), traffic=node_traffic(directory, TrafficClass.CHECKPOINT_WRITE))
    checkpoints = RunCheckpoints(paths, TrainingPorts(transport, leases=run_leases(paths)))
    checkpoints.begin_epoch(1)
    paths.leases.mkdir(parents=True, exist_ok=True)

    def save(state: State) -> None:
        checkpoints.save(state, epoch=1, step=1)

    return save


def dcp(directory: Path) -> Callable[[State], None]:
    """PyTorch's own, as it comes; one process."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")

    def save(state: State) -> None:
        state_dict_saver.save(dict(state), storage_writer=FileSystemWriter(directory / "dcp"), no_dist=True)

    return save


def safetensors(directory: Path) -> Callable[[State], None]:
    """One file."""

    def save(state: State) -> None:
        save_file(state, directory / "state.safetensors")
        _sync(directory / "state.safetensors")

    return save


def torch_save(directory: Path) -> Callable[[State], None]:
    """One file."""

    def save(state: State) -> None:
        torch.save(state, directory / "state.pt")
        _sync(directory / "state.pt")

    return save


WRITERS = {OURS: ours, DCP: dcp, SAFETENSORS: safetensors, TORCH: torch_save}


def _sync(path: Path) -> None:
    for place in (path, path.parent):
        fd = os.open(place, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def main() -> None:
    """See the module."""
    directory, size_bytes = Path(sys.argv[1]), int(sys.argv[2])
    state = make_state(size_bytes)
    total = sum(tensor.nbytes for tensor in state.values())
    print("ready", flush=True)
    for line in sys.stdin:
        name = line.strip()
        work = directory / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        save = WRITERS[name](work)
        _, figures = measured(lambda save=save: save(state))  # type: ignore[misc]
        print(Outcome(name=name, size_bytes=total, **figures).to_line(), flush=True)  # type: ignore[arg-type]
        shutil.rmtree(work)
        os.sync()


if __name__ == "__main__":
    main()
