"""Which of several ways a place took on this machine: one line in the log of its process, each once.

For places that depend on the GPU, its driver and the machine around it, so that the log of a first run says what was
really done there: ``ebbtide mode: page-locking = registered 2147483648 bytes``. Read by `benchmarks.gpu.line`.
"""

import sys
from enum import StrEnum

LIMIT = 300  # characters of one mode


class Place(StrEnum):
    """Where a way is taken."""

    CACHES = "caches of compiled code"
    FLAT_FORM = "flat form of weights"
    FREEZE = "freeze of a training rank"
    LOAD = "load of weights"
    MIG = "mig"
    NVML = "nvml"
    OTHERS = "others on a GPU"
    PAGE_LOCKING = "page-locking"
    SLEEP = "sleep of a replica"
    STORAGE = "storage to device"
    VISIBLE = "visible devices"


_told: set[tuple[Place, str]] = set()


def took(place: Place, mode: str) -> None:
    """Tell it, unless this process has told the same before.

    To stderr, and by no logger: what is no warning is hidden in most processes.
    """
    mode = " ".join(mode.split())[:LIMIT]
    if (place, mode) not in _told:
        _told.add((place, mode))
        print(f"ebbtide mode: {place} = {mode}", file=sys.stderr, flush=True)
