"""A dress rehearsal on this machine: a process of its own parks and comes back. The workload is never touched.

Three acts, each with memory and time limits: eviction to host memory; writing to and reading from the shared directory
as a spill does; and, where CRIU works, an image of a small process that is brought back. Bytes are compared in each.

Not guaranteed: that a GPU would do as well. No lease, no GPU: its rates come from ``benchmarks/gpu``.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.diagnostics.doctor.bandwidth_check import measure_bandwidth
from ebbtide.snapshot.tiers import Lane, Rate
from ebbtide.snapshot.tiers.formatting import gigabytes, rate
from ebbtide.storage.memory.buffer_pool import process_pool
from ebbtide.storage.posix.posix_transport import PosixTransport

MOST_BYTES = 1 << 30  # takes about a second each way and shows the rate of any larger amount
SHARE_OF_FREE = 4  # a quarter of what is free: the child holds it twice, and half is left to others
LEAST_BYTES = 1 << 20
STORAGE_BYTES = 256 << 20
CHILD_S = 120.0  # importing torch on a busy machine takes up to a minute, the rest seconds
_CHILD = "ebbtide.diagnostics.probe.rehearsal_child"


class RehearsalFailed(RuntimeError):
    """It could not be done, or the bytes that came back are others; the message says which."""


@dataclass(frozen=True, slots=True)
class Act:
    """One act.

    Attributes:
        words: what was seen, one sentence.
        rates: for the file of rates.
        failed: bytes differed, or it did not come back: the tier is not to be trusted here.
    """

    name: str
    words: str
    rates: Mapping[Lane, Rate] = field(default_factory=dict)
    failed: bool = False


def size_to_move(asked: int | None, free_bytes: int | None) -> int:
    """Tracked bytes of the child.

    Raises:
        RehearsalFailed: what was asked for does not fit twice into what is free, or free memory is not known.
    """
    if free_bytes is None:
        raise RehearsalFailed("free memory cannot be read, so nothing was rehearsed")
    most = free_bytes // SHARE_OF_FREE
    if asked is None:
        asked = min(MOST_BYTES, most)
    if 2 * asked > free_bytes:
        raise RehearsalFailed(
            f"a rehearsal with {gigabytes(asked)} holds them twice, and {gigabytes(free_bytes)} are free: ask for less"
        )
    if asked < LEAST_BYTES:
        raise RehearsalFailed(f"a rehearsal with {gigabytes(asked)} would show nothing: free some memory, or give more")
    return asked


def evict_and_back(size_bytes: int) -> Act:
    """A child with so many tracked bytes evicts them and comes back.

    Raises:
        RehearsalFailed: the child ended badly or not in time.
    """
    command = [sys.executable, "-m", _CHILD, str(size_bytes)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise RehearsalFailed(f"the child that rehearses did not come back within {CHILD_S:g} s") from error
    try:
        found = json.loads(done.stdout.splitlines()[-1])
        size, out_s, back_s = int(found["bytes"]), float(found["out_s"]), float(found["back_s"])
        freed_bytes, same = int(found["freed_bytes"]), bool(found["same"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise RehearsalFailed(f"the child that rehearses ended badly: {last[:300]}") from error
    if not same:
        return Act("evict", f"{gigabytes(size)} left and came back DIFFERENT: do not park in place here", failed=True)
    out, back = size / out_s, size / back_s
    words = (
        f"{gigabytes(size)} left for host memory at {rate(out)} and came back at {rate(back)}, bit for bit; "
        f"{freed_bytes / size:.0%} of them were given back to the system meanwhile"
    )
    origin = f"rehearsed with {gigabytes(size)}, {_today()}"
    return Act("evict", words, {Lane.MEMCPY_OUT: _rate(out, origin), Lane.MEMCPY_BACK: _rate(back, origin)})


def spill_and_back(directory: Path, size_bytes: int) -> Act:
    """A file of random bytes is written to the shared directory, durably, and read back; it is removed.

    Raises:
        RehearsalFailed: the directory does not take it.
    """
    try:
        found = measure_bandwidth(PosixTransport(process_pool()), directory, size_bytes, progress=_in_silence)
    except MemoryError as error:
        raise RehearsalFailed(f"there is no memory for the transfers' buffers: {error}") from error
    if found.error or found.written is None or found.read is None:
        raise RehearsalFailed(f"{directory} does not take a file: {found.error or 'nothing was measured'}")
    if found.wrong_bytes:
        return Act("spill", f"{found.wrong_bytes} bytes came back from {directory} DIFFERENT", failed=True)
    out, back = found.written.gb_per_s * 1e9, found.read.gb_per_s * 1e9
    size = gigabytes(found.read.bytes)
    words = f"{size} were written durably to {directory} at {rate(out)} and read back at {rate(back)}"
    origin = f"rehearsed with {size} in {directory}, {_today()}"
    return Act("spill", words, {Lane.STORAGE_OUT: _rate(out, origin), Lane.STORAGE_BACK: _rate(back, origin)})


def _in_silence(_action: str, _done: int, _total: int) -> None:
    """A few seconds need no bar."""


def _rate(bytes_per_s: float, origin: str) -> Rate:
    return Rate(bytes_per_s, origin, measured=True)


def _today() -> str:
    return time.strftime("%Y-%m-%d")
