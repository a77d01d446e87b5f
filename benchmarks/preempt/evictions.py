"""Eviction alone, as a process: out and back several times, each between two measured copies of memory.

The copies are libc's ``memcpy`` between two memories that have all their pages, with as many threads as eviction has:
what the memory of this machine gives to a process like ours. What comes back needs memory that the process has given
away, and the kernel clears each page of it first; so restoring has a limit of its own: ``memcpy`` into huge pages just
asked for.
"""

import ctypes
import mmap
import threading
import time
from pathlib import Path

import torch

from benchmarks.preempt.events import figure
from benchmarks.preempt.state import make, plain_step, tensors
from ebbtide.snapshot.eviction.host_copy import HUGE_PAGE_BYTES, threads_for
from ebbtide.snapshot.eviction.host_pool import HostPool
from ebbtide.snapshot.eviction.tensor_eviction import evict, plan
from ebbtide.system.process_memory import malloc_trim

CYCLES = 4
MEMCPY_BYTES = 256 << 20  # eight times the cache of a processor here; more does not change the figure
EVICT, RESTORE = "evict", "restore"
SPEED, SHARE, FRESH_SHARE = "GB/s", "share of memcpy", "share of memcpy into fresh pages"
WITH_TRIM = "evict with malloc_trim"
MEMCPY, INTO_FRESH = "memcpy", "memcpy into fresh pages"


class Memcpy:
    """The measure."""

    def __init__(self, size_bytes: int, threads: int) -> None:
        self._threads = threads
        self._from = torch.zeros(size_bytes, dtype=torch.uint8).fill_(1)
        self._to = torch.zeros(size_bytes, dtype=torch.uint8).fill_(2)

    def bytes_per_s(self) -> float:
        """Now."""
        began_s = time.perf_counter()
        self._copy_to(self._to.data_ptr())
        return self._to.numel() / (time.perf_counter() - began_s)

    def into_fresh_bytes_per_s(self) -> float:
        """Now, into huge pages that the kernel has to clear."""
        with mmap.mmap(-1, self._from.numel() + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as fresh:
            fresh.madvise(mmap.MADV_HUGEPAGE)
            place = ctypes.addressof(ctypes.c_char.from_buffer(fresh))
            place += -place % HUGE_PAGE_BYTES
            began_s = time.perf_counter()
            self._copy_to(place)
            return self._from.numel() / (time.perf_counter() - began_s)

    def _copy_to(self, place: int) -> None:
        share = self._from.numel() // self._threads
        helpers = [
            threading.Thread(target=ctypes.memmove, args=(place + at, self._from.data_ptr() + at, share))
            for at in range(0, share * self._threads, share)
        ]
        for helper in helpers:
            helper.start()
        for helper in helpers:
            helper.join()


def measure(folder: Path, size_bytes: int) -> None:
    """Tell figures of several cycles. The first one's memory is as torch gave it, later ones' as it came back."""
    model, optimizer = make(size_bytes)
    plain_step(model, optimizer, 0)
    threads = threads_for(1)
    memcpy = Memcpy(min(MEMCPY_BYTES, size_bytes), threads)
    memcpy.bytes_per_s()
    memcpy.into_fresh_bytes_per_s()  # the first has to find huge pages
    away = plan(tensors(model, optimizer))
    pool = HostPool(away.size_bytes)
    size = sum(place.size_bytes for place in away.places)
    for _ in range(CYCLES):
        before = memcpy.bytes_per_s()
        began_s = time.perf_counter()
        evicted = evict(away, pool, threads=threads)
        out_s = time.perf_counter() - began_s
        malloc_trim()  # as the session does, which then lets go of the slot
        trimmed_s = time.perf_counter() - began_s
        between = memcpy.bytes_per_s()
        began_s = time.perf_counter()
        evicted.restore()
        back_s = time.perf_counter() - began_s
        after = memcpy.bytes_per_s()
        for name, seconds, ceiling in (
            (EVICT, out_s, (before + between) / 2),
            (WITH_TRIM, trimmed_s, (before + between) / 2),
            (RESTORE, back_s, (between + after) / 2),
        ):
            figure(f"{name}, {SPEED}", size / seconds / 1e9)
            figure(f"{name}, {SHARE}", size / seconds / ceiling)
        fresh = memcpy.into_fresh_bytes_per_s()
        figure(f"{INTO_FRESH}, {SPEED}", fresh / 1e9)
        figure(f"{RESTORE}, {FRESH_SHARE}", size / back_s / fresh)
        for speed in (before, between, after):
            figure(f"{MEMCPY}, {SPEED}", speed / 1e9)
