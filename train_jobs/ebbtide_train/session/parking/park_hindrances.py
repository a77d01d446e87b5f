"""What in a process keeps it from parking in place, besides single tensors. Each with what can be done about it.

Checked when a park is wanted, before anything is touched: what is found is told, and the gang stops and restarts.

Not guaranteed: that everything is found. Memory that a library took by itself, and children that were forked without
``multiprocessing``, are not seen from here.
"""

import gc
import multiprocessing
from collections.abc import Mapping

import torch
from torch import nn

from ebbtide.snapshot.nccl import NVLS, OFF, multicast

_INSTEAD = "or let this job stop and restart (in_place: false)"


def obstacle(model: nn.Module, device: torch.device, nccl: Mapping[str, str] | None = None) -> str:
    """The first that is found, in words; empty if there is none.

    Args:
        model: of the author, not yet wrapped.
        device: where it lies.
        nccl: the settings under which this process has made its communicators; None: it has made none.
    """
    on_gpu = (_multicast(nccl) or _captured()) if device.type == "cuda" else ""
    return _sharded(model) or _forked() or on_gpu


def _sharded(model: nn.Module) -> str:
    """FSDP keeps the process group that it was made with, also when that is destroyed: seen in a run."""
    for name, module in model.named_modules():
        kinds = {kind.__name__ for kind in type(module).__mro__}
        if kinds & {"FSDPModule", "FullyShardedDataParallel"}:  # guard: a model that is sharded does not park
            return (
                f"{name or 'the model'} is sharded by FSDP, which holds on to its process group; let it stop and "
                "restart, on any number of workers (in_place: false says so beforehand), or give prepare() the plain "
                "module"
            )
    return ""


def _forked() -> str:
    """A fork has all of this process's memory, tracked tensors too, for as long as it lives."""
    pids = [child.pid for child in multiprocessing.active_children() if _by_fork(child)]
    if not pids:  # guard: a process with forked children does not park in place
        return ""
    return (
        f"processes {pids} were forked off this one (DataLoader workers?) and keep its memory; end the loader's "
        f"iterator before each step ends, use multiprocessing_context='spawn', {_INSTEAD}"
    )


def _by_fork(child: multiprocessing.process.BaseProcess) -> bool:
    method = getattr(child, "_start_method", None)  # None: of the default context
    # guard: children that were spawned hold none of their parent's memory
    return (
        method
        or multiprocessing.get_start_method(allow_none=True)  # guard: the default way to make children counts
        or "fork"
    ) == "fork"


def _captured() -> str:
    """Graphs hold addresses; tensors come back at others."""
    # guard: a process with captured graphs does not park in place
    if not any(issubclass(type(thing), torch.cuda.CUDAGraph) for thing in gc.get_objects()):
        return ""
    return f"a CUDA graph is captured, and holds the addresses of tensors; delete it before each step ends, {_INSTEAD}"


def _multicast(nccl: Mapping[str, str] | None) -> str:
    """The author wants NVLS all the same, and may."""
    why = "" if nccl is None else multicast(nccl)
    return why and f"{why}; leave {NVLS} at {OFF}, which is the default, {_INSTEAD}"
