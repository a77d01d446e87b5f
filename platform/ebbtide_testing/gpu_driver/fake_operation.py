"""Custom storage without a GPU: a file is a process's GPU memory, and the extent is a copy of it in ours."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from ebbtide.snapshot.driver.port import Extent

_GPU = "GPU-00000000-0000-0000-0000-000000000000"


class FakeOperation:
    """See `Operation`."""

    def __init__(self, memory: Path, *, fill: bool, complete: Callable[[], None]) -> None:
        """Map the memory.

        Args:
            memory: the file; without it the process has none.
            fill: for a checkpoint: map what is there. Otherwise zeros are mapped, and written there at the end.
            complete: changes the state.
        """
        self._memory, self._fill, self._complete = memory, fill, complete
        there = memory.read_bytes() if memory.exists() else b""
        self._mapped = (ctypes.c_ubyte * len(there)).from_buffer_copy(there if fill else bytes(len(there)))

    @property
    def extents(self) -> tuple[Extent, ...]:
        """One, or none if the process has no memory."""
        size_bytes = len(self._mapped)
        return (Extent(_GPU, ctypes.addressof(self._mapped), size_bytes, 0),) if size_bytes else ()

    def copy_out(self, extent: Extent, address: int) -> None:
        """See `Operation.copy_out`."""
        ctypes.memmove(address, extent.pointer, extent.size_bytes)

    def copy_in(self, extent: Extent, address: int) -> None:
        """See `Operation.copy_in`."""
        ctypes.memmove(extent.pointer, address, extent.size_bytes)

    def complete(self) -> None:
        """See `Operation.complete`."""
        self._complete()
        if self._mapped and self._fill:
            self._memory.write_bytes(b"")
            os.truncate(self._memory, len(self._mapped))
        elif self._mapped:
            self._memory.write_bytes(bytes(self._mapped))
