"""Large arenas, lent for as long as anybody holds a view of them, and then lent again.

Nobody gives anything back by hand: `Arenas.lend` makes an owner for each loan, every view made of it (slices, numpy
arrays, tensors) keeps the owner alive, and when the last one is gone the arena is free. That holds for requests that
hang too: their thread holds a view, so an arena is never lent while one may still write into it.

Not guaranteed: that a device is done with it. Keep a view until an asynchronous copy has ended.
"""

import os
import threading
import weakref
from collections import deque

import numpy as np

from ebbtide.storage.errors import Refused
from ebbtide.storage.memory.arena import HUGE_PAGE_BYTES, Arena, Register

# A larger one than this many times the wish is left for those who need it.
LARGEST_FIT = 2


class Arenas:
    """Arenas of this process; shared by threads."""

    def __init__(self, *, limit_bytes: int | None = None, register: Register | None = None) -> None:
        """Hold nothing yet.

        Args:
            limit_bytes: of all arenas together; None for no limit but the machine's memory.
            register: see `Arena`. Registered arenas are never unmapped.
        """
        self._limit_bytes, self._register = limit_bytes, register
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._free: list[Arena] = []
        self._total_bytes = 0
        # Filled by finalizers, which may run inside any statement, also one that holds the lock.
        self._returned: deque[Arena] = deque()

    @property
    def total_bytes(self) -> int:
        """Of all arenas, lent or free."""
        return self._total_bytes

    @property
    def free_bytes(self) -> int:
        """Of arenas that nobody holds a view of."""
        with self._lock:
            self._collect()
            return sum(arena.size_bytes for arena in self._free)

    def lend(self, size_bytes: int) -> memoryview:
        """Writable memory of exactly ``size_bytes``, aligned to 2 MiB, holding anything.

        Raises:
            MemoryError: beyond the limit, or the machine has no more.
            Refused: in a forked child.
        """
        if os.getpid() != self._pid:
            raise Refused(f"these arenas belong to process {self._pid}, which forked this one: make some of its own")
        with self._lock:
            self._collect()
            arena = self._best(size_bytes) or self._make(size_bytes)
        owner = np.frombuffer(arena.view[:size_bytes], np.uint8)
        weakref.finalize(owner, self._returned.append, arena).atexit = False
        return owner.data

    def _collect(self) -> None:
        while self._returned:
            self._free.append(self._returned.popleft())

    def _best(self, size_bytes: int) -> Arena | None:
        most = LARGEST_FIT * max(size_bytes, HUGE_PAGE_BYTES)
        fitting = [arena for arena in self._free if size_bytes <= arena.size_bytes <= most]
        best = min(fitting, key=lambda arena: arena.size_bytes, default=None)
        if best is not None:
            self._free.remove(best)
        return best

    def _make(self, size_bytes: int) -> Arena:
        size = max(-(-size_bytes // HUGE_PAGE_BYTES), 1) * HUGE_PAGE_BYTES
        while self._limit_bytes is not None and self._total_bytes + size > self._limit_bytes:
            self._unmap_one(size)
        arena = Arena(size, register=self._register)
        self._total_bytes += arena.size_bytes
        return arena

    def _unmap_one(self, for_bytes: int) -> None:
        if not self._free or self._register is not None:
            held = f"{self._total_bytes} bytes are held, {self._limit_bytes} allowed"
            raise MemoryError(f"no arena of {for_bytes} bytes: {held}; drop views of loaded files or raise the limit")
        arena = self._free.pop()
        self._total_bytes -= arena.size_bytes
        arena.unmap()
