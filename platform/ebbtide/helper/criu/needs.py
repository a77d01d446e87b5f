"""What an image needs to find where it is brought back: files by path, programs and libraries by build.

CRIU opens every file anew by its path. It would find out too, but only in the middle of a restore.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ebbtide.helper.criu.machine_profile import build_of
from ebbtide.helper.criu.objections import DEVICES
from ebbtide.helper.criu.proc_tree import Opened, Tree

_DELETED = " (deleted)"


class NeededFile(BaseModel):
    """A file that the tree had open.

    Attributes:
        size_bytes: None: not a plain file, and any size will do.
        may_grow: it is only appended to, so it may have become longer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    size_bytes: int | None
    may_grow: bool


class Needs(BaseModel):
    """Paths that must be there: mapped files by build, open files, working directories."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    builds: dict[str, str]
    files: tuple[NeededFile, ...]
    folders: tuple[str, ...]


def needs_of(tree: Tree) -> Needs:
    """What a stopped tree needs.

    Raises:
        OSError: a mapped file cannot be read.
    """
    mapped = sorted({path for one in tree.members for path in one.mapped if _is_path(path)})
    opened = {one.target: one for member in tree.members for one in member.opened if _is_path(one.target)}
    return Needs(
        builds={path: build_of(Path(path)) for path in mapped},
        files=tuple(_needed(one) for _, one in sorted(opened.items())),
        folders=tuple(sorted({one.cwd for one in tree.members})),
    )


def lacks(needs: Needs) -> Iterator[str]:
    """What of that is not here, or is something else."""
    for path in needs.folders:
        if not Path(path).is_dir():
            yield f"there is no folder {path}"
    for file in needs.files:
        try:
            found = os.stat(file.path)
        except OSError:
            yield f"there is no file {file.path}"
            continue
        if file.size_bytes is None:
            continue
        if not stat.S_ISREG(found.st_mode):
            yield f"{file.path} is not a plain file any more"
        elif found.st_size != file.size_bytes and not (file.may_grow and found.st_size > file.size_bytes):
            yield f"{file.path} had {file.size_bytes} bytes and now has {found.st_size}"
    for path, build in needs.builds.items():
        try:
            here = build_of(Path(path))
        except OSError:
            yield f"there is no file {path}"
            continue
        if here != build:
            yield f"{path} is another build than the one that was running"


def _needed(one: Opened) -> NeededFile:
    # As CRIU compares: sizes must be equal unless a log was opened to append.
    appends = bool(one.flags & os.O_APPEND) and (one.flags & os.O_ACCMODE) != os.O_RDONLY
    return NeededFile(path=one.target, size_bytes=one.size_bytes, may_grow=appends)


def _is_path(target: str) -> bool:
    """Whether a name from /proc is a file that must be there again. Deleted ones are carried in the image."""
    return (
        target.startswith("/") and not target.endswith(_DELETED) and target not in DEVICES and target[:7] != "/memfd:"
    )
