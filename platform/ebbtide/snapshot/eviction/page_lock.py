"""Page-locking of the host memory that evicted state is copied to, so that copies run at the speed of a GPU's link.

The driver then knows addresses of this process. So memory is registered once it is mapped and before it is needed, and
given up before it is unmapped: `PageLock` holds what it has registered, and with it the mapping. Only the process that
copies registers; whoever lends the memory makes no call to CUDA.

Not guaranteed: that memory is page-locked. Where the driver does not want that, copies are slow and right all the same.

Source: CUDA runtime API, ``cudaHostRegister`` and ``cudaHostUnregister``.
"""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import torch

from ebbtide.system.modes import Place, took

_PORTABLE = 1  # cudaHostRegisterPortable: for every device of the process, not only the current one
_until_exit: list[torch.Tensor] = []  # mappings that the driver may still know, and nobody can ask it to forget
_logger = logging.getLogger(__name__)


class Pages(Protocol):
    """One piece of memory at a time; used by one thread."""

    def lock(self, memory: torch.Tensor) -> None:
        """Page-lock all of it, until `unlock`."""

    def unlock(self) -> None:
        """Before its mapping goes; nothing is copied any more. Idempotent."""

    def leave(self) -> None:
        """Instead of `unlock`, in a process that must make no call to CUDA: all stays until that process ends."""


class NothingLocked:
    """Of a process that uses no GPU."""

    def lock(self, memory: torch.Tensor) -> None:
        """Nothing to do."""

    def unlock(self) -> None:
        """Nothing to do."""

    def leave(self) -> None:
        """Nothing to do."""


class PageLock:
    """By the CUDA runtime; see `Pages`."""

    def __init__(self, runtime: Callable[[], Any] | None = None, take_up: Callable[[], object] | None = None) -> None:
        """Nothing is asked yet.

        Args:
            runtime: gives the CUDA runtime; torch's, if None.
            take_up: has CUDA hand out an error that nobody has seen; raises it. By a kernel, if None.
        """
        self._runtime = runtime or torch.cuda.cudart
        self._take_up = take_up or _launch
        self._memory: torch.Tensor | None = None
        self._pid = 0

    def lock(self, memory: torch.Tensor) -> None:
        """See `Pages`; failure is logged, and the memory is used as it is."""
        assert self._memory is None, "what was page-locked before is given up first"
        try:
            status = int(self._runtime().cudaHostRegister(memory.data_ptr(), memory.numel(), _PORTABLE))
        except (RuntimeError, AssertionError) as error:  # torch raises either where CUDA does not start
            _logger.warning("host memory is not page-locked (%s): parking and coming back will be slow", error)
            took(Place.PAGE_LOCKING, f"none: {error}")
            return
        if status:
            with suppress(RuntimeError):  # CUDA keeps it for whoever launches the next kernel: an innocent step
                self._take_up()
            _logger.warning(
                "host memory is not page-locked (cudaHostRegister gives error %d): parking and coming back will be "
                "slow",
                status,
            )
            took(Place.PAGE_LOCKING, f"none: cudaHostRegister gives error {status} for {memory.numel()} bytes")
            return
        took(Place.PAGE_LOCKING, f"registered {memory.numel()} bytes")
        self._memory, self._pid = memory, os.getpid()

    def unlock(self) -> None:
        """See `Pages`. In a forked child nothing happens: the driver knows its parent's memory, not its own."""
        memory, self._memory = self._memory, None
        if memory is None or self._pid != os.getpid():
            return
        status = int(self._runtime().cudaHostUnregister(memory.data_ptr()))
        if status:
            with suppress(RuntimeError):
                self._take_up()
            _until_exit.append(memory)
            _logger.warning(
                "%d bytes of host memory stay page-locked, and mapped, until this process ends: cudaHostUnregister "
                "gives error %d",
                memory.numel(),
                status,
            )

    def leave(self) -> None:
        """See `Pages`."""
        if self._memory is not None:
            _until_exit.append(self._memory)
            self._memory = None


def _launch() -> None:
    torch.ones(1, device="cuda")
