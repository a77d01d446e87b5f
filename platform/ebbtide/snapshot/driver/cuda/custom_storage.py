"""Custom storage of CUDA 13.4: the driver maps what a process holds on its GPUs into ours, and we copy it.

Odd about the bindings (cuda-bindings 13.5): of what the driver fills in, ``perDeviceData`` comes back empty, so the
structs are read with ctypes as they stand in cuda.h 13.4.

The caller must have a context on each GPU of the process. Contexts take hundreds of MB of each GPU and make us an
occupant of it, so they are held only while an operation is open.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ebbtide.snapshot.driver.cuda.cuda_library import CudaLibrary, CudaRefused
from ebbtide.snapshot.driver.errors import CopyFailed, ProcessLost
from ebbtide.snapshot.driver.port import Extent


class _PerDevice(ctypes.Structure):
    """CUcheckpointCustomStoragePerDeviceData."""

    _fields_ = (("pointer", ctypes.c_uint64), ("size_bytes", ctypes.c_size_t), ("stream", ctypes.c_void_p))


class _Info(ctypes.Structure):
    """CUcheckpointCustomStorageInfo."""

    _fields_ = (
        ("handle", ctypes.c_void_p),
        ("devices", ctypes.POINTER(_PerDevice)),
        ("num_devices", ctypes.c_uint),
    )


class HeldContexts:
    """A primary context on each GPU, while anybody wants them. Shared by threads."""

    def __init__(self, library: CudaLibrary) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._wanted = 0
        self._held: dict[str, tuple[Any, Any]] = {}  # by uuid: device, context

    def hold(self) -> None:
        """Have one on each GPU, until as many calls of `let_go`.

        Raises:
            CudaRefused: one GPU does not give any; none is held then.
        """
        api = self._library.api
        with self._lock:
            if not self._wanted:
                try:
                    for device in self._library.devices():
                        context = self._library.ask(api.cuDevicePrimaryCtxRetain(device))
                        self._held[self._library.gpu(device)] = device, context
                except CudaRefused:
                    self._release()
                    raise
            self._wanted += 1

    def let_go(self) -> None:
        """Whoever called `hold` needs them no more."""
        with self._lock:
            self._wanted -= 1
            if not self._wanted:
                self._release()

    @contextmanager
    def current(self, gpu: str) -> Iterator[None]:
        """Within it, this thread's calls to CUDA go to that GPU."""
        self._library.ask(self._library.api.cuCtxPushCurrent(self._held[gpu][1]))
        try:
            yield
        finally:
            self._library.ask(self._library.api.cuCtxPopCurrent())

    def _release(self) -> None:
        for device, _ in self._held.values():
            self._library.api.cuDevicePrimaryCtxRelease(device)
        self._held.clear()


class CudaOperation:
    """See `Operation`."""

    def __init__(
        self,
        library: CudaLibrary,
        slot: ctypes.c_void_p,
        *,
        complete: Callable[[Any], None],
        contexts: HeldContexts,
    ) -> None:
        """Take over what the driver opened.

        Args:
            library: of the driver.
            slot: holds the address of what the driver filled in; that memory is the driver's, until the completion.
            complete: tells the driver, by handle.
            contexts: held already; let go with the completion.
        """
        assert slot.value, "the driver opened an operation and told us nothing of it"
        info = _Info.from_address(slot.value)
        self._library, self._complete, self._contexts = library, complete, contexts
        self._handle = library.api.CUcheckpointOperationHandle(info.handle or 0)
        self._pieces = [
            (one.pointer, one.size_bytes, one.stream or 0) for one in (info.devices[i] for i in range(info.num_devices))
        ]

    @property
    def extents(self) -> tuple[Extent, ...]:
        """See `Operation.extents`."""
        with _copying():
            return tuple(Extent(self._gpu_of(stream), at, size, stream) for at, size, stream in self._pieces)

    def complete(self) -> None:
        """See `Operation.complete`."""
        try:
            self._complete(self._handle)
        except ProcessLost:
            self._contexts.let_go()
            raise
        self._contexts.let_go()

    def copy_out(self, extent: Extent, address: int) -> None:
        """See `Operation.copy_out`."""
        api = self._library.api
        with _copying(), self._contexts.current(extent.gpu):
            self._library.ask(api.cuMemcpyDtoHAsync(address, extent.pointer, extent.size_bytes, extent.stream))
            self._library.ask(api.cuStreamSynchronize(extent.stream))

    def copy_in(self, extent: Extent, address: int) -> None:
        """See `Operation.copy_in`."""
        api = self._library.api
        with _copying(), self._contexts.current(extent.gpu):
            self._library.ask(api.cuMemcpyHtoDAsync(extent.pointer, address, extent.size_bytes, extent.stream))
            self._library.ask(api.cuStreamSynchronize(extent.stream))

    def _gpu_of(self, stream: int) -> str:
        """The stream is the only thing that says which GPU an extent is on (CUDA driver API, restore)."""
        device = self._library.ask(self._library.api.cuStreamGetDevice(self._library.api.CUstream(stream)))
        return self._library.gpu(device)


@contextmanager
def _copying() -> Iterator[None]:
    try:
        yield
    except CudaRefused as error:
        raise CopyFailed(f"the CUDA driver refuses to copy: {error}; copy it another way, then complete") from error
