"""The process that rehearses: tracked bytes of its own leave for host memory and come back. Prints one line of JSON.

Run by ``rehearsal`` as ``python -m ebbtide.diagnostics.probe.rehearsal_child BYTES``. It uses host memory only, never a
GPU: it has no lease. The tensors are as a model's are: some large, some small, one shared, with optimizer state.
"""

import ctypes
import json
import signal
import sys
import time
from collections.abc import Mapping

import torch
import xxhash

from ebbtide.snapshot.eviction.host_pool import HostPool
from ebbtide.snapshot.eviction.tensor_eviction import evict, plan
from ebbtide.system.process_memory import anonymous_bytes, malloc_trim

LARGE_BYTES = 64 << 20  # a layer of a model of a few billion parameters
SMALL_BYTES = 16 << 10  # its norms
_PR_SET_PDEATHSIG = 1


def tracked(size_bytes: int) -> dict[str, torch.Tensor]:
    """Tensors of ``size_bytes`` together at least, filled with random bytes."""
    found: dict[str, torch.Tensor] = {}
    left = size_bytes
    random = torch.Generator().manual_seed(1)
    while left > 0:
        for length in (LARGE_BYTES, SMALL_BYTES):
            length = min(length, left)
            if length > 0:
                found[f"layer.{len(found)}"] = torch.empty(-(-length // 8), dtype=torch.int64).random_(generator=random)
                left -= length
    return found


def digest(named: Mapping[str, torch.Tensor]) -> str:
    """Of every byte, in order."""
    hashed = xxhash.xxh3_128()
    for tensor in named.values():
        # Of a copy: a tensor that numpy has looked into once can never be resized again.
        hashed.update(tensor.clone().numpy().tobytes())
    return hashed.hexdigest()


def rehearse(size_bytes: int) -> dict[str, object]:
    """Evict and restore twice; the second round counts, as a job's pool is warm when it matters."""
    named = tracked(size_bytes)
    before = digest(named)
    pool = HostPool(plan(named.items()).size_bytes)
    out_s = back_s = 0.0
    freed_bytes = 0
    for _ in range(2):
        resident = anonymous_bytes()
        began_s = time.perf_counter()
        evicted = evict(plan(named.items()), pool)
        malloc_trim()
        out_s = time.perf_counter() - began_s
        freed_bytes = resident - anonymous_bytes()
        began_s = time.perf_counter()
        evicted.restore()
        back_s = time.perf_counter() - began_s
    same = digest(named) == before
    moved = evicted.size_bytes
    return {"bytes": moved, "out_s": out_s, "back_s": back_s, "freed_bytes": freed_bytes, "same": same}


def main() -> None:
    """Die with the parent: a rehearsal that nobody waits for must not keep the memory."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    print(json.dumps(rehearse(int(sys.argv[1]))))


if __name__ == "__main__":
    main()
