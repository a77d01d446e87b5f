"""What a device shall do, in order and beside the threads that ask for it: copies from host memory, hashes.

A CUDA queue is a stream of its own, so that copies run while the next chunk is being read and do not wait for the
caller's kernels. Two rules make it safe, and `begin` and `mark` keep them:

- memory that the caller gives may still be in use by kernels it has queued (torch's allocator hands out memory that
  is free only in the order of the caller's stream), so the queue first waits for what the caller queued before;
- host memory may be written again only after the copies from it have ended, which the `Pending` of `mark` waits for.

Host memory must be page-locked (`Pinning`) for copies to run beside the thread that asks for them, and at the speed of
the link; from other memory they are right, but slow.

Not guaranteed: order against the caller's other streams. What the caller queues after the transfer's return finds the
bytes, on whatever stream, since the transfer has waited for all copies.

Source: CUDA C++ Programming Guide, asynchronous concurrent execution; ``torch.cuda.Stream``; cudaHostRegister.
"""

import contextlib
import logging
from collections.abc import Callable
from typing import Any, Protocol

import torch

from ebbtide.storage.memory.buffer_pool import DEFAULT_COUNT, BufferPool
from ebbtide.storage.transport.transport import Pending

logger = logging.getLogger(__name__)

# cudaHostRegisterPortable: page-locked for every device of the process, not only for the current one.
_PORTABLE = 1


class DeviceQueue(Protocol):
    """Shared by the threads of any number of transfers.

    Attributes:
        device: with its index.
    """

    device: torch.device

    def begin(self) -> None:
        """Called in the caller's thread: all that follows comes after what the caller has queued so far."""

    def enter(self) -> None:
        """Called once in each thread that gives memory of the device to other libraries."""

    def scope(self) -> contextlib.AbstractContextManager[object]:
        """Within it, operations of torch go into this queue."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy between flat tensors of equal length; ``source`` may lie in host memory."""

    def mark(self) -> Pending | None:
        """What ends when all that was queued so far has ended; None if it has already."""


class HostQueue:
    """Host memory as a device: everything is done at once."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def begin(self) -> None:
        """Nothing is queued."""

    def enter(self) -> None:
        """Threads need no preparation."""

    def scope(self) -> contextlib.AbstractContextManager[object]:
        """Nothing to do."""
        return contextlib.nullcontext()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy now."""
        target.copy_(source)

    def mark(self) -> Pending | None:
        """All has ended."""
        return None


class CudaQueue:
    """A stream of its own on one GPU."""

    def __init__(self, device: torch.device) -> None:
        """``device`` without an index is the current one of this thread.

        Raises:
            RuntimeError: there is no such device.
        """
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Wait (on the device) for what the caller's current stream has to do."""
        self._stream.wait_stream(torch.cuda.current_stream(self.device))

    def enter(self) -> None:
        """Make the device's context the current one of this thread, as libraries below torch need it."""
        torch.cuda.set_device(self.device)

    def scope(self) -> contextlib.AbstractContextManager[object]:
        """Operations of this thread go into the stream."""
        return torch.cuda.stream(self._stream)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue the copy."""
        with self.scope():
            target.copy_(source, non_blocking=True)

    def mark(self) -> Pending | None:
        """An event behind all copies; who waits sleeps, and gives up the interpreter's lock."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return _Copied(event)


class _Copied:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.synchronize()


def queue_for(device: torch.device | str) -> DeviceQueue:
    """A new queue of a device: ``cpu`` or ``cuda``, with or without an index."""
    found = torch.device(device)
    return CudaQueue(found) if found.type == "cuda" else HostQueue()


class Pinning:
    """Page-locks memory (see `memory.Register`); without success it is used all the same.

    Attributes:
        why_not: why some of it is not page-locked, in words; empty if all is.
    """

    def __init__(self, runtime: Callable[[], Any] | None = None, take_up: Callable[[], object] | None = None) -> None:
        """Nothing is asked yet.

        Args:
            runtime: gives the CUDA runtime; torch's, if None.
            take_up: has CUDA hand out an error that nobody has seen; raises it. By a kernel, if None.
        """
        self.why_not = ""
        self._runtime, self._take_up = runtime or torch.cuda.cudart, take_up or _launch

    def __call__(self, address: int, size_bytes: int) -> None:
        """Page-lock ``size_bytes`` from ``address`` on."""
        try:
            runtime = self._runtime()
            status = runtime.cudaHostRegister(address, size_bytes, _PORTABLE)
            if int(status):
                # CUDA keeps it for whoever launches the next kernel: an innocent step of a training job.
                with contextlib.suppress(RuntimeError, AssertionError):
                    self._take_up()
                raise RuntimeError(f"cudaHostRegister gives error {int(status)}")
        except (RuntimeError, AssertionError) as error:  # torch raises either where CUDA does not start
            self.why_not = f"host memory is not page-locked: {' '.join(str(error).split())}"
            logger.warning("%s; copies to the device will be slow", self.why_not)


def _launch() -> None:
    torch.ones(1, device="cuda")


def pinned_pool(count: int = DEFAULT_COUNT, *, pinning: Pinning | None = None) -> tuple[BufferPool, str]:
    """A new pool of page-locked buffers, and why it is not page-locked, if it is not."""
    pinning = pinning or Pinning()
    pool = BufferPool(count, register=pinning)
    return pool, pinning.why_not
