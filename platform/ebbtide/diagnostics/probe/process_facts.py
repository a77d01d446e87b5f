"""The workload's own processes on this node, from /proc: who they are, what they hold, and how they were started.

Not guaranteed: that the environment of a process is what its libraries saw (a program may change it later), and that
what is not seen is not used: managed memory and memory shared between processes leave no certain trace from outside.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ebbtide.diagnostics.host.machine_reader import Machine
from ebbtide.diagnostics.probe.fact import Fact, hindering
from ebbtide.snapshot import nccl
from ebbtide.snapshot.tiers import Means
from ebbtide.snapshot.tiers.formatting import gigabytes

_PARENT_FIELD = 4 - 3  # proc(5): ppid is field 4; fields from 3 on follow the command's closing bracket
_STARTED_FIELD = 22 - 3
_MANAGED = {"TF_FORCE_UNIFIED_MEMORY": "1", "TF_FORCE_GPU_ALLOW_GROWTH_MANAGED": "1"}
_MAY_BE_MANAGED = re.compile(r"/(libbitsandbytes_cuda[^/\s]*|librmm[^/\s]*)\s*$", re.M)
_BLOCKED = hindering(Means.DRIVER)


@dataclass(frozen=True, slots=True)
class Process:
    """One process.

    Attributes:
        started: in clock ticks since boot; with the pid it names the process.
        own_bytes: its anonymous and swapped memory.
        environ: as it was started; None: it belongs to somebody else, and cannot be looked into.
        devices: GPU device files that it has open.
        maybe_managed: libraries it maps that may use managed memory.
    """

    pid: int
    parent: int
    started: int
    name: str
    own_bytes: int
    environ: Mapping[str, str] | None
    devices: frozenset[str] = frozenset()
    maybe_managed: frozenset[str] = field(default=frozenset())


def read_tree(machine: Machine, root: int) -> tuple[Process, ...]:
    """The process and all that descend from it, parents first; empty if it is gone."""
    children: dict[int, list[int]] = {}
    for name in machine.names("/proc"):
        if name.isdigit() and (fields := _stat(machine, int(name))) is not None:
            children.setdefault(int(fields[_PARENT_FIELD]), []).append(int(name))
    found, left = [], [root]
    while left:
        pid = left.pop(0)
        if (process := _read(machine, pid)) is not None:
            found.append(process)
            left += children.get(pid, [])
    return tuple(found)


def _stat(machine: Machine, pid: int) -> list[str] | None:
    fields = (machine.text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return fields if len(fields) > _STARTED_FIELD else None


def _read(machine: Machine, pid: int) -> Process | None:
    fields = _stat(machine, pid)
    if fields is None:
        return None
    status = machine.text(f"/proc/{pid}/status") or ""
    kib = [int(found[1]) for key in ("RssAnon", "VmSwap") if (found := re.search(rf"^{key}:\s*(\d+) kB", status, re.M))]
    raw = machine.content(f"/proc/{pid}/environ")
    pairs = [part.partition("=") for part in (raw or b"").decode(errors="replace").split("\0") if part]
    opened = {_target(machine, f"/proc/{pid}/fd/{fd}") for fd in machine.names(f"/proc/{pid}/fd")}
    return Process(
        pid=pid,
        parent=int(fields[_PARENT_FIELD]),
        started=int(fields[_STARTED_FIELD]),
        name=machine.text(f"/proc/{pid}/comm") or "",
        own_bytes=sum(kib) * 1024,
        environ=None if raw is None else {name: value for name, _, value in pairs},
        devices=frozenset(one for one in opened if re.fullmatch(r"/dev/nvidia\d+", one)),
        maybe_managed=frozenset(_MAY_BE_MANAGED.findall(machine.text(f"/proc/{pid}/maps") or "")),
    )


def _target(machine: Machine, path: str) -> str:
    try:
        return os.readlink(machine.at(path))
    except OSError:
        return ""


def process_facts(
    trees: Sequence[Sequence[Process]], *, gpus: int, world: int, told: Mapping[str, str] | None = None
) -> tuple[Fact, ...]:
    """What the workload's processes allow.

    Args:
        trees: one for each rank on this node, as `read_tree` gives it.
        gpus: that the workload uses on this node; 0: there is nothing for a driver to take.
        world: ranks of the workload on all nodes together.
        told: variables that they set by themselves when they begin, unless they were started with them.
    """
    members = [process for tree in trees for process in tree]
    if not members:
        return ()
    pids = ", ".join(str(tree[0].pid) for tree in trees if tree)
    held = sum(process.own_bytes for process in members)
    what = f"{len(members)} processes (of {pids}) hold {gigabytes(held)} of private memory"
    found = [Fact("process.memory", what, "RssAnon and VmSwap of /proc/PID/status", held)]
    foreign = next((process for process in members if process.environ is None), None)
    if foreign is not None:
        where, remedy = f"/proc/{foreign.pid}/environ", "probe as the user that it runs as"
        what = f"process {foreign.pid} ({foreign.name}) belongs to another user and cannot be looked into"
        found.append(Fact("process.foreign", what, where, foreign.pid, hindering(Means.DRIVER, Means.CRIU), remedy))
    if gpus:
        found += [*_nvls(trees, world, told or {}), *_managed(members), *_shared(trees)]
    return tuple(found)


def _nvls(trees: Sequence[Sequence[Process]], world: int, told: Mapping[str, str]) -> list[Fact]:
    """Multicast memory of NCCL, which no driver can freeze, and which stays harmful after the group is destroyed."""
    seen = {tree[0].pid: {**told, **tree[0].environ} for tree in trees if tree and tree[0].environ is not None}
    if world < 2 or not seen:
        return []
    pid, environ = next(((pid, one) for pid, one in seen.items() if nccl.multicast(one)), (0, {}))
    if not pid:
        where = f"{nccl.NVLS} of its ranks" + (", or the session's default" if told else "")
        return [Fact("nccl.nvls", "NCCL's NVLS is off", where, nccl.OFF)]
    what, remedy = nccl.multicast(environ), f"set {nccl.NVLS}={nccl.OFF} in the job's environment"
    return [Fact("nccl.nvls", what, f"/proc/{pid}/environ", environ.get(nccl.NVLS, ""), _BLOCKED, remedy)]


def _managed(members: Sequence[Process]) -> list[Fact]:
    for process in members:
        for name, value in _MANAGED.items():
            if (process.environ or {}).get(name) == value:
                what = f"process {process.pid} uses managed memory ({name}={value}), which no driver can freeze"
                where = f"/proc/{process.pid}/environ"
                return [Fact("gpu.managed", what, where, name, _BLOCKED, f"run it without {name}")]
    for process in members:
        for library in sorted(process.maybe_managed):
            what = f"process {process.pid} has loaded {library}; paged optimizers and managed pools cannot be frozen"
            remedy = "use optimizers that are not paged, and pools without managed memory"
            return [Fact("gpu.managed", what, f"/proc/{process.pid}/maps", library, remedy=remedy)]
    return []


def _shared(trees: Sequence[Sequence[Process]]) -> list[Fact]:
    """Several processes of one rank on a GPU may share its memory by CUDA IPC."""
    for tree in trees:
        users = [process.pid for process in tree if process.devices]
        if len(users) > 1:
            pids = ", ".join(map(str, users))
            what = f"processes {pids} of one rank have a GPU open: memory shared between them (CUDA IPC) is not freed"
            remedy = "keep the GPU to the rank itself: workers of a data loader must not touch CUDA"
            where = f"/proc/{users[1]}/fd"
            return [Fact("gpu.ipc", what, where, len(users), _BLOCKED, remedy)]
    return []
