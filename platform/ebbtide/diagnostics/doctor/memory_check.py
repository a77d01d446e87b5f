"""Host memory: free room for the buffer pool, huge pages for it, what may be locked, and what io_uring is to us.

Why huge pages: requests into 4 KiB pages are cut small by the block layer (see `ebbtide.storage.memory.arena`).

Source: Documentation/admin-guide/mm/transhuge.rst and hugetlbpage.rst; cgroup-v2.rst; io_uring_setup(2).
"""

import errno
import re
from dataclasses import dataclass

from ebbtide.diagnostics.doctor.findings import Finding, Verdict
from ebbtide.diagnostics.host.machine_reader import Machine

_CAP_IPC_LOCK = 14  # its holder may lock without limit (capabilities(7))
_HUGE_PAGE = 2 << 20


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Host memory.

    Attributes:
        available_bytes: what a new process can have without swapping, the container's limit counted; None if unknown.
        limited_by: ``cgroup`` if the container's limit is what binds, else ``machine``.
        transparent: ``always``, ``madvise`` or ``never``; None without transparent huge pages.
        reserved_bytes: in free pages of 2 MiB that were set aside (HugeTLB).
        memlock_bytes: that one process may lock; None is without limit.
        io_uring: errno name of asking for one; empty if it works.
    """

    available_bytes: int | None = None
    limited_by: str = "machine"
    transparent: str | None = None
    reserved_bytes: int = 0
    memlock_bytes: int | None = None
    io_uring: str = ""


def read_memory(machine: Machine) -> MemoryReading:
    """Ask /proc, /sys and the kernel."""
    available = re.search(r"^MemAvailable:\s*(\d+) kB", machine.text("/proc/meminfo") or "", re.M)
    rooms = {"machine": int(available[1]) * 1024} if available else {}
    in_cgroup = _cgroup_room(machine)
    if in_cgroup is not None:
        rooms["cgroup"] = in_cgroup
    limited_by = min(rooms, key=rooms.__getitem__, default="machine")
    transparent = re.search(r"\[(\w+)\]", machine.text("/sys/kernel/mm/transparent_hugepage/enabled") or "")
    free = machine.text("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages") or "0"
    capable = re.search(r"^CapEff:\s*([0-9a-f]+)", machine.text("/proc/self/status") or "", re.M)
    unlimited = capable is not None and int(capable[1], 16) >> _CAP_IPC_LOCK & 1
    code = machine.io_uring_errno()
    return MemoryReading(
        available_bytes=rooms.get(limited_by),
        limited_by=limited_by,
        transparent=transparent[1] if transparent else None,
        reserved_bytes=int(free) * _HUGE_PAGE if free.isdigit() else 0,
        memlock_bytes=None if unlimited else machine.memlock_bytes(),
        io_uring="" if code in (0, errno.EFAULT, errno.EINVAL) else errno.errorcode.get(code, str(code)),
    )


def _cgroup_room(machine: Machine) -> int | None:
    """What the process's control group, or one above it, leaves; cached file pages count as room, since they can go."""
    own = re.search(r"^0::(/.*)$", machine.text("/proc/self/cgroup") or "", re.M)
    place = own[1].rstrip("/") if own else ""
    rooms = []
    while True:
        base = f"/sys/fs/cgroup{place}"
        most, used = machine.text(f"{base}/memory.max"), machine.text(f"{base}/memory.current")
        if most and used and most.isdigit() and used.isdigit():
            cached = re.search(r"^inactive_file (\d+)", machine.text(f"{base}/memory.stat") or "", re.M)
            rooms.append(max(int(most) - int(used) + (int(cached[1]) if cached else 0), 0))
        if not place:
            break
        place = place.rpartition("/")[0]
    first = "/sys/fs/cgroup/memory"
    most, used = machine.text(f"{first}/memory.limit_in_bytes"), machine.text(f"{first}/memory.usage_in_bytes")
    if most and used and most.isdigit() and used.isdigit():
        rooms.append(max(int(most) - int(used), 0))
    return min(rooms, default=None)


def judge_memory(memory: MemoryReading, pool_bytes: int) -> list[Finding]:
    """Whether a pool of ``pool_bytes`` fits, and how well it would serve."""
    return [_room(memory, pool_bytes), _huge(memory, pool_bytes), _locked(memory, pool_bytes), _io_uring(memory)]


def _mib(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB" if size_bytes < 10 << 30 else f"{size_bytes / (1 << 30):.0f} GiB"


def _room(memory: MemoryReading, pool_bytes: int) -> Finding:
    values = {"available_bytes": memory.available_bytes, "pool_bytes": pool_bytes, "limited_by": memory.limited_by}
    why = "the transfers' buffers stay in memory as long as their process"
    if memory.available_bytes is None:
        return Finding("memory.room", Verdict.UNKNOWN, "free memory cannot be read", why, "look at `free -m`", values)
    within = " within the container's limit" if memory.limited_by == "cgroup" else ""
    what = f"{_mib(memory.available_bytes)} available{within}; the buffer pool wants {_mib(pool_bytes)}"
    if memory.available_bytes < pool_bytes:
        remedy = "free memory, raise the container's limit, or ask for a smaller pool"
        return Finding("memory.room", Verdict.MISSING, what, why, remedy, values, broken=True)
    return Finding("memory.room", Verdict.OK, what, values=values)


def _huge(memory: MemoryReading, pool_bytes: int) -> Finding:
    values = {"transparent": memory.transparent, "reserved_bytes": memory.reserved_bytes}
    reserved = f"; {_mib(memory.reserved_bytes)} are reserved" if memory.reserved_bytes else ""
    if memory.transparent in ("always", "madvise"):
        what = f"transparent huge pages are on ({memory.transparent}){reserved}"
        return Finding("memory.huge_pages", Verdict.OK, what, values=values)
    state = "off" if memory.transparent == "never" else "not in this kernel"
    what = f"transparent huge pages are {state}{reserved}"
    why = "the block layer cuts requests into 4 KiB pages small: three quarters of the speed in measurements"
    remedy = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (on the host, for a container)"
    if memory.transparent is None:
        remedy = "boot a kernel with CONFIG_TRANSPARENT_HUGEPAGE"
    return Finding("memory.huge_pages", Verdict.LIMITED, what, why, remedy, values)


def _locked(memory: MemoryReading, pool_bytes: int) -> Finding:
    if memory.memlock_bytes is None:
        return Finding("memory.locked", Verdict.OK, "memory can be locked without limit", values={"limit": None})
    what, values = f"{_mib(memory.memlock_bytes)} may be locked", {"limit": memory.memlock_bytes}
    if memory.memlock_bytes >= pool_bytes:
        return Finding("memory.locked", Verdict.OK, what, values=values)
    why = "RDMA cards cannot register buffers beyond that limit, and the pool may be swapped out"
    remedy = "set LimitMEMLOCK=infinity (systemd), --ulimit memlock=-1 (docker) or /etc/security/limits.conf"
    return Finding("memory.locked", Verdict.LIMITED, what, why, remedy, values)


def _io_uring(memory: MemoryReading) -> Finding:
    state = f"is not available ({memory.io_uring})" if memory.io_uring else "is available"
    what = f"io_uring {state}; ebbtide does not use it: threads are as fast, and CRIU cannot save a process with one"
    return Finding("memory.io_uring", Verdict.OK, what, values={"error": memory.io_uring})
