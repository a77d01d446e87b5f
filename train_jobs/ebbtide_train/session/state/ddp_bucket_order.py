"""DDP whose buckets never change: a wrap that is made anew sums as the one before it did.

DDP begins with buckets in the order of definition, and after its first backward pass rebuilds them in the order in
which gradients came: a run that was wrapped anew has one more step with the first order, and from three ranks on its
sums differ (docs/decisions/003 and 019). Here that rebuild is done before the first pass, on all parameters in the
reverse of their definition, which is about the order in which their gradients come, so that they are reduced while
others are still reckoned.

What is private of torch's: the parameters that the reducer is given, and the two calls by which ``Join`` makes it
rebuild at once. Where these are not as in torch 2.11 to 2.13, DDP is made with ``find_unused_parameters``, which never
rebuilds either, and costs an exchange of its own in each step.
"""

import logging
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

_logger = logging.getLogger(__name__)


class _LastFirst(DistributedDataParallel):
    """DDP, its parameters told to the reducer in reverse."""

    def _build_params_for_reducer(self) -> Any:
        parameters, sparse = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        return parameters[::-1], sparse[::-1]


def ddp(module: nn.Module, *, unused_parameters: bool, **settings: Any) -> DistributedDataParallel:
    """DDP of the present group, with buckets that stay; all ranks call it.

    Args:
        module: all of its parameters take part in each step, unless ``unused_parameters``.
        settings: of DDP's own.
    """
    if not unused_parameters:
        made = _LastFirst(module, **settings)
        if _is_settled(made):
            return made
        _logger.warning("this torch does not settle DDP's buckets beforehand: find_unused_parameters does it instead")
        del made
    return DistributedDataParallel(module, find_unused_parameters=True, **settings)


def _is_settled(made: DistributedDataParallel) -> bool:
    """Rebuild the buckets now, which happens once; False: that was not to be had."""
    try:
        made.reducer._push_all_rebuilt_params()
        return bool(made.reducer._rebuild_buckets())
    except AttributeError:
        return False


def must_be_reduced(made: DistributedDataParallel) -> None:
    """Nothing, or torch's RuntimeError: the last backward pass has left parameters out.

    torch says so at the next forward pass only, which a gang that parks or ends does not make with this wrap.
    """
    made.reducer._rebuild_buckets()  # looks whether the last pass is complete, and has nothing else left to do
