"""Where an image may be written or taken from.

A helper with privileges writes and reads where others tell it to. So nobody else may be able to swap a folder on the
way: every folder above an image belongs to root or the helper's user, and others cannot write in it (or it is sticky).
"""

import os
import stat
from pathlib import Path

from ebbtide.helper.errors import Refused

_WRITERS = stat.S_IWGRP | stat.S_IWOTH
# Beside the memory: CRIU's own tables, the manifest and rounding; 4 MB were seen for a process of 12 MB.
OVERHEAD_BYTES = 32 << 20


def check_way(image_dir: Path) -> None:
    """Refuse a path that others could turn elsewhere.

    Raises:
        Refused: a folder above it is missing, a link, or others can write there.
    """
    parent = image_dir.parent
    if not image_dir.is_absolute() or ".." in image_dir.parts or image_dir == parent:
        raise Refused(f"{image_dir} is not an absolute path of a folder", "give the whole path, without ..")
    if not parent.is_dir():
        raise Refused(f"there is no folder {parent}", "make it first, on a filesystem with room for the image")
    if parent.resolve() != parent:
        raise Refused(f"{parent} leads through a link", f"name it as it is: {parent.resolve()}")
    for folder in (parent, *parent.parents):
        found = folder.stat()
        is_open = found.st_mode & _WRITERS and not found.st_mode & stat.S_ISVTX
        if found.st_uid not in (0, os.geteuid()) or is_open or (folder == parent and found.st_mode & _WRITERS):
            raise Refused(
                f"others than user {os.geteuid()} can change what is in {folder}",
                "use a folder of that user in which no others can write",
            )


def check_room(image_dir: Path, own_bytes: int) -> None:
    """Refuse to begin an image that will not fit.

    Raises:
        Refused: there is too little room.
    """
    free = os.statvfs(image_dir.parent)
    free_bytes, needed_bytes = free.f_bavail * free.f_frsize, own_bytes + OVERHEAD_BYTES
    if needed_bytes > free_bytes:
        raise Refused(
            f"an image of about {needed_bytes} bytes does not fit: {image_dir.parent} has {free_bytes} bytes free",
            "make room there, or name a folder on another filesystem",
        )


def check_memory(own_bytes: int, meminfo: str) -> None:
    """Refuse to bring back what does not fit into this machine's memory.

    Args:
        own_bytes: what the processes will have for themselves.
        meminfo: content of /proc/meminfo.

    Raises:
        Refused: there is too little.
    """
    fields = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    free_bytes = int(fields["MemAvailable"].split()[0]) * 1024
    if own_bytes > free_bytes:
        raise Refused(
            f"the processes need {own_bytes} bytes of memory and {free_bytes} are to be had here",
            "end or park something else, or bring them back on another node",
        )
