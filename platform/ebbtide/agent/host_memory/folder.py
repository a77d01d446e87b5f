"""Where a node keeps its regions."""

import os
from pathlib import Path

TMPFS = Path("/dev/shm")  # of Linux, and half of the machine's memory by default


def regions_folder(pool: str, machine: str, *, tmpfs: Path = TMPFS) -> Path:
    """The folder of one machine's regions. ``machine``: see ``identity.machine_name``; it outlives Ray's node ids."""
    return tmpfs / f"ebbtide-{os.getuid()}" / pool / machine.replace("/", "_")
