"""Taking memory before it is needed: a page that is first touched in a park costs more than the copy into it.

In pieces, and through a call that lets other threads of this process run: ``mmap.madvise`` keeps the interpreter to
itself, and the kernel keeps the process's other mappings waiting for as long as one call takes.
"""

import ctypes
import mmap
import os

PIECE_BYTES = 64 << 20  # some 15 ms of zeroing at 4 GB/s; an agent looks at its locks each 20 ms
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14; Python 3.11 has no name for it
_libc = ctypes.CDLL(None, use_errno=True)


def take(fd: int, size_bytes: int) -> None:
    """Make the file so long, and have all its memory there and zeroed, in large pages where the kernel has them.

    Raises:
        OSError: there is not so much (ENOSPC, ENOMEM). Some of it may have been taken.
    """
    os.ftruncate(fd, size_bytes)
    with mmap.mmap(fd, size_bytes, flags=mmap.MAP_SHARED) as mapped:
        _ask_for_large(mapped)
        for at in range(0, size_bytes, PIECE_BYTES):
            size = min(PIECE_BYTES, size_bytes - at)
            if not _populate(mapped, at, size):  # guard: memory that a kernel does not populate is taken in another way
                # Either there is no more, and this says what; or the kernel is older, and this at least takes it.
                os.posix_fallocate(fd, at, size)


def attach(mapped: mmap.mmap) -> None:
    """Map what is there already, so that no later access has to."""
    _ask_for_large(mapped)
    for at in range(0, len(mapped), PIECE_BYTES):
        # guard: pages are mapped before they are needed
        if not _populate(mapped, at, min(PIECE_BYTES, len(mapped) - at)):
            for page in range(at, min(at + PIECE_BYTES, len(mapped)), mmap.PAGESIZE):
                mapped[page]  # an older kernel; read only, the memory is there


def _ask_for_large(mapped: mmap.mmap) -> None:
    """Of use where shmem_enabled is "advise"; refused or ignored elsewhere, and then nothing is lost."""
    _advise(mapped, 0, len(mapped), mmap.MADV_HUGEPAGE)


def _populate(mapped: mmap.mmap, at: int, size: int) -> bool:
    return _advise(mapped, at, size, _POPULATE_WRITE)


def _advise(mapped: mmap.mmap, at: int, size: int, advice: int) -> bool:
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    return int(_libc.madvise(ctypes.c_void_p(start + at), ctypes.c_size_t(size), advice)) == 0
