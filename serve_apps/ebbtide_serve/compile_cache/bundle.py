"""A directory of many small files as one file, and back.

One file because a compile cache has thousands, and a shared filesystem answers a few hundred of them a second. It is
a safetensors file, one tensor of bytes for each file under its relative name: a format that is parsed here already by
code that believes nothing, that cannot hold links, modes or owners, and that any tool can look into.

Names from a bundle never lead out of the directory that they are unpacked to: it must be new, and every name is
checked before the first file is written.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ebbtide.storage.errors import Corrupt, Refused
from ebbtide.storage.files.durable_files import storage_error
from ebbtide.storage.safetensors.file_header import Header, TensorEntry
from ebbtide.storage.safetensors.file_layout import ContainerPlan, TensorSpec, filling, plan_container
from ebbtide.storage.transport.transport import Fill

MAX_BYTES = 1 << 30  # of all files; vLLM's caches of a large model have some 100 MB
MAX_FILES = 50_000
MAX_NAME = 1024
MAX_DEPTH = 24
_BYTES = "U8"
_LEFT_OUT_DIRECTORIES = frozenset({"locks", "tmp", "__pycache__"})
# The last is vLLM's table of compiled graphs by absolute paths, which it opens without looking: in another directory
# that ends the start. Without it the graphs come from the caches below.
_LEFT_OUT = re.compile(r".*\.(lock|tmp|part)$|.*\.tmp\..*|vllm_compile_cache\.py")
_PART = re.compile(r"[^\x00-\x1f\x7f/\\]{1,255}")


@dataclass(frozen=True, slots=True)
class Found:
    """A file that goes into a bundle; ``stamp`` changes when it does."""

    name: str
    path: Path
    size_bytes: int
    stamp: tuple[int, int]


def gather(root: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> list[Found]:
    """The files below a directory, in order; links, locks and temporary files are left out.

    Raises:
        Refused: there are too many, or a name cannot be in a bundle.
        TransferFailed: they cannot be looked at.
    """
    found: list[Found] = []
    total = 0
    for path in _walk(root):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # a temporary file after all
        except OSError as error:
            raise storage_error(error, "look at", path) from error
        if not stat.S_ISREG(status.st_mode):
            continue
        name = _checked(path.relative_to(root).as_posix())
        found.append(Found(name, path, status.st_size, (status.st_ino, status.st_mtime_ns)))
        total += status.st_size
        if total > max_bytes or len(found) > max_files:
            limit = f"{max_bytes / 1e6:.0f} MB or {max_files} files"
            raise Refused(f"the caches below {root} are larger than {limit}: they are not kept")
    return sorted(found, key=lambda one: one.name)


def plan_bundle(files: Iterable[Found]) -> ContainerPlan:
    """Lay out a bundle."""
    return plan_container(TensorSpec(file.name, _BYTES, (file.size_bytes,)) for file in files)


def bundle_fill(plan: ContainerPlan, files: Iterable[Found]) -> Fill:
    """What gives a transport the bytes of a bundle. Raises Corrupt for a file that became shorter meanwhile."""
    paths = {file.name: file.path for file in files}

    def fill_tensor(entry: TensorEntry, start: int, memory: memoryview) -> None:
        path, done = paths[entry.name], 0
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            while done < len(memory):
                count = os.preadv(fd, [memory[done:]], start + done)
                if count == 0:
                    raise Corrupt("this file became shorter while it was read", path, offset=start + done)
                done += count
        finally:
            os.close(fd)

    return filling(plan, fill_tensor)


def first_changed(files: Iterable[Found]) -> str:
    """The first of the files that is not what it was when it was gathered; empty if there is none."""
    for file in files:
        try:
            status = file.path.lstat()
        except OSError:
            return file.name
        if (status.st_ino, status.st_mtime_ns) != file.stamp or status.st_size != file.size_bytes:
            return file.name
    return ""


def check_bundle(header: Header, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> None:
    """See whether a bundle may be unpacked, by its header alone.

    Raises:
        Refused: it is too large, holds something else than files, or a name that could lead elsewhere.
    """
    if header.file_bytes > max_bytes + header.data_offset or len(header.entries) > max_files:
        raise Refused(f"{len(header.entries)} files of {header.file_bytes} bytes are more than a cache may have")
    names = {_checked(entry.name) for entry in header.entries}
    for entry in header.entries:
        if entry.dtype != _BYTES or entry.shape != (entry.length,):
            raise Refused(f"{entry.name!r} is no file but {entry.dtype} {list(entry.shape)}")
        if clash := names.intersection(str(parent) for parent in Path(entry.name).parents):
            raise Refused(f"{min(clash)!r} cannot be a file and a directory")


def unpack(header: Header, content: memoryview, target: Path) -> None:
    """Write the files of a bundle into a directory, which is made and must be new.

    Raises:
        Refused: see `check_bundle`; nothing was written.
        OSError: they cannot be written; what was begun is left to the caller.
    """
    check_bundle(header)
    target.mkdir(mode=0o700)
    made = {target}
    for entry in header.entries:
        path = target / entry.name
        for folder in reversed(path.parents):
            if folder not in made and target in folder.parents:
                folder.mkdir(mode=0o700)
                made.add(folder)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb", buffering=0) as file:
            done = entry.offset
            while done < entry.end:
                done += file.write(content[done : entry.end])


def _walk(root: Path) -> Iterator[Path]:
    for folder, directories, names in os.walk(root):
        directories[:] = sorted(directory for directory in directories if directory not in _LEFT_OUT_DIRECTORIES)
        for name in names:
            if not _LEFT_OUT.fullmatch(name):
                yield Path(folder, name)


def _checked(name: str) -> str:
    parts = name.split("/")
    good = all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)
    if not good or len(name) > MAX_NAME or len(parts) > MAX_DEPTH:
        raise Refused(f"the name {name[:80]!a} cannot be that of a file in a cache")
    return name
