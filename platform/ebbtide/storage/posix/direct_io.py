"""Whether a file can be read or written past the page cache, and with which alignment.

``statx`` knows since Linux 6.1, but not for every filesystem; then only trying tells, and a filesystem may refuse at
``open`` (EINVAL) or as late as at the first request. What is not known is taken to be 4096, the largest that any
filesystem at hand asks for. A multiple of the base page is asked for in any case: a page of which one part is written
through the cache and another past it would have two truths.

Source: open(2) O_DIRECT; statx(2) STATX_DIOALIGN.
"""

import errno
import mmap
from dataclasses import dataclass

from ebbtide.storage.transport.transport import ALIGNMENT_BYTES, CHUNK_BYTES

# EINVAL is what open(2) documents; FUSE and layered filesystems answer with the others.
REFUSALS = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})
LEAST_ALIGNMENT_BYTES = max(ALIGNMENT_BYTES, mmap.PAGESIZE)


@dataclass(frozen=True, slots=True)
class DirectIo:
    """What direct I/O needs on one file.

    Attributes:
        alignment: of memory, offset and length, in bytes.
        why_not: why it cannot be used, in words; empty if it can, or nobody knows before trying.
    """

    alignment: int = LEAST_ALIGNMENT_BYTES
    why_not: str = ""


def direct_io(reported: tuple[int, int] | None, chunk_bytes: int = CHUNK_BYTES) -> DirectIo:
    """What to make of what the kernel reported for memory and offsets (None: nothing), for chunks of this size."""
    if reported is None:
        return DirectIo()
    if 0 in reported:
        return DirectIo(why_not="the kernel says that this file cannot be read or written with O_DIRECT")
    alignment = max(LEAST_ALIGNMENT_BYTES, *reported)
    if alignment & (alignment - 1) or chunk_bytes % alignment:
        return DirectIo(why_not=f"O_DIRECT asks for an alignment of {alignment} bytes here, which chunks do not have")
    return DirectIo(alignment)
