"""The port of what freezes GPU memory of other processes.

A pid is checked by nobody here: that it still means the process that was registered is for the caller to see, by its
start time, right before each call.

Not guaranteed by any adapter: that a call ends. Blocking calls take as long as the driver takes; `bounded_driver` puts
a deadline on them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ebbtide.snapshot.driver.process_states import ProcessState

GpuMap = Mapping[str, str]
"""From the uuid of a GPU at the checkpoint to that of the GPU to restore onto (``GPU-<hex>``, as NVML writes them).

GPUs that it does not name stay, or take the places that others left: see `gpu_map`. Empty: all stay. Where it names one
that is not of this machine, the process was checkpointed on another one: then it names all GPUs of that machine.
"""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a driver can do here, and in words why it cannot do the rest.

    Attributes:
        driver: which one, with versions; "" if there is none.
        why_not_checkpoint: "" if processes can be locked, checkpointed, restored and unlocked.
        why_not_custom_storage: "" if their memory can be mapped to be copied by us.
        why_not_remap: "" if they can be restored onto other GPUs.
        gpus: what each GPU of this machine is, such as ``NVIDIA H100 80GB HBM3``, by its uuid.
    """

    driver: str
    why_not_checkpoint: str = ""
    why_not_custom_storage: str = ""
    why_not_remap: str = ""
    gpus: Mapping[str, str] = field(default_factory=dict)

    @property
    def can_checkpoint(self) -> bool:
        """Whether processes can be checkpointed at all. That one of them cannot is only seen when it is tried."""
        return not self.why_not_checkpoint

    @property
    def custom_storage(self) -> bool:
        """Whether a `StorageDriver`'s own calls work."""
        return self.can_checkpoint and not self.why_not_custom_storage

    @property
    def remap(self) -> bool:
        """Whether a `GpuMap` that is not empty is accepted."""
        return self.can_checkpoint and not self.why_not_remap


class Driver(Protocol):
    """Freezes and thaws processes, in the order of `process_states`. Threads may share it; one call per pid at a time.

    Every call but `capabilities` raises, about this pid:

    - ProcessGone, DriverFailed: it is lost.
    - DriverRefused: nothing has changed: the state does not allow the call, or the driver does not want it.
    - DriverUnknown: it may have happened.
    """

    def capabilities(self) -> Capabilities:
        """What holds here; cheap, never raises."""

    def state(self, pid: int) -> ProcessState:
        """Where the process stands; FAILED is an answer, no error. May be asked while another call is under way."""

    def lock(self, pid: int, timeout_ms: int) -> None:
        """RUNNING -> LOCKED: let its work end, and keep its calls to CUDA waiting.

        Args:
            pid: the process.
            timeout_ms: how long its work may take to end; more than 0.

        Raises:
            LockTimeout: it took longer; the process runs on.
        """

    def checkpoint(self, pid: int) -> None:
        """LOCKED -> CHECKPOINTED: copy its GPU memory to host memory of the driver's own; its GPUs are free then.

        The host memory comes on top of what the process uses, as much as it held on its GPUs.
        """

    def restore(self, pid: int, gpu_map: GpuMap) -> None:
        """CHECKPOINTED -> LOCKED: back to the same addresses, on the same GPUs or on those of ``gpu_map``."""

    def unlock(self, pid: int) -> None:
        """LOCKED -> RUNNING."""


@dataclass(frozen=True, slots=True)
class Extent:
    """All that a process holds on one GPU, mapped as one piece into our own process.

    Attributes:
        gpu: uuid of the GPU on which it is mapped.
        pointer: device address.
        size_bytes: its length.
        stream: the driver's ``CUstream`` for copies; they need not be waited for. It must not be captured.
    """

    gpu: str
    pointer: int
    size_bytes: int
    stream: int


class Operation(Protocol):
    """A process's GPU memory in our hands. It lives and dies with our process: if we die, the process is lost."""

    @property
    def extents(self) -> tuple[Extent, ...]:
        """One for each GPU on which the process holds anything, in the driver's order."""

    def copy_out(self, extent: Extent, address: int) -> None:
        """Copy an extent to host memory; when this returns, the bytes are there.

        Args:
            extent: one of ours.
            address: of ``extent.size_bytes`` bytes; page-locked memory is several times faster.

        Raises:
            CopyFailed: any mixture of old and new bytes is there.
        """

    def copy_in(self, extent: Extent, address: int) -> None:
        """Copy host memory to an extent; otherwise as `copy_out`."""

    def complete(self) -> None:
        """The copies are done, or queued on the extents' streams: wait for them and let the driver go on.

        Raises:
            DriverError: as calls of `Driver` do.
        """


class Copier(Protocol):
    """A way to move extents, out or in: through host memory, or by what takes device addresses (cuFile)."""

    def __call__(self, operation: Operation, extent: Extent) -> None:
        """Move one extent.

        Raises:
            CopyFailed: it did not work; another copier may try.
        """


class StorageDriver(Driver, Protocol):
    """A driver that also hands out the memory itself (CUDA 13.4 "custom storage"), so that no host memory is needed.

    Never for our own process. There is no way to call an operation off: what is opened must be copied and completed.
    """

    def open_checkpoint(self, pid: int) -> Operation:
        """LOCKED -> CHECKPOINTING: map its memory here, to be copied out."""

    def open_restore(self, pid: int, gpu_map: GpuMap) -> Operation:
        """CHECKPOINTED -> RESTORING: map its memory here, to be filled with what was copied out."""
