"""A region's file without its memory: opened with care, its header and note read, its parts written."""

import os
import stat
from pathlib import Path

import xxhash

from ebbtide.snapshot.errors import RegionDamaged
from ebbtide.snapshot.regions import layout
from ebbtide.snapshot.regions.header import HEADER_BYTES, Header, newest
from ebbtide.snapshot.regions.region_states import RegionState


def open_region(path: Path, flags: int) -> int:
    """A descriptor of it, close-on-exec. No link is followed, and a pipe of that name holds up nobody.

    Raises:
        RegionDamaged: it is no file of this user.
        OSError: it is not there, or cannot be opened.
    """
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    found = os.fstat(fd)
    if (
        not stat.S_ISREG(found.st_mode)  # guard: only a file is a region
        or found.st_uid != os.geteuid()  # guard: another user's file is no region of ours
    ):
        os.close(fd)
        raise RegionDamaged(f"{path}: not a file of this user, so no region of ours")
    return fd


def read_header(fd: int, path: Path) -> Header:
    """The header that counts.

    Raises:
        RegionDamaged: there is none, or the file is shorter than it says.
    """
    header = newest(os.pread(fd, HEADER_BYTES, 0), str(path))
    size = os.fstat(fd).st_size
    if size < layout.least_bytes(header.payload_bytes) + (  # guard: a region that was cut off is refused
        # guard: a region whose note was cut off is refused
        header.note_bytes if header.state is RegionState.FULL else 0
    ):
        raise RegionDamaged(f"{path}: it has {size} bytes, fewer than its header says; it was cut off")
    return header


def read_note(fd: int, header: Header) -> bytes | None:
    """The note of a full region; None: it is not full, or the note is not what was put there."""
    if header.state is not RegionState.FULL:
        return None
    note = os.pread(fd, header.note_bytes, layout.note_offset(header.payload_bytes))
    return note if xxhash.xxh3_64_intdigest(note) == header.note_hash else None  # guard: a damaged note is none


def write(fd: int, data: bytes, at: int) -> None:
    """All of it."""
    view = memoryview(data)
    while view:  # guard: a write that takes a part goes on
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done
