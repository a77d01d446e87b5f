"""Host memory that parked state may take on this node, and everything that bounds it.

The least of: what the system (or the container) has available, what Ray lets the node use before it kills workers, and
the room of /dev/shm, where lent memory lies. Ray's object store counts as used in full, since it may fill at any time.

Source: Ray's "Out-Of-Memory Prevention": a node above ``RAY_memory_usage_threshold`` (default 0.95) kills workers.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ebbtide.diagnostics.doctor.memory_check import read_memory
from ebbtide.diagnostics.host.machine_reader import Machine
from ebbtide.diagnostics.probe.fact import Fact, hindering
from ebbtide.snapshot.tiers import Means
from ebbtide.snapshot.tiers.formatting import gigabytes

SHM = "/dev/shm"
RAY_THRESHOLD = 0.95  # Ray's own default
_THRESHOLD_VARIABLE = "RAY_memory_usage_threshold"
_STORE = re.compile(r"--object_store_memory=(\d+)")

Room = Callable[[Path], int]


def free_bytes(folder: Path) -> int:
    """What this user may still write there; OSError if it cannot be asked."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


@dataclass(frozen=True, slots=True)
class RayRoom:
    """What this machine's raylets were started with: stores together, the lowest threshold; no pids: none was found."""

    pids: tuple[int, ...] = ()
    store_bytes: int = 0
    threshold: float = 1.0


def read_ray(machine: Machine) -> RayRoom:
    """All raylets in sight, by their command lines and environments: they share this machine's memory."""
    found = RayRoom()
    for name in machine.names("/proc"):
        if not name.isdigit() or machine.text(f"/proc/{name}/comm") != "raylet":
            continue
        store = _STORE.search(machine.text(f"/proc/{name}/cmdline") or "")
        environ = (machine.content(f"/proc/{name}/environ") or b"").decode(errors="replace").split("\0")
        said = next((one.partition("=")[2] for one in environ if one.startswith(f"{_THRESHOLD_VARIABLE}=")), "")
        stores = found.store_bytes + (int(store[1]) if store else 0)
        found = RayRoom((*found.pids, int(name)), stores, min(found.threshold, _fraction(said)))
    return found


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return RAY_THRESHOLD
    return value if 0 < value <= 1 else RAY_THRESHOLD


def memory_facts(machine: Machine, *, room: Room = free_bytes) -> tuple[int | None, tuple[Fact, ...]]:
    """Bytes that parked state may take on this node (None: not known), and the facts behind it."""
    found = [*_bounds(machine, room)]
    bounds = [fact.value for fact in found if isinstance(fact.value, int)]
    if not any(fact.id == "ram.available" and fact.value is not None for fact in found):
        bounds = []
    return (max(0, min(bounds)) if bounds else None), (*found, _huge_pages(machine))


def _bounds(machine: Machine, room: Room) -> Iterator[Fact]:
    memory = read_memory(machine)
    available = memory.available_bytes
    if available is None:
        where, remedy = "/proc/meminfo", "let us read /proc/meminfo: without it no memory is taken"
        yield Fact("ram.available", "free memory cannot be read", where, None, hindering(Means.EVICT), remedy)
    else:
        by = "the container leaves" if memory.limited_by == "cgroup" else "the machine has"
        where = "memory.max of its control group" if memory.limited_by == "cgroup" else "MemAvailable of /proc/meminfo"
        yield Fact("ram.available", f"{by} {gigabytes(available)} available", where, available)
        yield from _ray(machine, read_ray(machine))
    try:
        left = room(machine.at(SHM))
        yield Fact("ram.shm", f"{SHM} has room for {gigabytes(left)}", f"statvfs of {SHM}", left)
    except OSError as error:
        remedy = f"mount a tmpfs at {SHM} (in a container: --shm-size)"
        what = f"{SHM} cannot be used ({error.strerror or error})"
        yield Fact("ram.shm", what, f"statvfs of {SHM}", None, hindering(Means.EVICT), remedy)


def _ray(machine: Machine, ray: RayRoom) -> Iterator[Fact]:
    if not ray.pids:
        return
    text = machine.text("/proc/meminfo") or ""
    total, available = (re.search(rf"^{key}:\s*(\d+) kB", text, re.M) for key in ("MemTotal", "MemAvailable"))
    if total is None or available is None:
        return
    total_bytes, used_bytes = int(total[1]) * 1024, (int(total[1]) - int(available[1])) * 1024
    left = max(0, int(ray.threshold * total_bytes) - used_bytes - ray.store_bytes)
    what = (
        f"Ray kills workers above {ray.threshold:.0%} of {gigabytes(total_bytes)}, and its object store may take "
        f"{gigabytes(ray.store_bytes)}: {gigabytes(left)} are left"
    )
    where = f"command line and environment of raylet {', '.join(map(str, ray.pids))}"
    yield Fact("ram.ray", what, where, left, remedy=f"a smaller --object-store-memory, or {_THRESHOLD_VARIABLE}")


def _huge_pages(machine: Machine) -> Fact:
    memory = read_memory(machine)
    shm = re.search(r"\[(\w+)\]", machine.text("/sys/kernel/mm/transparent_hugepage/shmem_enabled") or "")
    mode = shm[1] if shm else "not in this kernel"
    what = f"huge pages: {memory.transparent or 'none'} for private memory, {mode} for shared memory"
    where = "/sys/kernel/mm/transparent_hugepage"
    remedy = "" if mode in ("always", "advise", "force", "within_size") else f"echo advise > {where}/shmem_enabled"
    return Fact("ram.huge_pages", what, where, mode, remedy=remedy)
