"""Where a node keeps its regions, and that nobody else has a say there."""

import contextlib
import os
import stat
from pathlib import Path

from ebbtide.snapshot.errors import HostMemoryShort

TMPFS = Path("/dev/shm")  # of Linux, and half of the machine's memory by default


def regions_folder(pool: str, machine: str, *, tmpfs: Path = TMPFS) -> Path:
    """The folder of one machine's regions. ``machine``: see ``slot_identity.machine_name``.

    It outlives Ray's node ids.
    """
    return tmpfs / f"ebbtide-{os.getuid()}" / pool / machine.replace("/", "_")


def make_private(folder: Path) -> None:
    """Make the folder and the two above it, from the top: everybody may write to a tmpfs, and put a link there first.

    Raises:
        HostMemoryShort: one of them is a link, is not ours, or others may write to it.
        OSError: one cannot be made.
    """
    for one in (folder.parent.parent, folder.parent, folder):
        with contextlib.suppress(FileExistsError):
            os.mkdir(one, 0o700)
        found = os.lstat(one)
        if (
            not stat.S_ISDIR(found.st_mode)  # guard: a link in place of a folder is refused
            or found.st_uid != os.geteuid()  # guard: a folder of another user is refused
        ):
            raise HostMemoryShort(
                f"{one} is not this user's own folder, and somebody else could read what is parked there: remove it"
            )
        if found.st_mode & 0o022:  # guard: a folder that others may write to is refused
            raise HostMemoryShort(f"others may write to {one}, where parked state would lie: `chmod 700` it")
