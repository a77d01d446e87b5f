"""Giving a region's memory back: for the one who made it."""

import os
from pathlib import Path

from ebbtide.snapshot.regions.borrower_lock import share
from ebbtide.snapshot.regions.region_file import open_region, read_header
from ebbtide.snapshot.regions.region_states import RegionState


def remove_region(path: Path, *, though_full: bool) -> bool:
    """Remove it, unless somebody has borrowed it; whether it is gone now.

    Nobody can borrow it between the look and the removal, and who was about to is told (``Region.open``). Whoever only
    reads it keeps what he has.

    Args:
        path: of the region.
        though_full: also if what is in it counts.

    Raises:
        RegionDamaged: it is no region of ours.
        OSError: it cannot be opened or removed.
    """
    try:
        fd = open_region(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        if not share(fd) or (not though_full and read_header(fd, path).state is RegionState.FULL):
            return False
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(fd)
