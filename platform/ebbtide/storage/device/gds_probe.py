"""Whether storage to GPU by DMA works here, found out by doing it once, in a process that may be killed.

Why a process: without libcuda.so.1 kvikio's ``driver_open()`` never returns, and it holds the interpreter lock, so that
no thread of the same process could give up on it (seen with kvikio 26.10 and libcufile 1.20). A driver that crashes
takes only the probe with it.

Why a transfer: cuFile falls back to copies through the CPU in silence, and whether it does is decided per filesystem.
So the probe writes and reads a small file in the directory concerned, in a process where cuFile may not fall back.

Not guaranteed: that later transfers are direct too (each one reports what it did). Without a directory the verdict
says only that the driver opens and that nvidia-fs is there.

This module is also the program that runs in that process: ``python -m ebbtide.storage.device.gds_probe [DIRECTORY]``.
"""

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ebbtide.storage.device import cufile_json
from ebbtide.storage.transport.transfer_report import Mode

MARK = "ebbtide-gds-probe "  # begins each line that the probe itself prints; libraries print what they like
_OUTPUT_BYTES = 64 << 10  # of which the end is kept
_TRANSFER_BYTES = 1 << 20  # above kvikio's 16 KiB, below which it never uses cuFile
_KILLED_S = 1.0  # for a killed process to be gone; one that hangs in the driver stays for longer


@dataclass(frozen=True, slots=True)
class GdsVerdict:
    """What the probe found.

    Attributes:
        works: bytes went between storage and GPU without the CPU; without a directory: they could.
        mode: `Mode.GDS`, `Mode.COMPAT` (cuFile answers, but would copy through the CPU), or None: it cannot be used.
        why: why it does not work, in words; how it was shown where it does.
    """

    works: bool
    mode: Mode | None
    why: str


