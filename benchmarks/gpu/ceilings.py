"""What the machine can do at best: the link to the device, and the storage, each alone.

The storage's loop is written anew here, of nothing but ``os.preadv``: it shares no code with what it is the measure of,
except for the memory, since without huge pages that were touched before no loop is a ceiling (docs/measured.md, "What
the design rests on").
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix.page_cache import resident_share

REQUEST_BYTES = 16 << 20
PAGE_BYTES = 4096
FIO_TIMEOUT_S = 60.0
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def link_gb_per_s(pool: BufferPool, device: torch.device, *, total_bytes: int) -> float:
    """From page-locked host memory to the device, one copy behind the other."""
    buffers = [pool.borrow(10.0) for _ in range(pool.count)]
    assert all(buffers), "nobody else may use the pool now"
    sources = [torch.frombuffer(buffer.memory, dtype=torch.uint8) for buffer in buffers if buffer is not None]
    target = torch.empty(pool.buffer_bytes, dtype=torch.uint8, device=device)
    copies = max(1, total_bytes // pool.buffer_bytes)
    synchronize(device)
    began_s = time.perf_counter()
    for number in range(copies):
        target.copy_(sources[number % len(sources)], non_blocking=True)
    synchronize(device)
    took_s = time.perf_counter() - began_s
    del sources
    for buffer in buffers:
        if buffer is not None:
            pool.give_back(buffer)
    return copies * pool.buffer_bytes / took_s / 1e9


def storage_gb_per_s(pool: BufferPool, paths: Sequence[Path], *, threads: int) -> float:
    """All of the files past the page cache into a few buffers; through it where O_DIRECT is refused."""
    buffers = [pool.borrow(10.0) for _ in range(threads)]
    free = [buffer.memory for buffer in buffers if buffer is not None]
    assert len(free) == threads, "nobody else may use the pool now"
    parts = [(path, start) for path in paths for start in range(0, path.stat().st_size, REQUEST_BYTES)]
    opened = {path: _open(path) for path in paths}
    began_s = time.perf_counter()
    with ThreadPoolExecutor(threads) as crew:

        def read(part: tuple[Path, int]) -> int:
            memory = free.pop()
            try:
                return _read(opened[part[0]], part[1], memory)
            finally:
                free.append(memory)

        moved = sum(crew.map(read, parts))
    took_s = time.perf_counter() - began_s
    for fd in opened.values():
        os.close(fd)
    for buffer in buffers:
        if buffer is not None:
            pool.give_back(buffer)
    assert moved == sum(path.stat().st_size for path in paths)
    return moved / took_s / 1e9


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return os.open(path, os.O_RDONLY)


def _read(fd: int, start: int, memory: memoryview) -> int:
    """One request; a short one that is no end of the file goes on where it stopped."""
    done = 0
    while done < REQUEST_BYTES:
        count = os.preadv(fd, [memory[done:REQUEST_BYTES]], start + done)
        done += count
        if count == 0 or done % PAGE_BYTES:
            break
    return done


def fio_gb_per_s(paths: Sequence[Path]) -> float | None:
    """What fio reads, or None where there is no fio, or it cannot."""
    if shutil.which("fio") is None:
        return None
    names = ":".join(str(path).replace(":", r"\:") for path in paths)
    job = ["--name=read", f"--filename={names}", "--readonly", "--rw=read", "--bs=4M", "--iodepth=8", "--direct=1"]
    command = ["fio", *job, "--ioengine=libaio", "--file_service_type=sequential", "--output-format=json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FIO_TIMEOUT_S, check=True)
        read = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]
        return float(read["io_bytes"]) / float(read["runtime"]) * 1e3 / 1e9
    except (subprocess.SubprocessError, ValueError, KeyError, IndexError, ZeroDivisionError):
        return None


def forget(paths: Sequence[Path], *, whole_machine: bool) -> str:
    """Have the page cache forget the files; how, in a word."""
    if whole_machine and os.geteuid() == 0:
        os.sync()
        try:
            DROP_CACHES.write_text("3")
            return "drop_caches"
        except OSError:
            pass
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    return "fadvise"


def remember(paths: Sequence[Path]) -> None:
    """Have the page cache hold the files."""
    memory = bytearray(REQUEST_BYTES)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(memory):
                pass


def resident(paths: Sequence[Path]) -> float | None:
    """The largest share of any of the files that the page cache holds; None where the kernel does not tell."""
    shares = []
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        shares.append(resident_share(fd, 0, path.stat().st_size))
        os.close(fd)
    told = [share for share in shares if share is not None]
    return max(told, default=None)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
