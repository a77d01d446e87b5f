"""The one module that calls kvikio: against a fake that keeps kvikio's rules, and against the real one where it is.

The real one runs in a process of its own over stand-ins for libcuda and libcufile (``cuda_stub``): its own code makes
the requests, the compatibility mode and the error texts.
"""

import ctypes
import errno
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch

from ebbtide.storage.device.kvikio_files import DeviceFiles, KvikioFiles, os_error
from ebbtide.storage.errors import Refused

ROOT = Path(__file__).parents[3]


def conforms(files: KvikioFiles) -> DeviceFiles:
    """For the type checker."""
    return files


class CompatMode(Enum):
    OFF = 0
    ON = 1
    AUTO = 2


class FakeCuFile:
    """Reads into memory with a CUDA array interface only, whole pages of a real file, and raises without an errno."""

    fault = ""

    def __init__(self, path: str, flags: str) -> None:
        assert flags == "r" and isinstance(path, str)
        type(self).mode = Settings.now["compat_mode"]
        if type(self).mode is CompatMode.OFF and self.fault == "refused":
            raise RuntimeError("cuFile error at: x.cpp:80: GPUDirect Storage not supported on current file")
        if not os.path.exists(path):
            raise RuntimeError(f"Linux system/library function call error at: x.cpp:9: {os.strerror(errno.ENOENT)}")
        self._file = open(path, "rb")  # noqa: SIM115

    mode: CompatMode = CompatMode.AUTO

    def raw_read(self, buf: Any, size: int, file_offset: int, dev_offset: int) -> int:
        interface = buf.__cuda_array_interface__
        assert interface["typestr"] == "|u1" and interface["version"] == 3
        if size > interface["shape"][0]:
            raise ValueError("size is larger than the buffer")
        if self.fault.startswith("E"):
            raise RuntimeError(f"cuFile error at: x.cpp:230: {os.strerror(getattr(errno, self.fault))}")
        if self.fault == "end":
            raise RuntimeError("KvikIO failure at: posix_io.hpp:1: POSIX error on pread: EOF")
        self._file.seek(file_offset)
        data = self._file.read(size if self.fault != "short" else size // 2)
        ctypes.memmove(interface["data"][0] + dev_offset, data, len(data))
        return len(data)

    def close(self) -> None:
        self._file.close()


class Settings:
    """kvikio.defaults: the process's, set at once and put back at the end of the block."""

    now: ClassVar[dict[str, Any]] = {}

    def __init__(self, config: dict[str, object]) -> None:
        assert not set(config) - {"compat_mode", "auto_direct_io_read"}
        self._old = {key: Settings.now[key] for key in config}
        Settings.now.update(config)

    def __enter__(self) -> None: ...

    def __exit__(self, *_error: object) -> None:
        Settings.now.update(self._old)


@pytest.fixture
def kvikio(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A fake kvikio in this process."""
    package, driver, defaults = (ModuleType(name) for name in ("kvikio", "kvikio.cufile_driver", "kvikio.defaults"))
    for name, value in {
        "CuFile": type("CuFile", (FakeCuFile,), {}),
        "CompatMode": CompatMode,
        "memory_register": lambda buf: None,
        "memory_deregister": lambda buf: None,
    }.items():
        setattr(package, name, value)
    driver.get = {"allow_compat_mode": True}.__getitem__  # type: ignore[attr-defined]
    defaults.set = Settings  # type: ignore[attr-defined]
    Settings.now = {"compat_mode": CompatMode.AUTO, "auto_direct_io_read": False}
    for module in (package, driver, defaults):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return package


def test_bytes_come_to_their_place(kvikio: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    file = KvikioFiles().open(tmp_path / "f")
    memory = torch.zeros(8, dtype=torch.uint8)
    assert file.read(memory, 2, 4, 5) == 5
    assert bytes(memory.numpy()) == b"\0\0" + b"45678" + b"\0"
    file.close()


def test_a_close_that_fails_loses_nothing_that_was_read(
    kvikio: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: FakeCuFile) -> None:
        file._file.close()
        raise RuntimeError("cuFile error at: file_handle.cpp:1: internal error")

    (tmp_path / "f").write_bytes(b"0123456789")
    monkeypatch.setattr(kvikio.CuFile, "close", fail)
    file = KvikioFiles().open(tmp_path / "f")
    assert file.read(torch.zeros(8, dtype=torch.uint8), 0, 0, 8) == 8
    file.close()


@pytest.mark.proves("kvikio may not fall back to copies")
@pytest.mark.parametrize("through_host", [False, True])
def test_the_settings_of_the_process_change_for_the_opening_only(
    kvikio: ModuleType, tmp_path: Path, through_host: bool
) -> None:
    (tmp_path / "f").write_bytes(b"x")
    files = KvikioFiles(through_host=through_host)
    files.open(tmp_path / "f").close()
    assert kvikio.CuFile.mode is (CompatMode.ON if through_host else CompatMode.OFF)
    assert Settings.now == {"compat_mode": CompatMode.AUTO, "auto_direct_io_read": True}
    assert files.may_fall_back is (None if through_host else True)
    with pytest.raises(OSError):
        files.open(tmp_path / "none")
    assert Settings.now["compat_mode"] is CompatMode.AUTO
    KvikioFiles(auto_direct_io=False)
    assert Settings.now["auto_direct_io_read"] is False


@pytest.mark.parametrize("name", ["EINTR", "EAGAIN", "EIO", "ESTALE", "ENODEV"])
def test_errors_get_the_errno_that_their_text_stands_for(kvikio: ModuleType, tmp_path: Path, name: str) -> None:
    (tmp_path / "f").write_bytes(b"x")
    file = KvikioFiles().open(tmp_path / "f")
    kvikio.CuFile.fault = name
    with pytest.raises(OSError, match="cuFile error") as caught:
        file.read(torch.zeros(1, dtype=torch.uint8), 0, 0, 1)
    assert caught.value.errno == getattr(errno, name)


def test_the_end_of_the_file_is_no_error_and_a_short_count_stays_short(kvikio: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    file = KvikioFiles().open(tmp_path / "f")
    kvikio.CuFile.fault = "end"
    assert file.read(torch.zeros(1, dtype=torch.uint8), 0, 0, 1) == 0
    kvikio.CuFile.fault = "short"
    assert file.read(torch.zeros(8, dtype=torch.uint8), 0, 0, 8) == 4
    kvikio.CuFile.fault = ""
    with pytest.raises(OSError, match="larger than the buffer") as caught:
        file.read(torch.zeros(8, dtype=torch.uint8), 0, 0, 9)
    assert caught.value.errno == errno.EIO


def test_a_file_that_cufile_cannot_take_is_refused_at_open(kvikio: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    kvikio.CuFile.fault = "refused"
    with pytest.raises(OSError, match="not supported on current file") as caught:
        KvikioFiles().open(tmp_path / "f")
    assert caught.value.errno == errno.EIO
    KvikioFiles(through_host=True).open(tmp_path / "f").close()


def test_texts_without_an_errno_are_io_errors() -> None:
    assert os_error(RuntimeError("nvidia-fs driver ioctl error")).errno == errno.EIO
    assert os_error(MemoryError()).errno == errno.EIO
    assert os_error(RuntimeError("x: Not a directory")).errno == errno.ENOTDIR
    kept = OSError(errno.EACCES, "no")
    assert os_error(kept) is kept


@pytest.mark.parametrize("refuse", ["memory_register", "memory_deregister"])
def test_memory_that_the_driver_refuses_is_told(kvikio: ModuleType, refuse: str) -> None:
    files, memory = KvikioFiles(), torch.zeros(1, dtype=torch.uint8)
    assert files.register(memory) and files.deregister(memory)

    def fail(buf: object) -> None:
        raise RuntimeError("cuFile error at: x.cpp:1: device pointer already registered")

    setattr(kvikio, refuse, fail)
    assert files.register(memory) is (refuse != "memory_register")
    assert files.deregister(memory) is (refuse != "memory_deregister")


def test_a_kvikio_that_is_not_there_or_another_one_is_refused(
    kvikio: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    del kvikio.memory_register
    with pytest.raises(Refused, match=r"kvikio cannot be used .*memory_register"):
        KvikioFiles()
    monkeypatch.setitem(sys.modules, "kvikio", None)
    with pytest.raises(Refused, match=r"kvikio cannot be used .*install another one \(extra 'gpu'\)"):
        KvikioFiles()


EVERYTHING = {"right": True, "retries": 0, "registered": 0}
REAL: dict[str, object] = {
    "plain": EVERYTHING,
    "through_host_memory": EVERYTHING,
    "short": EVERYTHING | {"retries": 3},
    "short_and_odd": EVERYTHING | {"retries": 3},
    "interrupted": EVERYTHING | {"retries": 1},
    "again": EVERYTHING | {"retries": 1},
    "io_error_once": EVERYTHING | {"retries": 1},
    "nothing_comes": "FileTruncated: cannot read /f at byte",
    "io_error_always": "TransferFailed: cannot read /f at byte",
    "stale": "Stale file handle (ESTALE)",
    "driver_error": "nvidia-fs driver ioctl error",
    "refused_at_open": "GPUDirect Storage not supported on current file",
    "flipped_bit": "Corrupt: /f at byte 65536",
    "truncated": ["FileTruncated: cannot read /g at byte 65541"] * 2,
    "not_there": "TransferFailed: cannot open /none: No such file or directory (ENOENT)",
    "hang": ["TransferTimeout: cannot read /f", True, True],
}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each case with the real kvikio."""
    if importlib.util.find_spec("kvikio") is None:
        pytest.skip("kvikio is not installed (it is part of the extra 'gpu')")
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc to build stand-ins for libcuda and libcufile")
    child = Path(__file__).with_name("kvikio_child.py")
    paths = os.pathsep.join([str(ROOT), *(os.path.abspath(place) for place in sys.path if place)])
    done = subprocess.run(
        [sys.executable, "-P", str(child), str(tmp_path_factory.mktemp("kvikio"))],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("case", REAL)
def test_the_real_kvikio_brings_right_bytes_or_one_error(real: dict[str, Any], case: str) -> None:
    assert real.keys() == REAL.keys()
    found, expected = real[case], REAL[case]
    if isinstance(expected, dict):
        modes = found.pop("modes")
        assert found == expected
        assert list(modes) == ["gds compat" if case == "through_host_memory" else "gds"]
        return
    pairs = zip(found, expected, strict=True) if isinstance(expected, list) else [(found, expected)]
    for told, wanted in pairs:
        assert wanted in told if isinstance(wanted, str) else told is wanted