def probe_gds(deadline_s: float, *, directory: Path | None = None, command: Sequence[str] | None = None) -> GdsVerdict:
    """Run the probe in a process of its own; it is killed after ``deadline_s`` seconds.

    Args:
        deadline_s: for everything. Importing takes 2 s from cold caches, opening the driver another one.
        directory: where to try a transfer; None only opens the driver.
        command: the program to run in place of the probe, for tests.
    """
    program = list(command or (sys.executable, "-P", "-m", "ebbtide.storage.device.gds_probe"))
    if directory is not None:
        program.append(os.path.abspath(directory))
    with tempfile.TemporaryDirectory(prefix="ebbtide-gds-", ignore_cleanup_errors=True) as scratch:
        try:
            child = subprocess.Popen(
                program,
                cwd=scratch,  # cuFile writes cufile.log where it runs
                env=_environment(os.environ, Path(scratch)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return GdsVerdict(False, None, f"the probe could not be started: {error}")
        try:
            output, in_time = _output(child, time.monotonic() + deadline_s)
        finally:
            gone = _kill(child)
        if not in_time:
            return GdsVerdict(False, None, _hung(output, deadline_s, gone))
        return _verdict(output, child.returncode)


def _environment(environ: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """The child's: no falling back, its own settings file, and the modules that this process would find."""
    settings = Path(cufile_json.path_in_force(environ))
    try:
        config = cufile_json.load(settings)
    except (OSError, ValueError):  # cuFile goes on with its defaults then, and so do we
        config = {}
    properties = config.get("properties")
    # guard: the probe may not fall back to copies
    config["properties"] = {**(properties if isinstance(properties, dict) else {}), "allow_compat_mode": False}
    config["logging"] = {"dir": str(scratch), "level": "ERROR"}
    own = scratch / "cufile.json"
    own.write_text(json.dumps(config))
    return {
        **environ,
        cufile_json.PATH_VARIABLE: str(own),
        "CUFILE_ALLOW_COMPAT_MODE": "false",
        "KVIKIO_COMPAT_MODE": "OFF",
        "PYTHONPATH": os.pathsep.join(os.path.abspath(place) for place in sys.path if place),
    }


def _output(child: subprocess.Popen[bytes], until: float) -> tuple[bytes, bool]:
    """The end of what the child printed, and whether it ended in time.

    Not `Popen.communicate`: that waits for a pipe which a process started by the child may hold open for ever.
    """
    assert child.stdout is not None
    kept = b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while (left := until - time.monotonic()) > 0:
            if not selector.select(min(left, 0.1)):
                if child.poll() is not None:
                    return kept, True
                continue
            data = os.read(child.stdout.fileno(), _OUTPUT_BYTES)
            kept = (kept + data)[-_OUTPUT_BYTES:]
            if not data:
                break
    try:
        child.wait(timeout=max(until - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        return kept, False
    return kept, True


def _kill(child: subprocess.Popen[bytes]) -> bool:
    """End the child and all that it started in its session; False if it hangs in the kernel."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)  # guard: the probe's own children are killed with it
    assert child.stdout is not None
    child.stdout.close()
    try:
        child.wait(timeout=_KILLED_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _hung(output: bytes, deadline_s: float, gone: bool) -> str:
    stage = next((str(line["stage"]) for line in reversed(_lines(output)) if "stage" in line), "starting")
    after = "it was killed" if gone else "it could not be killed: it hangs in the kernel"
    return f"the probe hung at {stage!r} and had not ended after {deadline_s:g} s; {after}"


def _lines(output: bytes) -> list[dict[str, Any]]:
    found = []
    for line in output.decode(errors="replace").splitlines():
        if line.startswith(MARK):
            with suppress(ValueError):
                value = json.loads(line[len(MARK) :])
                if isinstance(value, dict):
                    found.append(value)
    return found


def _verdict(output: bytes, returncode: int) -> GdsVerdict:
    said = "".join(char if char.isprintable() else " " for char in output.decode(errors="replace")).strip()
    tail = f"; it printed last: {said[-200:]}" if said else ""
    if returncode < 0:  # guard: a probe that crashes means no
        name = signal.Signals(-returncode).name if -returncode in set(signal.Signals) else str(-returncode)
        return GdsVerdict(False, None, f"the probe was ended by {name}{tail}")
    results = [line for line in _lines(output) if "mode" in line]
    if returncode or not results:  # guard: a probe that fails or says nothing means no
        return GdsVerdict(False, None, f"the probe ended with exit code {returncode} and no result{tail}")
    mode, why = results[-1]["mode"], str(results[-1].get("why", ""))
    if mode not in (Mode.GDS.value, Mode.COMPAT.value, None):  # guard: a probe that talks nonsense means no
        return GdsVerdict(False, None, f"the probe answered nonsense{tail}")
    return GdsVerdict(mode == Mode.GDS.value, None if mode is None else Mode(mode), why)


# From here on: what runs in the child.


def _say(**line: object) -> None:
    print(MARK + json.dumps(line), flush=True)


def _check(status: int, call: str) -> None:
    if status:
        raise OSError(f"{call} failed with CUDA error {status}")


class _DeviceMemory:
    """Memory on the first GPU that kvikio takes for an array, made without torch or cupy; freed with the process."""

    def __init__(self, cuda: ctypes.CDLL, size_bytes: int) -> None:
        device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        _check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
        _check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
        _check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
        _check(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size_bytes)), "cuMemAlloc")
        self._cuda, self._pointer, self._size_bytes = cuda, pointer, size_bytes
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (pointer.value, False),
            "version": 3,
        }

    def set(self, data: bytes) -> None:
        size = ctypes.c_size_t(self._size_bytes)
        _check(self._cuda.cuMemcpyHtoD_v2(self._pointer, ctypes.c_char_p(data), size), "cuMemcpyHtoD")

    def get(self) -> bytes:
        host = ctypes.create_string_buffer(self._size_bytes)
        _check(self._cuda.cuMemcpyDtoH_v2(host, self._pointer, ctypes.c_size_t(self._size_bytes)), "cuMemcpyDtoH")
        return host.raw


def _probe(directory: Path | None) -> tuple[Mode | None, str]:
    _say(stage="load the CUDA driver")
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return None, f"there is no CUDA driver library: {error}"
    if status := cuda.cuInit(0):
        return None, f"the CUDA driver does not start: cuInit gives error {status}"
    _say(stage="import kvikio")
    kvikio, driver = (import_module(name) for name in ("kvikio", "kvikio.cufile_driver"))  # of the extra [gpu]
    if not os.access("/run/udev", os.R_OK | os.X_OK):
        return None, "/run/udev cannot be read, and kvikio then does not use cuFile"
    _say(stage="open the cuFile driver")
    driver.driver_open()
    if directory is not None:
        _say(stage=f"write and read a file in {directory}")
        try:
            _transfer(kvikio, cuda, directory)
        except (OSError, RuntimeError) as error:
            return (
                Mode.COMPAT,
                f"the cuFile driver opens, but a direct transfer in {directory} fails: {_one_line(error)}",
            )
        return Mode.GDS, f"{_TRANSFER_BYTES} bytes went from the GPU to {directory} and back"
    if driver.get("is_gds_available"):
        version = ".".join(str(driver.get(f"{part}_version")) for part in ("major", "minor"))
        return Mode.GDS, f"the cuFile driver opens with nvidia-fs {version}; no transfer was tried"
    return Mode.COMPAT, "the cuFile driver opens without nvidia-fs; only a transfer could show more"


def _transfer(kvikio: Any, cuda: ctypes.CDLL, directory: Path) -> None:
    data = os.urandom(_TRANSFER_BYTES)
    memory = _DeviceMemory(cuda, len(data))
    memory.set(data)
    handle, name = tempfile.mkstemp(dir=directory, prefix=".ebbtide-doctor-", suffix=".gds")
    os.close(handle)
    try:
        with kvikio.CuFile(name, "w") as file:
            wrote = file.write(memory)
        memory.set(bytes(len(data)))
        with kvikio.CuFile(name, "r") as file:
            read = file.read(memory)
        if (wrote, read) != (len(data), len(data)):
            raise OSError(f"only {wrote} bytes were written and {read} read, of {len(data)}")
        if memory.get() != data:  # guard: the probe compares what came back
            raise OSError("other bytes came back than were written")
    finally:
        os.unlink(name)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def main(arguments: Sequence[str]) -> None:
    """The program in the child: one line for each stage, one for the result."""
    try:
        mode, why = _probe(Path(arguments[0]) if arguments else None)
    # Outermost loop of the child; kvikio and the loaders of libraries raise what they like.
    except Exception as error:  # noqa: BLE001
        mode, why = None, f"{type(error).__name__}: {_one_line(error)}"
    _say(mode=mode.value if mode else None, why=why)
    sys.stdout.flush()
    os._exit(0)  # no driver_close(), no exit handlers: they may hang as well


if __name__ == "__main__":
    main(sys.argv[1:])
