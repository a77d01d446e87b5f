"""Reading a chunk once more, past the page cache, after its hash was wrong.

A wrong hash may come from a bad page in this node's cache or from a transfer that went wrong, while the file is right.
A second, direct read tells the two cases apart: the same wrong bytes again mean that the file is damaged.
"""

import errno
import mmap
import os
from pathlib import Path

from ebbtide.storage.transport.chunk_ranges import down, up
from ebbtide.storage.transport.transport import ALIGNMENT_BYTES, Range


def read_again(path: Path, part: Range) -> bytes:
    """The bytes of ``part`` as the storage has them now; fewer if the file ends before.

    Where the filesystem refuses O_DIRECT its cached pages are dropped first, which it may not heed.

    Raises:
        OSError: they cannot be read.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return _read(os.open(path, flags | os.O_DIRECT), part, ALIGNMENT_BYTES)
    except OSError:
        fd = os.open(path, flags)
        # guard: where O_DIRECT is refused the cached pages are dropped first
        os.posix_fadvise(fd, part.offset, part.length, os.POSIX_FADV_DONTNEED)
        return _read(fd, part, 1)


def _read(fd: int, part: Range, alignment: int) -> bytes:
    """What comes short goes on from the aligned byte before it; only a request that brings nothing new is the end."""
    start, end = down(part.offset, ALIGNMENT_BYTES), up(part.end, ALIGNMENT_BYTES)
    try:
        with mmap.mmap(-1, end - start) as memory:  # aligned to a page, as O_DIRECT wants it
            done = 0
            with memoryview(memory) as view:
                while done < end - start:  # guard: a second look that comes short goes on
                    at = down(done, alignment)
                    count = os.preadv(fd, [view[at:]], start + at)
                    if at + count <= done:
                        # guard: a second look that gets nowhere within the file is an error
                        if start + done < os.fstat(fd).st_size:
                            raise OSError(errno.EIO, "nothing was read, and no reason given")
                        break
                    done = at + count
            return memory[part.offset - start : min(done, part.end - start)]
    finally:
        os.close(fd)
