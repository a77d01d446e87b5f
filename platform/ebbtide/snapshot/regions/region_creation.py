"""Making a region: for the one on a node who keeps count of its host memory."""

import contextlib
import errno
import os
from pathlib import Path

from ebbtide.snapshot.errors import HostMemoryShort
from ebbtide.snapshot.regions import layout, pages
from ebbtide.snapshot.regions.header import Header, encode, slot_offset
from ebbtide.snapshot.regions.region_states import RegionKey, RegionState

SUFFIX = ".region"
MAKING = ".making"  # while its memory is being taken
_NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT)


def region_path(folder: Path, key: RegionKey) -> Path:
    """The file of a key. Raises ValueError if the job's name cannot be part of one; config lets none such in."""
    if (
        os.sep in key.job  # guard: a job's name leads to no other folder
        or key.job.startswith(".")  # guard: a job's name hides no file
    ):
        raise ValueError(f"{key.job!r} cannot be part of a file's name")
    return folder / f"{key.job}.{key.lease_epoch}.{key.rank}{SUFFIX}"


def create_region(folder: Path, key: RegionKey, size_bytes: int) -> Path:
    """A new, empty region with all its memory there; one that had this key is replaced. Some 0.3 s per GB.

    The memory is taken now, so that no later write can fail for want of it: on a tmpfs that would be a SIGBUS in the
    midst of a park.

    Raises:
        HostMemoryShort: the tmpfs or the machine has not that much. Nothing is left behind.
        OSError: the folder cannot be written.
    """
    payload = layout.round_up(size_bytes)
    path = region_path(folder, key)
    making = path.with_suffix(MAKING)
    with contextlib.suppress(FileNotFoundError):
        # guard: what a killed maker left is in the way of no other
        os.unlink(making)  # of somebody who was killed here
    fd = os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        pages.take(fd, layout.least_bytes(payload))  # guard: memory is taken before a region has its name
        os.pwrite(fd, encode(Header(0, key, RegionState.EMPTY, payload)), slot_offset(0))
        os.rename(making, path)
    except OSError as error:
        os.unlink(making)  # guard: a region that cannot be made leaves nothing behind
        if error.errno in _NO_ROOM:  # guard: want of room is told as such, with a remedy
            there = os.fstatvfs(fd)
            raise HostMemoryShort(
                f"{folder} has no room for {payload} bytes ({error.strerror}): {there.f_bavail * there.f_frsize} are "
                "free there; lower pool.host_memory_per_node, or make its tmpfs larger (mount -o remount,size=...)"
            ) from error
        raise  # guard: an error that is no want of room is told as it is
    finally:
        os.close(fd)
    return path
