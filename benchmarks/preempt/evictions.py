"""Eviction alone, as a process: out and back several times, each between two measured copies of memory.

The copies are libc's ``memcpy`` between two memories that have all their pages, with as many threads (one): what the
memory of this machine gives to a process like ours.
"""

import ctypes
import time
from pathlib import Path

import torch

from benchmarks.preempt.events import figure
from benchmarks.preempt.state import make, plain_step, tensors
from ebbtide.snapshot.evict import evict, plan
from ebbtide.snapshot.host_pool import HostPool
from ebbtide.snapshot.memory import malloc_trim

CYCLES = 4
MEMCPY_BYTES = 256 << 20  # eight times the cache of a processor here; more does not change the figure
EVICT, RESTORE = "evict", "restore"
SPEED, SHARE = "GB/s", "share of memcpy"
WITH_TRIM = "evict with malloc_trim"
MEMCPY = "memcpy"


class Memcpy:
    """The measure."""

    def __init__(self, size_bytes: int) -> None:
        self._from = torch.zeros(size_bytes, dtype=torch.uint8).fill_(1)
        self._to = torch.zeros(size_bytes, dtype=torch.uint8).fill_(2)

    def bytes_per_s(self) -> float:
        """Now."""
        began_s = time.perf_counter()
        ctypes.memmove(self._to.data_ptr(), self._from.data_ptr(), self._to.numel())
        return self._to.numel() / (time.perf_counter() - began_s)


def measure(folder: Path, size_bytes: int) -> None:
    """Tell figures of several cycles. The first one's memory is as torch gave it, later ones' as it came back."""
    model, optimizer = make(size_bytes)
    plain_step(model, optimizer, 0)
    memcpy = Memcpy(min(MEMCPY_BYTES, size_bytes))
    memcpy.bytes_per_s()
    away = plan(tensors(model, optimizer))
    pool = HostPool(away.size_bytes)
    size = sum(place.size_bytes for place in away.places)
    for _ in range(CYCLES):
        before = memcpy.bytes_per_s()
        began_s = time.perf_counter()
        evicted = evict(away, pool)
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
        for speed in (before, between, after):
            figure(f"{MEMCPY}, {SPEED}", speed / 1e9)
