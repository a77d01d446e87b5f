"""Whether the machine has room for a part; asked before anything is begun."""

import os
import shutil
from pathlib import Path

# At most: the state, a third of it in gradients while a step runs, and one more copy: the host pool's, a stager's, or
# what was read from a file. The interpreter and torch come on top.
MEMORY_FACTOR, MEMORY_BYTES = 2.5, 1 << 30
# A checkpoint, and the one before while it is replaced; then the next contender's, and the file of fio. CRIU's image
# has the process besides.
DISK_FACTOR, DISK_BYTES = 2.2, 2 << 30


class NoRoom(Exception):
    """A part does not fit into this machine; says what it needs, what there is, and what would help."""


def must_fit(size_bytes: int, folder: Path, *, memory_bytes: int | None = None, disk_bytes: int | None = None) -> None:
    """Go on only if a state of ``size_bytes`` fits; what is free is asked of the system if it is not given.

    Raises:
        NoRoom: it does not.
    """
    wanted = {
        "memory": int(size_bytes * MEMORY_FACTOR) + MEMORY_BYTES,
        f"disk at {folder}": int(size_bytes * DISK_FACTOR) + DISK_BYTES,
    }
    free = (
        available_memory_bytes() if memory_bytes is None else memory_bytes,
        shutil.disk_usage(folder).free if disk_bytes is None else disk_bytes,
    )
    for (what, needed), there in zip(wanted.items(), free, strict=True):
        if needed > there:
            raise NoRoom(
                f"{size_bytes / 1e9:.1f} GB of state need {needed / 1e9:.1f} GB of {what}, {there / 1e9:.1f} are free: "
                "free some, or measure smaller parts only (--only)"
            )


def available_memory_bytes() -> int:
    """As the kernel estimates it, or what a control group leaves, if that is less."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return min(int(line.split()[1]) * 1024, _left_in_group())
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _left_in_group() -> int:
    group = Path("/sys/fs/cgroup")
    try:
        return int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    except (OSError, ValueError):  # there is none, or no limit ("max")
        return 1 << 62
