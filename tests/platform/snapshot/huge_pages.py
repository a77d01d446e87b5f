"""``python -m tests.platform.snapshot.huge_pages MIB``: what evicting and restoring adds to a process's huge pages.

48 MiB in blocks of MIB each. A process of its own: what other tests have left in the allocator may be huge already, and
what is restored into it adds nothing. Prints kibibytes.
"""

import re
import sys
from pathlib import Path

import torch

from ebbtide.snapshot.eviction import host_copy
from ebbtide.snapshot.eviction.host_pool import HostPool
from ebbtide.snapshot.eviction.tensor_eviction import evict, plan
from ebbtide.system.process_memory import malloc_trim

ALL_MIB = 48


def huge_kib() -> int:
    """Of this process."""
    found = re.search(r"AnonHugePages:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text())
    assert found is not None
    return int(found[1])


def gained_kib(each_mib: int) -> int:
    """By restoring what was evicted; each tensor comes back as it was."""
    host_copy._TRIAL_S = 60.0  # however long they take on a machine where others compute
    tensors = [torch.randint(0, 256, (each_mib << 20,), dtype=torch.uint8) for _ in range(ALL_MIB // each_mib)]
    before = [tensor.clone() for tensor in tensors]
    checked = plan((str(number), tensor) for number, tensor in enumerate(tensors))
    away = evict(checked, HostPool(checked.size_bytes))
    malloc_trim()  # as a job that parks does: blocks that the allocator keeps have their pages still
    least_kib = huge_kib()
    away.restore()
    assert all(torch.equal(one, other) for one, other in zip(tensors, before, strict=True))
    return huge_kib() - least_kib


if __name__ == "__main__":
    print(gained_kib(int(sys.argv[1])))
