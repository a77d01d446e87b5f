"""The adapter for the CUDA driver: the checkpoint calls of its API, in this process, never one command per call.

Why in one long-lived process: each start of the driver takes seconds on a node with many GPUs (2.7 s on eight, NVIDIA
nvcf issue 263). Source of what the calls do: CUDA driver API, "CUDA Checkpointing"; cuda.h 13.4.

Odd about the bindings (cuda-bindings 13.5): ``CUuuid.bytes`` cannot be set, so pairs of GPUs are written to the
struct's address; for custom storage see `custom_storage`.

Not guaranteed: that a call ends (see `bounded_driver`), and what the driver does to a process that dies meanwhile.
"""

import ctypes
import uuid
from collections.abc import Callable
from typing import Any

from ebbtide.snapshot.driver.cuda.cuda_library import CudaLibrary, CudaRefused
from ebbtide.snapshot.driver.cuda.cuda_results import check_result
from ebbtide.snapshot.driver.cuda.custom_storage import CudaOperation, HeldContexts
from ebbtide.snapshot.driver.errors import DriverRefused, ProcessGone
from ebbtide.snapshot.driver.gpu_map import complete_map, moved_in
from ebbtide.snapshot.driver.port import Capabilities, GpuMap
from ebbtide.snapshot.driver.process_start import started_ticks
from ebbtide.snapshot.driver.process_states import Call, ProcessState

# The CUDA versions that brought each ability, and the drivers that came with them.
_CHECKPOINT, _REMAP, _CUSTOM_STORAGE = 12080, 13000, 13040


class CudaDriver:
    """See `StorageDriver`."""

    def __init__(self, library: CudaLibrary) -> None:
        self._library = library
        self._contexts = HeldContexts(library)
        self._chips = library.chips()

    def capabilities(self) -> Capabilities:
        """What this driver has. MIG, MPS and what single processes use is not looked at."""
        lib = self._library
        has = lib.describe()
        checkpoint = remap = custom = ""
        if not lib.has("cuCheckpointProcessCheckpoint", _CHECKPOINT):
            checkpoint = f"{has} cannot checkpoint: that needs CUDA 12.8, which is driver 570"
        if lib.cuda_version < _REMAP:
            remap = f"{has} restores only onto the same GPU: another one needs CUDA 13.0, which is driver 580"
        else:
            remap = lib.why_gpus_are_hidden()
        if not lib.has("cuCheckpointOperationComplete", _CUSTOM_STORAGE):
            custom = f"{has} has no custom storage: that needs CUDA 13.4 in the driver and in cuda-bindings"
        return Capabilities(has, checkpoint, custom, remap, self._chips)

    def state(self, pid: int) -> ProcessState:
        """See `Driver.state`. A process that does not use CUDA is refused."""
        code, state = self._library.api.cuCheckpointProcessGetState(pid)
        if code:
            name = self._library.name(code)
            if started_ticks(pid) is None:
                raise ProcessGone("state", pid, f"there is no such process ({name})", "its GPU memory is free")
            raise DriverRefused("state", pid, name, "it may not use CUDA, or belong to somebody else")
        return ProcessState(int(state))

    def lock(self, pid: int, timeout_ms: int) -> None:
        """See `Driver.lock`."""
        if timeout_ms <= 0:  # to the driver, 0 is for ever
            raise ValueError(f"a lock's timeout is {timeout_ms} ms; without one it could wait for ever")
        api = self._library.api
        args = api.CUcheckpointLockArgs()
        args.timeoutMs = timeout_ms
        self._do(Call.LOCK, pid, lambda: api.cuCheckpointProcessLock(pid, args))

    def checkpoint(self, pid: int) -> None:
        """See `Driver.checkpoint`."""
        api = self._library.api
        self._do(Call.CHECKPOINT, pid, lambda: api.cuCheckpointProcessCheckpoint(pid, None))

    def restore(self, pid: int, gpu_map: GpuMap) -> None:
        """See `Driver.restore`."""
        args, _pairs = self._restore_args(Call.RESTORE, pid, gpu_map)
        self._do(Call.RESTORE, pid, lambda: self._library.api.cuCheckpointProcessRestore(pid, args))

    def unlock(self, pid: int) -> None:
        """See `Driver.unlock`."""
        self._do(Call.UNLOCK, pid, lambda: self._library.api.cuCheckpointProcessUnlock(pid, None))

    def open_checkpoint(self, pid: int) -> CudaOperation:
        """See `StorageDriver.open_checkpoint`."""
        api = self._library.api
        args = api.CUcheckpointCheckpointArgs()
        return self._open(Call.OPEN_CHECKPOINT, pid, args, lambda: api.cuCheckpointProcessCheckpoint(pid, args))

    def open_restore(self, pid: int, gpu_map: GpuMap) -> CudaOperation:
        """See `StorageDriver.open_restore`."""
        args, _pairs = self._restore_args(Call.OPEN_RESTORE, pid, gpu_map)
        api = self._library.api
        return self._open(Call.OPEN_RESTORE, pid, args, lambda: api.cuCheckpointProcessRestore(pid, args))

    def _open(self, call: Call, pid: int, args: Any, ask: Callable[[], tuple[Any]]) -> CudaOperation:
        slot = ctypes.c_void_p()
        args.customStorageInfo_out = ctypes.addressof(slot)  # the bindings want the address as a number
        try:
            self._contexts.hold()
        except CudaRefused as error:
            remedy = "free some hundred MB on each GPU of this node, or use another tier"
            raise DriverRefused(call.value, pid, f"no context on one of the GPUs: {error}", remedy) from error
        try:
            self._do(call, pid, ask)
        except BaseException:
            self._contexts.let_go()
            raise
        complete = self._library.api.cuCheckpointOperationComplete
        return CudaOperation(
            self._library,
            slot,
            complete=lambda handle: self._do(Call.COMPLETE, pid, lambda: complete(handle)),
            contexts=self._contexts,
        )

    def _restore_args(self, call: Call, pid: int, gpu_map: GpuMap) -> tuple[Any, list[Any]]:
        """The arguments, and what must live as long as they."""
        api = self._library.api
        args = api.CUcheckpointRestoreArgs()
        if not gpu_map:
            return args, []
        if why := self.capabilities().why_not_remap:
            raise DriverRefused(call.value, pid, why, "resume it on the GPUs that it had")
        try:
            here = frozenset(self._library.gpu(device) for device in self._library.devices())
            # Names of another machine: the map is whole, and whoever made it knew that machine.
            whole = complete_map(gpu_map, here) if set(gpu_map) <= here else moved_in(gpu_map, here)
        except (ValueError, CudaRefused) as error:
            raise DriverRefused(call.value, pid, str(error), "name GPUs of this machine, each at most once") from error
        pairs = [_pair(api, old, new) for old, new in sorted(whole.items())]
        args.gpuPairs, args.gpuPairsCount = pairs, len(pairs)
        return args, pairs

    def _do(self, call: Call, pid: int, ask: Callable[[], tuple[Any]]) -> None:
        (code,) = ask()
        if not code:
            return
        unread, state = self._library.api.cuCheckpointProcessGetState(pid)
        read_back = None if unread else ProcessState(int(state))
        raise check_result(call, pid, self._library.name(code), read_back, lives=started_ticks(pid) is not None)


def _pair(api: Any, old: str, new: str) -> Any:
    pair = api.CUcheckpointGpuPair()
    both = b"".join(uuid.UUID(gpu.removeprefix("GPU-")).bytes for gpu in (old, new))
    ctypes.memmove(int(pair.getPtr()), both, len(both))
    return pair
