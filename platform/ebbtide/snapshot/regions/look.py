"""What everybody but the borrower may see of a region, and taking over what a dead borrower left."""

import fcntl
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash

from ebbtide.snapshot.errors import RegionBusy, RegionDamaged
from ebbtide.snapshot.regions import layout
from ebbtide.snapshot.regions.header import HEADER_BYTES, Header
from ebbtide.snapshot.regions.region import read_header
from ebbtide.snapshot.regions.states import RegionKey, RegionState


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


@dataclass(frozen=True, slots=True)
class ReadRegion:
    """A full region whose borrower is dead, in memory of its own. ``verified``: its hashes were recorded, and fit."""

    key: RegionKey
    note: bytes
    bytes: torch.Tensor
    verified: bool


def look(path: Path) -> RegionView:
    """What is there now.

    Raises:
        RegionDamaged: it is no region of ours.
        OSError: it is not there, or cannot be read.
    """
    fd = _open(path)
    try:
        header = read_header(fd, path)
        note = _note(fd, header)
        return RegionView(
            path, header.key, header.state, header.payload_bytes, note, not _locked(fd, fcntl.LOCK_SH), header.hashed
        )
    finally:
        os.close(fd)


def read_region(path: Path) -> ReadRegion:
    """Take a copy of what a dead borrower left; the region stays as it is.

    Raises:
        RegionBusy: its borrower lives, or somebody else takes it just now.
        RegionDamaged: it is not full, or its hashes do not fit.
        OSError: it is not there, or cannot be read.
    """
    fd = _open(path)
    try:
        if not _locked(fd, fcntl.LOCK_EX):
            raise RegionBusy(f"{path} is used by another process")
        header = read_header(fd, path)
        note = _note(fd, header)
        if note is None:
            raise RegionDamaged(f"{path}: it is {header.state.name}, and nothing in it counts")
        payload = torch.empty(header.payload_bytes, dtype=torch.uint8)
        view = memoryview(payload.numpy())  # type: ignore[arg-type] # it is one
        _read_into(fd, view, HEADER_BYTES, path)
        if header.hashed:
            _verify(fd, view, path)
        return ReadRegion(header.key, note, payload, header.hashed)
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(fd)
        raise RegionDamaged(f"{path}: not a file of this user, so no region of ours")
    return fd


def _locked(fd: int, kind: int) -> bool:
    """Whether the lock could be had; it goes with the descriptor."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _note(fd: int, header: Header) -> bytes | None:
    if header.state is not RegionState.FULL:
        return None
    note = os.pread(fd, header.note_bytes, layout.note_offset(header.payload_bytes))
    return note if xxhash.xxh3_64_intdigest(note) == header.note_hash else None


def _verify(fd: int, payload: memoryview, path: Path) -> None:
    size = layout.HASH_BYTES
    hashes = os.pread(fd, layout.chunks(len(payload)) * size, layout.hashes_offset(len(payload)))
    for index, start in enumerate(range(0, len(payload), layout.CHUNK_BYTES)):
        expected = int.from_bytes(hashes[index * size : (index + 1) * size], "little")
        if xxhash.xxh3_64_intdigest(payload[start : start + layout.CHUNK_BYTES]) != expected:
            raise RegionDamaged(f"{path}: bytes {start} to {start + layout.CHUNK_BYTES} are not what was put there")


def _read_into(fd: int, into: memoryview, at: int, path: Path) -> None:
    while into:
        done = os.preadv(fd, [into], at)
        if not done:
            raise RegionDamaged(f"{path}: it ends at byte {at}; it was cut off")
        into, at = into[done:], at + done
