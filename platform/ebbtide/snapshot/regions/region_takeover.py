"""Taking over what a dead borrower left."""

import contextlib
import mmap
import os
import weakref
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash

from ebbtide.snapshot.errors import RegionBusy, RegionDamaged
from ebbtide.snapshot.regions import layout
from ebbtide.snapshot.regions.borrower_lock import share
from ebbtide.snapshot.regions.header import HEADER_BYTES
from ebbtide.snapshot.regions.mapped_tensor import as_tensor
from ebbtide.snapshot.regions.region_file import open_region, read_header, read_note
from ebbtide.snapshot.regions.region_states import RegionKey


@dataclass(frozen=True, slots=True)
class ReadRegion:
    """A full region whose borrower is dead.

    Attributes:
        bytes: its payload, as it lies there and not a copy: a node that is full of parked state has no room for one.
            What is written into it is seen by nobody else. While it is in use nobody can borrow the region.
        verified: its hashes were recorded, and fit.
    """

    key: RegionKey
    note: bytes
    bytes: torch.Tensor
    verified: bool


def read_region(path: Path) -> ReadRegion:
    """What a dead borrower left; the region stays as it is.

    Raises:
        RegionBusy: its borrower lives.
        RegionDamaged: it is not full, or its hashes do not fit.
        OSError: it is not there, or cannot be read.
    """
    with contextlib.ExitStack() as undo:
        fd = open_region(path, os.O_RDONLY)
        undo.callback(os.close, fd)  # guard: a read that fails lets go of its region
        if not share(fd):  # guard: a region whose borrower lives is not read
            raise RegionBusy(f"{path} is used by another process; what is in it may change")
        header = read_header(fd, path)
        note = read_note(fd, header)
        if note is None:  # guard: a region that is not full is not read
            raise RegionDamaged(f"{path}: it is {header.state.name}, and nothing in it counts")
        mapped = mmap.mmap(
            fd,
            HEADER_BYTES + header.payload_bytes,
            access=mmap.ACCESS_COPY,  # guard: what a reader writes into a region is seen by no other
        )
        payload = as_tensor(mapped)[HEADER_BYTES:]
        if header.hashed:  # guard: a payload is compared with its hashes where these were recorded
            _verify(fd, memoryview(payload.numpy()), path)  # type: ignore[arg-type] # it is one
        # guard: a reader lets go of a region with its last tensor
        weakref.finalize(mapped, os.close, fd)  # the lock goes with the last tensor that looks into the memory
        undo.pop_all()
        return ReadRegion(header.key, note, payload, header.hashed)


def _verify(fd: int, payload: memoryview, path: Path) -> None:
    size = layout.HASH_BYTES
    hashes = os.pread(fd, layout.chunks(len(payload)) * size, layout.hashes_offset(len(payload)))
    for index, start in enumerate(range(0, len(payload), layout.CHUNK_BYTES)):
        expected = int.from_bytes(hashes[index * size : (index + 1) * size], "little")
        # guard: every chunk of a payload is compared
        if xxhash.xxh3_64_intdigest(payload[start : start + layout.CHUNK_BYTES]) != expected:
            raise RegionDamaged(f"{path}: bytes {start} to {start + layout.CHUNK_BYTES} are not what was put there")
