"""The lock on a region's file that says that its borrower lives. The kernel drops it however that process ends.

It is a lock of the open file (F_OFD_SETLK), and neither of the two better known kinds:

- *flock* can be asked about only by taking it. A look would then be in the way of a borrower that opens, and of another
  look.
- a *POSIX lock of the process* is lost when the process closes any other descriptor of the same file.

What it shares with flock: a forked child has it too, and keeps it beyond its parent's death. A slot's lock wants that
(the child keeps the GPU's memory as well), a region's must not: data loaders are forked, may outlive a killed worker by
seconds, and would make its parked state look as if somebody were still at it. So the borrower has the lock on a
descriptor of its own, which its children close (``Region``); a started program never gets it (close-on-exec).
"""

import errno
import fcntl
import os
import struct

_WHOLE_FILE = struct.Struct("@hhqqi4x")  # struct flock with 64-bit offsets: type, whence, start, length, pid


def borrow(fd: int) -> bool:
    """Take it, for as long as the descriptor (or a copy of it) is open; False: a borrower or a reader is there.

    ``fd`` is open for writing.
    """
    return _take(fd, fcntl.F_WRLCK)


def share(fd: int) -> bool:
    """Keep borrowers away while somebody reads; False: one is there. Readers do not mind each other."""
    return _take(fd, fcntl.F_RDLCK)


def is_borrowed(fd: int) -> bool:
    """Whether a borrower is there (readers are none); takes nothing. ``fd``: of an open of its own."""
    asked = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _WHOLE_FILE.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
    # guard: a region is borrowed while its borrower has the lock
    return bool(_WHOLE_FILE.unpack(asked)[0] != fcntl.F_UNLCK)


def _take(fd: int, kind: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WHOLE_FILE.pack(kind, os.SEEK_SET, 0, 0, 0))
    except OSError as error:
        # guard: a lock that another process has is no error, and no lock
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise  # guard: what is wrong with a region's lock is told
    return True
