"""What everybody but the borrower may see of a region. Needs no torch: who lends a node's memory is a small process."""

import os
from dataclasses import dataclass
from pathlib import Path

from ebbtide.snapshot.regions.borrower_lock import is_borrowed
from ebbtide.snapshot.regions.region_file import open_region, read_header, read_note
from ebbtide.snapshot.regions.region_states import RegionKey, RegionState


@dataclass(frozen=True, slots=True)
class RegionView:
    """A region as it stood when it was looked at.

    Attributes:
        note: what its borrower said of it; None: it is not full, or the note is damaged.
        borrower_lives: somebody has it open, and may change it.
        hashed: hashes of its payload are recorded.
    """

    path: Path
    key: RegionKey
    state: RegionState
    size_bytes: int
    note: bytes | None
    borrower_lives: bool
    hashed: bool


def look(path: Path) -> RegionView:
    """What is there now; takes no lock, and is in nobody's way.

    Raises:
        RegionDamaged: it is no region of ours.
        OSError: it is not there, or cannot be read.
    """
    fd = open_region(path, os.O_RDONLY)
    try:
        # First whether the borrower lives: of one that dies in between it is then said that it lives, and nobody takes
        # for final what it still wrote.
        lives = is_borrowed(fd)
        header = read_header(fd, path)
        note = read_note(fd, header)
        return RegionView(path, header.key, header.state, header.payload_bytes, note, lives, header.hashed)
    finally:
        os.close(fd)
