"""How much of a file's range lies in the page cache, where reading is four to six times as fast as from a fast disk.

``cachestat`` (Linux 6.5) answers for a range in one call; before it, the range is mapped and ``mincore`` asked. Both
tell only those who may write the file: others get EPERM from the one and "all resident" from the other, so `mincore`
is asked only about files that are ours. The answer is a hint, and may be old when it arrives: it decides on speed only.

Source: mm/filemap.c (cachestat, can_do_cachestat), mm/mincore.c (can_do_mincore); mincore(2).
"""

import errno
import mmap
import os

import numpy as np

from ebbtide.storage.files import libc

# Reading a share s through the cache takes s/12 + (1-s)/0.8 seconds per GB (warm and cold buffered reads), directly
# 1/3.1: equal at s = 0.8 (docs/measured.md, "What the design rests on").
RESIDENT_SHARE = 0.8

_NO_ANSWER = frozenset({errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP, errno.EINVAL})


def resident_share(fd: int, offset: int, size_bytes: int) -> float | None:
    """The share (0 to 1) of a range's pages that are resident, or None where the kernel does not tell."""
    if size_bytes <= 0:
        return None
    start = offset - offset % mmap.PAGESIZE
    pages = -(-(offset + size_bytes - start) // mmap.PAGESIZE)
    try:
        return min(libc.cachestat(fd, start, pages * mmap.PAGESIZE) / pages, 1.0)
    except OSError as error:
        if error.errno not in _NO_ANSWER:
            raise
    return share_by_mincore(fd, start, pages) if _is_ours(fd) else None


def share_by_mincore(fd: int, start: int, pages: int) -> float | None:
    """The same by mapping the pages from ``start`` (a multiple of the page size) on; None where that fails."""
    try:
        address = libc.map_memory(pages * mmap.PAGESIZE, fd=fd, offset=start)
    except OSError:
        return None
    try:
        told = np.frombuffer(libc.mincore(address, pages, mmap.PAGESIZE), np.uint8)
        return int(np.count_nonzero(told & 1)) / pages
    except OSError:
        return None
    finally:
        libc.unmap_memory(address, pages * mmap.PAGESIZE)


def _is_ours(fd: int) -> bool:
    return os.geteuid() in (0, os.fstat(fd).st_uid)
