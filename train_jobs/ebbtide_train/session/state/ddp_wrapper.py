"""The author's model with a DDP inside that can be dropped and made anew under the author's feet.

In which order it sums over the ranks must not change by that: see ``ddp_bucket_order``.
"""

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from ebbtide_train.session.errors import SessionMisuse
from ebbtide_train.session.state.ddp_bucket_order import ddp, must_be_reduced


class DdpWrapper(nn.Module):
    """Forwards to the wrapped model; its parameters are the author's module's own."""

    def __init__(self, module: nn.Module, *, unused_parameters: bool = False) -> None:
        """``unused_parameters``: some may have no part in a step."""
        super().__init__()
        self._unused_parameters = unused_parameters
        self.module = module
        self._sharded = [one for one in module.modules() if isinstance(one, FSDPModule)]
        self._wrap: list[DistributedDataParallel] = []  # in a list, so that nn.Module does not register it

    @property
    def split(self) -> bool:
        """Whether FSDP has split it over the ranks: then there is no DDP, and all ranks call it equally often."""
        return bool(self._sharded)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Through DDP when training; straight to the module without gradients, so that one rank may evaluate alone."""
        if self._wrap and torch.is_grad_enabled():
            return self._wrap[0](*args, **kwargs)
        return self.module(*args, **kwargs)

    def wrap(self, *, device: torch.device, bucket_cap_mb: float, init_sync: bool) -> None:
        """Make the DDP of the present process group. ``init_sync``: take parameters and buffers from rank 0."""
        self._wrap[:] = [
            ddp(
                self.module,
                unused_parameters=self._unused_parameters,
                device_ids=[device] if device.type == "cuda" else None,
                bucket_cap_mb=bucket_cap_mb,
                init_sync=init_sync,
            )
        ]

    def unwrap(self) -> bool:
        """Drop the DDP, its buckets and its hooks; False if something else still holds it."""
        if not self._wrap:
            return True
        dropped = weakref.ref(self._wrap[0])
        self._wrap.clear()
        return dropped() is None

    def sync_next_backward(self, sync: bool) -> None:
        """Whether the coming forward and backward pass reduces gradients over ranks (what ``no_sync`` sets)."""
        if self._wrap:
            self._wrap[0].require_backward_grad_sync = sync
        for module in self._sharded:
            module.set_requires_gradient_sync(sync, recurse=False)

    def end_step(self) -> None:
        """Between steps a split model lies on the ranks in parts, and all have the first rank's buffers, as with DDP.

        (A forward pass without a backward leaves parameters whole.)

        Raises:
            SessionMisuse: parameters had no part in the step's last backward pass, and nobody has said that they may.
        """
        if self._wrap:
            try:
                must_be_reduced(self._wrap[0])
            except RuntimeError as error:
                raise SessionMisuse(
                    "parameters of the model had no part in this step: give session.prepare(..., "
                    f"find_unused_parameters=True) if that is meant ({str(error).splitlines()[0][:200]})"
                ) from error
        for module in self._sharded:
            module.reshard()
        if self._sharded and dist.is_initialized():
            for buffer in self.module.buffers():
                dist.broadcast(buffer, src=0)
