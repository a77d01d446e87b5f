"""The borrower's side of a region: fill it, seal it, use it again.

Its memory is a shared mapping: whatever this process has stored is there for others though it is killed in the next
instant. Nothing need be written back; what matters is the order, which for the stores and calls of one process is that
of its program:

- ``begin`` has the header say FILLING before the first byte of the payload changes;
- ``seal`` writes the note, and only then the header that says FULL. By then the payload must be there, which is the
  caller's to see to: a copy that a GPU still makes is ordered by nothing here.

So whoever reads FULL reads all of it. A header that is torn is none, and the one before it counts (``header``): FILLING
when a seal was cut short, the old FULL over an untouched payload when it was a ``begin``.

A GPU may still write for a moment after its process has died. What it writes to was FILLING then; whoever lends gives
out that memory to nobody, but makes a new file.

Not guaranteed: anything once the node is without power, or its kernel stops.
"""

import contextlib
import mmap
import os
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Self

import torch
import xxhash

from ebbtide.snapshot.errors import RegionBusy, RegionMisused
from ebbtide.snapshot.regions import layout, pages
from ebbtide.snapshot.regions.borrower_lock import borrow
from ebbtide.snapshot.regions.header import HEADER_BYTES, Header, encode, slot_offset
from ebbtide.snapshot.regions.mapped_tensor import as_tensor
from ebbtide.snapshot.regions.region_file import open_region, read_header, write
from ebbtide.snapshot.regions.region_states import RegionKey, RegionState, check

_borrowed: "weakref.WeakSet[Region]" = weakref.WeakSet()


class Region:
    """One rank's share of the node's host memory. Make one with `open`; not for several threads, but `hash_payload`.

    In a process that is forked from the borrower it counts as closed; its tensor there is the same memory still, so
    that the memory is given back only when that process has ended too.
    """

    def __init__(self, path: Path, fd: int, lock_fd: int, header: Header) -> None:
        """Takes over both descriptors; the second has the lock."""
        self.path = path
        self._fd, self._lock_fd = fd, lock_fd
        self._header = header
        self._books = threading.Lock()
        mapped = mmap.mmap(fd, HEADER_BYTES + header.payload_bytes, flags=mmap.MAP_SHARED)
        pages.attach(mapped)
        self.bytes = as_tensor(mapped)[HEADER_BYTES:]
        _borrowed.add(self)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Borrow it; until `close`, or the end of this process, nobody else can.

        Raises:
            RegionBusy: somebody else has it, or it was taken back just now.
            RegionDamaged: it is no region, or was cut off.
            OSError: it is not there, or cannot be opened.
        """
        with contextlib.ExitStack() as undo:
            lock_fd = open_region(path, os.O_RDWR)
            undo.callback(os.close, lock_fd)
            if not borrow(lock_fd):
                raise RegionBusy(f"{path} is used by another process")
            if not _has_name(lock_fd, path):
                raise RegionBusy(f"{path} was taken back while it was opened; ask for memory again")
            # Opened once more, for a mapping keeps the descriptor that it was made from, and forked children keep the
            # mapping: with it they would keep the lock.
            fd = os.open(f"/proc/self/fd/{lock_fd}", os.O_RDWR | os.O_CLOEXEC)
            undo.callback(os.close, fd)
            made = cls(path, fd, lock_fd, read_header(fd, path))
            undo.pop_all()
            return made

    @property
    def key(self) -> RegionKey:
        """Whose it is."""
        return self._header.key

    @property
    def state(self) -> RegionState:
        """What its payload is worth."""
        return self._header.state

    @property
    def size_bytes(self) -> int:
        """How much fits."""
        return self._header.payload_bytes

    def begin(self) -> None:
        """What is in it counts no more; before the first byte is written."""
        with self._books:
            self._become(RegionState.FILLING)

    def seal(self, note: bytes) -> None:
        """All is written, copies from a device have been waited for, and ``note`` says what it is: now it counts.

        Raises:
            RegionMisused: it was not begun.
            OSError: there is no memory for the note. It does not count then.
        """
        at = layout.note_offset(self.size_bytes)
        with self._books:
            self._must_be_ours()
            check(self.state, RegionState.FULL)
            os.posix_fallocate(self._fd, at, max(1, len(note)))
            write(self._fd, note, at)
            self._become(RegionState.FULL, note_bytes=len(note), note_hash=xxhash.xxh3_64_intdigest(note))

    def hash_payload(self) -> None:
        """Record the hashes of the payload, so that whoever takes it over can verify it; may run in a thread.

        Nothing is recorded if the payload is begun anew meanwhile, or if it does not count.
        """
        with self._books:
            number, view = self._header.number, memoryview(self.bytes.numpy())  # type: ignore[arg-type] # it is one
        hashes = b"".join(
            xxhash.xxh3_64_intdigest(view[start : start + layout.CHUNK_BYTES]).to_bytes(layout.HASH_BYTES, "little")
            for start in range(0, len(view), layout.CHUNK_BYTES)
        )
        with self._books:
            if self._fd < 0 or self._header.number != number or self.state is not RegionState.FULL:
                return
            write(self._fd, hashes, layout.hashes_offset(self.size_bytes))
            self._put(replace(self._header, hashed=True))

    def clear(self) -> None:
        """What is in it counts no more; it can be used again."""
        with self._books:
            self._become(RegionState.EMPTY)

    def close(self) -> None:
        """Let go of it as it stands; idempotent. Tensors that still look into it keep its memory."""
        with self._books:
            self._let_go()
            self.bytes = torch.empty(0, dtype=torch.uint8)
        _borrowed.discard(self)

    def _become(self, state: RegionState, *, note_bytes: int = 0, note_hash: int = 0) -> None:
        self._must_be_ours()
        check(self.state, state)
        self._put(replace(self._header, state=state, note_bytes=note_bytes, note_hash=note_hash, hashed=False))

    def _put(self, header: Header) -> None:
        header = replace(header, number=self._header.number + 1)
        write(self._fd, encode(header), slot_offset(header.number))
        self._header = header

    def _must_be_ours(self) -> None:
        if self._fd < 0:
            raise RegionMisused(f"{self.path} was closed, or this process was forked from the one that borrowed it")

    def _let_go(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            os.close(self._lock_fd)
            self._fd = self._lock_fd = -1

    @staticmethod
    def _let_go_of_all() -> None:
        for region in list(_borrowed):
            region._books = threading.Lock()  # a thread that had it is not here to release it
            region._let_go()


def _has_name(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


os.register_at_fork(after_in_child=Region._let_go_of_all)
