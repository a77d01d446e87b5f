"""Files read by cuFile into device memory: the one module that calls kvikio, and what is odd about it.

- ``raw_read``, one blocking call in our own thread: kvikio's ``pread`` runs in a pool of its own, which one hanging
  mount would fill for every other file, and reports one error while other parts of the read still write.
- It raises RuntimeError with a text and no errno; EINTR is one of those errors. Here they become OSError with the
  errno that the text stands for, so that whoever asks can ask again.
- It may return fewer bytes than it was asked for, and says nothing.
- Its settings are the process's, and are read when a file is opened: set under a lock, and only for that moment.
- Falling back in silence is turned off: a file that cuFile cannot take is refused when it is opened.
- Without a CUDA driver, opening cuFile never returns and holds the interpreter's lock: make a `KvikioFiles` only where
  ``gds_probe`` has shown that it works.

Source: kvikio 26.10, cpp/src/file_handle.cpp, compat_mode_manager.cpp, include/kvikio/detail/posix_io.hpp, error.hpp.
"""

import contextlib
import errno
import os
import re
import threading
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

import torch

from ebbtide.storage.errors import Refused

_settings = threading.Lock()
# What C++ exceptions become on their way through Cython; most are RuntimeError.
_RAISED = (RuntimeError, ValueError, MemoryError, OSError, ArithmeticError, LookupError)
_NEEDED = ("CuFile.raw_read", "CompatMode.ON", "CompatMode.OFF", "memory_register", "memory_deregister")
_END_OF_FILE = re.compile(r"pread: EOF$|unexpected EOF within the requested range$")


class DeviceFile(Protocol):
    """One open file. Shared by threads."""

    def read(self, memory: torch.Tensor, memory_offset: int, file_offset: int, size_bytes: int) -> int:
        """Read into device memory at ``memory_offset``; blocks, without the interpreter's lock.

        Returns:
            The bytes that came, which may be fewer; 0 at the end of the file.

        Raises:
            OSError: with an errno, EIO where the cause has none; the text says more.
        """

    def close(self) -> None:
        """No thread may be reading any more."""


class DeviceFiles(Protocol):
    """Opens files for reading into device memory."""

    @property
    def may_fall_back(self) -> bool | None:
        """Whether reads may silently go through host memory; None: all do.

        Raises:
            OSError: the driver does not tell.
        """

    def open(self, path: Path) -> DeviceFile:
        """Open for reading.

        Raises:
            OSError: with an errno, EIO where the cause has none; the text says more.
        """

    def register(self, memory: torch.Tensor) -> bool:
        """Make memory known to the driver, so that requests need no copy on the device; False if it refuses."""

    def deregister(self, memory: torch.Tensor) -> bool:
        """The opposite; False if that failed: then the memory must never be freed."""


class KvikioFiles:
    """By kvikio."""

    def __init__(self, *, through_host: bool = False, auto_direct_io: bool = True) -> None:
        """Load kvikio.

        Args:
            through_host: have kvikio copy through host memory (its "compatibility mode"), for comparison.
            auto_direct_io: whether it then reads past the page cache; a setting of the whole process.

        Raises:
            Refused: it is not installed, or cannot be loaded.
        """
        try:
            self._kvikio = import_module("kvikio")
            self._driver = import_module("kvikio.cufile_driver")
            self._defaults = import_module("kvikio.defaults")
            for name in _NEEDED:
                attrgetter(name)(self._kvikio)
        except (ImportError, OSError, AttributeError) as error:
            raise Refused(f"kvikio cannot be used ({error}): install another one (extra 'gpu')") from error
        self._through_host = through_host
        self._defaults.set({"auto_direct_io_read": auto_direct_io})

    @property
    def may_fall_back(self) -> bool | None:
        """What cuFile's settings allow; None with ``through_host``."""
        if self._through_host:
            return None
        try:
            return bool(self._driver.get("allow_compat_mode"))
        except _RAISED as error:
            raise os_error(error) from error

    def open(self, path: Path) -> DeviceFile:
        """Open for reading."""
        modes = self._kvikio.CompatMode
        try:
            # guard: kvikio may not fall back to copies
            with _settings, self._defaults.set({"compat_mode": modes.ON if self._through_host else modes.OFF}):
                return _KvikioFile(self._kvikio.CuFile(str(path), "r"))
        except _RAISED as error:
            raise os_error(error) from error

    def register(self, memory: torch.Tensor) -> bool:
        """Registers the whole allocation in which ``memory`` lies."""
        try:
            self._kvikio.memory_register(_Interface(memory))
        except _RAISED:
            return False
        return True

    def deregister(self, memory: torch.Tensor) -> bool:
        """Deregisters the allocation."""
        try:
            self._kvikio.memory_deregister(_Interface(memory))
        except _RAISED:
            return False
        return True


class _KvikioFile:
    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, memory: torch.Tensor, memory_offset: int, file_offset: int, size_bytes: int) -> int:
        try:
            return int(self._file.raw_read(_Interface(memory), size_bytes, file_offset, memory_offset))
        except _RAISED as error:
            if _END_OF_FILE.search(str(error)):
                return 0
            raise os_error(error) from error

    def close(self) -> None:
        with contextlib.suppress(*_RAISED):  # nothing was written, and what was read is there
            self._file.close()


class _Interface:
    """A tensor as kvikio takes it; keeps it alive."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self.__cuda_array_interface__ = {
            "shape": (memory.numel(),),
            "typestr": "|u1",
            "data": (memory.data_ptr(), False),
            "version": 3,
        }


def os_error(error: Exception) -> OSError:
    """The error with its errno, or the one that its text ends with; EIO if there is none in it."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    text = " ".join(str(error).split())
    told = max(
        (code for code in errno.errorcode if text.endswith(os.strerror(code))),
        key=lambda code: len(os.strerror(code)),
        default=errno.EIO,
    )
    return OSError(told, text)
