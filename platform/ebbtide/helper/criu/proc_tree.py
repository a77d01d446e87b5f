"""A process tree as /proc shows it: all that decides whether CRIU can put it into an image. Reads only.

Source: proc(5). Not guaranteed: that the tree stands still; what counts is looked at again when it is stopped.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from ebbtide.system.process import started_ticks

_KIB = 1024
_NAMESPACES = ("pid", "mnt", "net", "ipc", "uts", "user")


@dataclass(frozen=True, slots=True)
class Opened:
    """One file descriptor: its number, what /proc says it is, its open(2) flags, and the size of a plain file."""

    fd: int
    target: str
    flags: int
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a tree.

    Attributes:
        state: letter of proc(5), such as S, R, T.
        tty: number of its controlling terminal; 0: none.
        tracer: pid of the process that traces it; 0: none.
        foreign_namespaces: those in which it is and we are not.
        mapped: paths of files that it maps, and names of special mappings such as ``anon_inode:[io_uring]``.
        own_bytes: memory that an image must hold: anonymous, shared and swapped.
    """

    pid: int
    started: int
    name: str
    uid: int
    session: int
    tty: int
    state: str
    tracer: int
    foreign_namespaces: tuple[str, ...]
    opened: tuple[Opened, ...]
    mapped: frozenset[str]
    cwd: str
    own_bytes: int


@dataclass(frozen=True, slots=True)
class Tree:
    """A root process and all its descendants, root first."""

    members: tuple[Member, ...]

    @property
    def root(self) -> Member:
        """The process that was asked for."""
        return self.members[0]

    @property
    def own_bytes(self) -> int:
        """Memory that an image must hold."""
        return sum(member.own_bytes for member in self.members)


def look_at(pid: int) -> Tree:
    """The tree under ``pid``; processes that end while we look are left out.

    Raises:
        ProcessLookupError: the root is gone.
        PermissionError: the tree is not ours to look into.
    """
    root = _member(pid)
    if root is None:
        raise ProcessLookupError(pid)
    others = (_member(descendant) for descendant in descendants(pid))
    return Tree((root, *(other for other in others if other is not None)))


def descendants(pid: int) -> tuple[int, ...]:
    """Pids of all children of ``pid`` and theirs, parents first."""
    with suppress(psutil.NoSuchProcess):
        return tuple(child.pid for child in psutil.Process(pid).children(recursive=True))
    return ()


def _member(pid: int) -> Member | None:
    here = Path(f"/proc/{pid}")
    started = started_ticks(pid)
    if started is None:
        return None
    try:
        # proc(5): after the bracket come state (3), ppid, pgrp, session (6), tty_nr (7)
        fields = (here / "stat").read_text(errors="replace").rpartition(")")[2].split()
        status = dict(line.split(":", 1) for line in (here / "status").read_text().splitlines() if ":" in line)
        mapped = frozenset(_mapped(here))
        return Member(
            pid=pid,
            started=started,
            name=status["Name"].strip(),
            uid=int(status["Uid"].split()[0]),
            session=int(fields[3]),
            tty=int(fields[4]),
            state=fields[0],
            tracer=int(status["TracerPid"]),
            foreign_namespaces=tuple(ns for ns in _NAMESPACES if _namespace(pid, ns) != _namespace(os.getpid(), ns)),
            opened=tuple(_opened(here)),
            mapped=mapped,
            cwd=str((here / "cwd").readlink()),
            own_bytes=sum(int(status.get(key, "0").split()[0]) * _KIB for key in ("RssAnon", "RssShmem", "VmSwap")),
        )
    except (FileNotFoundError, ProcessLookupError):
        return None


def _namespace(pid: int, kind: str) -> int:
    return Path(f"/proc/{pid}/ns/{kind}").stat().st_ino


def _opened(here: Path) -> Iterator[Opened]:
    for name in os.listdir(here / "fd"):
        with suppress(FileNotFoundError):
            target = str((here / "fd" / name).readlink())
            info = dict(line.split(":", 1) for line in (here / "fdinfo" / name).read_text().splitlines() if ":" in line)
            found = (here / "fd" / name).stat()
            size = found.st_size if stat.S_ISREG(found.st_mode) else None
            yield Opened(int(name), target, int(info["flags"], 8), size)


def _mapped(here: Path) -> Iterator[str]:
    for line in (here / "maps").read_text(errors="replace").splitlines():
        parts = line.split(None, 5)  # proc(5): address, perms, offset, dev, inode, pathname
        if len(parts) == 6 and not parts[5].startswith("["):
            yield parts[5]
