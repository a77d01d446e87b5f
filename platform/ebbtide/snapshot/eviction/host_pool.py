"""Host memory that takes in what is evicted: one memfd, mapped and pre-faulted before it is needed.

Why a memfd: its pages are shared memory and not the process's own, so that a parked process's anonymous memory really
falls, and the descriptor can be handed to another process that outlives this one. Why pre-faulted: the copy then runs
at memcpy speed, not at page-fault speed, while somebody waits for the slot.

Not guaranteed: huge pages, surviving the process. Whoever copies from a GPU page-locks it (`page_lock`).
"""

import mmap
import os
import warnings

import torch

from ebbtide.snapshot.errors import PoolTooSmall


class HostPool:
    """A fixed number of bytes of pre-faulted host memory, seen as one uint8 tensor."""

    def __init__(self, size_bytes: int, *, name: str = "ebbtide-host-pool") -> None:
        """Map and pre-fault ``size_bytes`` (rounded up to pages).

        Raises:
            PoolTooSmall: the system has not that much memory to map.
        """
        pages = max(1, -(-size_bytes // mmap.PAGESIZE))
        self.size_bytes = pages * mmap.PAGESIZE
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.fd, self.size_bytes)
            self._map: mmap.mmap | None = mmap.mmap(self.fd, self.size_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except OSError as error:
            os.close(self.fd)
            raise PoolTooSmall(
                f"cannot map {self.size_bytes} bytes of host memory ({error}); park fewer workers on this node"
            ) from error
        with warnings.catch_warnings():  # "buffer is not writable" cannot apply: the map is writable
            warnings.simplefilter("ignore")
            self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def close(self) -> None:
        """Give the memory back. Tensors that still look into the pool keep its pages alive until they go."""
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        self.bytes = torch.empty(0, dtype=torch.uint8)
        # Only let go: the last tensor that looks into the map ends it. An explicit close would unmap it under their
        # feet, since torch.frombuffer keeps the object but not the buffer.
        self._map = None
