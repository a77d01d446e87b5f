"""The borrower's side of a region: fill it, seal it, use it again.

Its memory is a shared mapping, so whatever was stored is there for others the moment this process is killed: no
writing back is needed, only the right order. A header is written after all that it speaks of; the kernel sees the
stores of one process in the order of the program.

A lock on the file (flock) says that the borrower lives. It ends with the process however that ends, and is not passed
on to processes that it forks (data loaders outlive a killed parent; they have no business with its memory). It is on a
descriptor of its own: a mapping keeps the file open that it was made from, and a forked child keeps the mapping.

Not guaranteed: anything after the node's power is gone.
"""

import contextlib
import fcntl
import mmap
import os
import threading
import time
import warnings
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Self

import torch
import xxhash

from ebbtide.snapshot.errors import RegionBusy, RegionDamaged
from ebbtide.snapshot.regions import layout
from ebbtide.snapshot.regions.header import HEADER_BYTES, Header, encode, newest, slot_offset
from ebbtide.snapshot.regions.states import RegionKey, RegionState, check

_LOOKS_S = 0.5  # a look takes 0.1 ms; a machine may be busy

_open: "weakref.WeakSet[Region]" = weakref.WeakSet()


class Region:
    """One rank's share of the node's host memory. Make one with `open`; not for several threads, but `hash_payload`."""

    def __init__(self, path: Path, fd: int, lock_fd: int, header: Header) -> None:
        """Takes over both descriptors; the second has the lock."""
        self.path = path
        self._fd, self._lock_fd = fd, lock_fd
        self._header = header
        self._books = threading.Lock()
        self._map: mmap.mmap | None = mmap.mmap(fd, HEADER_BYTES + header.payload_bytes, flags=mmap.MAP_SHARED)
        with warnings.catch_warnings():  # "buffer is not writable" cannot apply: the map is writable
            warnings.simplefilter("ignore")
            whole = torch.frombuffer(self._map, dtype=torch.uint8)
        self.bytes = whole[HEADER_BYTES:]
        _populate(self._map)
        _open.add(self)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Borrow it; until `close`, or the end of this process, nobody else can.

        Raises:
            RegionBusy: somebody else has it.
            RegionDamaged: it is no region, or was cut off.
            OSError: it is not there, or not ours.
        """
        with contextlib.ExitStack() as undo:
            lock_fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            undo.callback(os.close, lock_fd)
            _lock(lock_fd, path)
            fd = os.open(
                f"/proc/self/fd/{lock_fd}", os.O_RDWR | os.O_CLOEXEC
            )  # the same file, whatever its name is now
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
        self._become(RegionState.FILLING)

    def seal(self, note: bytes) -> None:
        """All is written, and ``note`` says what it is: from now on it counts.

        Raises:
            RegionMisused: it was not begun.
            OSError: there is no room for the note. It does not count then.
        """
        at = layout.note_offset(self.size_bytes)
        os.posix_fallocate(self._fd, at, max(1, len(note)))
        _write(self._fd, note, at)
        self._become(RegionState.FULL, note_bytes=len(note), note_hash=xxhash.xxh3_64_intdigest(note))

    def hash_payload(self) -> None:
        """Record the hashes of the payload, so that whoever takes it over can verify it; may run in a thread.

        Nothing is recorded if the payload is begun anew meanwhile.
        """
        with self._books:
            number, view = self._header.number, memoryview(self.bytes.numpy())  # type: ignore[arg-type] # it is one
        hashes = b"".join(
            xxhash.xxh3_64_intdigest(view[start : start + layout.CHUNK_BYTES]).to_bytes(layout.HASH_BYTES, "little")
            for start in range(0, len(view), layout.CHUNK_BYTES)
        )
        with self._books:
            if self._fd < 0 or self._header.number != number or self._header.state is not RegionState.FULL:
                return
            _write(self._fd, hashes, layout.hashes_offset(self.size_bytes))
            self._put(replace(self._header, hashed=True))

    def clear(self) -> None:
        """What is in it counts no more; it can be used again."""
        self._become(RegionState.EMPTY)

    def close(self) -> None:
        """Let go of it as it stands; idempotent. Tensors that still look into it keep its pages alive."""
        with self._books:
            if self._fd < 0:
                return
            self._close_files()
            self.bytes = torch.empty(0, dtype=torch.uint8)
            self._map = None  # only let go: torch.frombuffer keeps the object but not the buffer
        _open.discard(self)

    def _become(self, state: RegionState, *, note_bytes: int = 0, note_hash: int = 0) -> None:
        with self._books:
            check(self._header.state, state)
            self._put(replace(self._header, state=state, note_bytes=note_bytes, note_hash=note_hash, hashed=False))

    def _put(self, header: Header) -> None:
        header = replace(header, number=self._header.number + 1)
        _write(self._fd, encode(header), slot_offset(header.number))
        self._header = header

    def forget_in_child(self) -> None:
        """In a process that was forked from the borrower: the lock is not its own."""
        if self._fd >= 0:
            self._close_files()

    def _close_files(self) -> None:
        os.close(self._fd)
        os.close(self._lock_fd)
        self._fd = self._lock_fd = -1


def read_header(fd: int, path: Path) -> Header:
    """The header that counts. Raises RegionDamaged."""
    header = newest(os.pread(fd, HEADER_BYTES, 0), str(path))
    size = os.fstat(fd).st_size
    if size < layout.least_bytes(header.payload_bytes) + (header.note_bytes if header.state is RegionState.FULL else 0):
        raise RegionDamaged(f"{path}: it has {size} bytes, fewer than its header says; it was cut off")
    return header


def _lock(fd: int, path: Path) -> None:
    """Whoever looks at it has the lock for a moment; a borrower has it for good."""
    until_s = time.monotonic() + _LOOKS_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > until_s:
                raise RegionBusy(f"{path} is used by another process") from error
            time.sleep(0.005)


def _populate(mapped: mmap.mmap) -> None:
    """The pages are there; map them now, since somebody may wait for a slot when they are first touched."""
    populate_write = 23  # MADV_POPULATE_WRITE, Linux 5.14; Python 3.11 has no name for it
    try:
        mapped.madvise(populate_write)
    except OSError:
        for at in range(0, len(mapped), mmap.PAGESIZE):
            mapped[at]  # read only: the page is there already


def _write(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done


def _forget_all() -> None:
    for region in list(_open):
        region.forget_in_child()


os.register_at_fork(after_in_child=_forget_all)
