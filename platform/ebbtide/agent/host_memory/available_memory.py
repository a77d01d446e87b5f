"""How much memory this node can still give: the machine's, or that of the container where it has less."""

from pathlib import Path

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_KIB = 1024


def available_bytes(*, proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """What could be taken without anybody being killed for it; None: the system does not tell.

    Not guaranteed: that it is still there when it is taken.
    """
    known = [left for left in (_of_machine(proc), *_of_groups(proc, cgroups)) if left is not None]
    return min(known, default=None)


def _of_machine(proc: Path) -> int | None:
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):  # guard: what the machine has left counts
            return int(line.split()[1]) * _KIB
    return None


def _of_groups(proc: Path, cgroups: Path) -> list[int | None]:
    """Of this process's control group (version 2) and those above it: memory on a tmpfs counts for whoever takes it."""
    own = next((line[3:] for line in _lines(proc / "self/cgroup") if line.startswith("0::")), None)
    if own is None:  # guard: a container's limit counts
        return []
    group = cgroups / own.lstrip("/")
    # guard: only limits of the container's own groups count
    return [_of_group(one) for one in (group, *group.parents) if one.is_relative_to(cgroups)]


def _of_group(group: Path) -> int | None:
    limit, used = _lines(group / "memory.max"), _lines(group / "memory.current")
    if (
        not limit
        or not used
        # guard: a group without a limit limits nothing
        or not limit[0].isdigit()  # "max": there is none
    ):
        return None
    # Cached files are given up before anybody is killed.
    cached = next(
        # guard: cached files are no use of memory
        (int(line.split()[1]) for line in _lines(group / "memory.stat") if line.startswith("inactive_file ")),
        0,
    )
    return max(0, int(limit[0]) - int(used[0]) + cached)  # guard: no less than nothing is left


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # guard: what cannot be read is not known
        return []
