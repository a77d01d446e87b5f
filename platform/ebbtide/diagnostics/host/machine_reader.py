"""The one thing that reads this machine: files below a root, and a few calls, each of which a test can replace.

Why a root: what /proc and /sys say on a node with eight GPUs, or in a container without /run/udev, is a tree of small
files that a test can build. What cannot be read is None or empty, never an error: a doctor that stops at the first
missing file helps nobody. Whether "not there" or "not allowed" is meant, the subjects ask where it makes a difference.
"""

import ctypes
import os
import platform
import resource
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import psutil

from ebbtide.diagnostics.host.filesystem_probe import FilesystemReading, read_filesystem
from ebbtide.diagnostics.host.nvml_reading import NvmlReading, read_nvml
from ebbtide.storage.device.gds_probe import GdsVerdict, probe_gds

_MAX_BYTES = 64 << 20  # /proc/kallsyms of a big kernel has some 20 MiB; all else is tiny
_SYS_IO_URING_SETUP = 425  # on every architecture (include/uapi/asm-generic/unistd.h)


@dataclass(frozen=True, slots=True)
class Uname:
    """What ``uname`` says: the kernel's release and the architecture."""

    release: str
    machine: str


def _uname() -> Uname:
    return Uname(platform.release(), platform.machine())


def _addresses() -> Mapping[str, tuple[str, ...]]:
    """IP addresses by network interface, without link-local ones."""
    found = {}
    for name, entries in psutil.net_if_addrs().items():
        texts = (entry.address.partition("%")[0] for entry in entries if entry.family.name in ("AF_INET", "AF_INET6"))
        found[name] = tuple(text for text in texts if not text.lower().startswith("fe80:"))
    return found


def _memlock_bytes() -> int | None:
    """The limit of locked memory in bytes; None is unlimited."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _io_uring_errno() -> int:
    """The errno of ``io_uring_setup`` with arguments that cannot work: EFAULT or EINVAL where io_uring is there."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(ctypes.c_long(_SYS_IO_URING_SETUP), ctypes.c_uint(1), ctypes.c_void_p(None))
    return ctypes.get_errno()


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _site_packages() -> tuple[Path, ...]:
    return tuple({Path(sysconfig.get_path(key)): None for key in ("purelib", "platlib")})


def _probe_gds(deadline_s: float, directory: Path | None) -> GdsVerdict:
    return probe_gds(deadline_s, directory=directory)


@dataclass(frozen=True)
class Machine:
    """Reads one node. The defaults are this one.

    Attributes:
        root: what stands for ``/``.
        environ: of this process.
        site_packages: where Python packages lie, with the libraries that some of them bring.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    site_packages: tuple[Path, ...] = field(default_factory=_site_packages)
    uname: Callable[[], Uname] = _uname
    addresses: Callable[[], Mapping[str, tuple[str, ...]]] = _addresses
    memlock_bytes: Callable[[], int | None] = _memlock_bytes
    io_uring_errno: Callable[[], int] = _io_uring_errno
    importable: Callable[[str], bool] = _importable
    nvml: Callable[[], NvmlReading] = read_nvml
    probe_gds: Callable[[float, Path | None], GdsVerdict] = _probe_gds
    probe_filesystem: Callable[[Path], FilesystemReading] = read_filesystem

    def at(self, path: str) -> Path:
        """Where the absolute ``path`` lies."""
        return self.root / path.lstrip("/")

    def content(self, path: str) -> bytes | None:
        """The bytes of a file; None if it cannot be read."""
        try:
            with self.at(path).open("rb") as file:
                return file.read(_MAX_BYTES)
        except OSError:
            return None

    def text(self, path: str) -> str | None:
        """The text of a file without surrounding white space; None if it cannot be read."""
        data = self.content(path)
        return None if data is None else data.decode(errors="replace").replace("\0", " ").strip()

    def names(self, path: str) -> tuple[str, ...]:
        """What a directory holds, sorted; empty if it cannot be read."""
        try:
            return tuple(sorted(os.listdir(self.at(path))))
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        """Whether there is something at ``path``."""
        return os.path.exists(self.at(path))

    def readable(self, path: str) -> bool:
        """Whether the directory at ``path`` can be listed."""
        return os.access(self.at(path), os.R_OK | os.X_OK)

    def link_name(self, path: str) -> str | None:
        """The last part of what a link points to, as sysfs names drivers and groups; None if it is no link."""
        try:
            return os.path.basename(os.readlink(self.at(path)))
        except OSError:
            return None

    def resolved(self, path: str) -> str:
        """``path`` with its links followed, as seen from the root."""
        real = os.path.realpath(self.at(path))
        root = os.path.realpath(self.root)
        return real if root == "/" else "/" + os.path.relpath(real, root)

    def find(self, *patterns: str) -> str | None:
        """The first path that matches a pattern (absolute, with ``*``), as seen from the root."""
        for pattern in patterns:
            for found in sorted(self.root.glob(pattern.lstrip("/"))):
                return "/" + str(found.relative_to(self.root))
        return None
