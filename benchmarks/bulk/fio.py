"""The ceiling: what fio reaches on the same files, with buffers in huge pages.

Debian's fio, io_uring, O_DIRECT. Huge pages matter: with 4 KiB pages fio itself came to 0.36 to 0.50 of that
(docs/measured.md, "What the design rests on"), since a request is cut into as many pieces as it has pages.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")
WANTED_PAGES = 64  # of 2 MiB: 16 requests of 4 MiB and some room
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One run of fio."""

    gb_per_s: float
    cpu_s_per_gb: float


def missing() -> str:
    """Why there is no ceiling to be had here; empty if there is."""
    return "" if shutil.which("fio") else "fio is not installed: apt-get install fio"


def version() -> str:
    """What it calls itself."""
    return subprocess.run(["fio", "--version"], capture_output=True, text=True, timeout=30, check=True).stdout.strip()


@contextmanager
def huge_pages() -> Iterator[bool]:
    """Reserve some as long as the body runs; whether that worked, which needs root."""
    try:
        before = int(HUGE_PAGES.read_text())
        HUGE_PAGES.write_text(str(before + WANTED_PAGES))
        there = int(HUGE_PAGES.read_text()) >= before + WANTED_PAGES
    except (OSError, ValueError):
        yield False
        return
    try:
        yield there
    finally:
        HUGE_PAGES.write_text(str(before))


def read(files: Sequence[Path], *, huge: bool) -> Ceiling:
    """Read all of ``files``, one after the other."""
    names = ":".join(str(path).replace(":", "\\:") for path in files)
    total = sum(path.stat().st_size for path in files)
    # 1 MiB x 16 was the fastest of three, by 1 % (docs/measured.md, "What the design rests on")
    return _fio("read", total, huge, f"--filename={names}", "--file_service_type=sequential", "--bs=1M", "--iodepth=16")


def write(directory: Path, size_bytes: int, *, huge: bool) -> Ceiling:
    """Write a file durably; it is removed again. The time in which fio makes room for it does not count."""
    path = directory / "fio.out"
    try:
        options = (f"--filename={path}", f"--size={size_bytes}", "--bs=4M", "--iodepth=8", "--end_fsync=1")
        return _fio("write", size_bytes, huge, *options, "--fallocate=posix")
    finally:
        path.unlink(missing_ok=True)
        os.sync()  # else whoever comes next pays in its first sync for what is freed here


def _fio(verb: str, size_bytes: int, huge: bool, *options: str) -> Ceiling:
    memory = ("--mem=shmhuge",) if huge else ()
    common = ("--name=ceiling", "--ioengine=io_uring", "--direct=1", f"--rw={verb}", "--output-format=json", *memory)
    done = subprocess.run(["fio", *common, *options], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"fio gave {done.returncode}: {done.stderr[-500:]}{done.stdout[-500:]}")
    [job] = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
    seconds = job[verb]["runtime"] / 1000
    moved = job[verb]["io_bytes"]
    if abs(moved - size_bytes) > len(options) * (1 << 20):
        raise RuntimeError(f"fio moved {moved} bytes instead of {size_bytes}")
    share = (job["usr_cpu"] + job["sys_cpu"]) / 100
    return Ceiling(moved / seconds / 1e9, share * job["job_runtime"] / 1000 / moved * 1e9)
