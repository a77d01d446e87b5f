"""How fast the directory is: a file of bounded size, written and read back by the transport that loads models.

Why not all of the asked size: on a slow disk a GiB takes minutes. A first slice tells the rate, and the rest is cut to
what fits into the budget of seconds.

Not guaranteed: that it is the storage's own speed. A cache of the server, or of the machine that runs this one, makes
reads look faster (this node's page cache does not: reads are direct); other load makes them slower; and one node alone
does not load a shared filesystem as a pool does. The bytes are random, so that compression does not help.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xxhash

from ebbtide.diagnostics.doctor.findings import Finding, Value, Verdict
from ebbtide.diagnostics.host.deadline import NoAnswer, within
from ebbtide.diagnostics.host.filesystem_probe import PREFIX
from ebbtide.storage.errors import StorageError
from ebbtide.storage.transport.transfer_report import Mode, TransferReport
from ebbtide.storage.transport.transport import CHUNK_BYTES, Range, Transport

BUDGET_S = 10.0  # for each direction; the file is cut to what goes in that time
DEADLINE_S = 60.0  # for one transfer; only a filesystem that hangs, or gives under 20 MB/s, meets it
FIRST_BYTES = 128 << 20  # what tells the rate: 0.04 s at 3 GB/s, 6 s at 20 MB/s
_SHARE_OF_FREE = 2  # the file takes at most half of what is free
_SHIFT = 64  # bytes by which each chunk's contents move on, so that no two 4 KiB blocks are equal
_UNLINK_S = 5.0
_CAVEAT = (
    "one node, now: a cache of the server or of the machine below this one makes it look faster, "
    "other load slower, and it does not tell what many nodes get together"
)

# Called with "write" or "read", the bytes done and the bytes in all; from any thread.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class BandwidthReading:
    """What the transfers did.

    Attributes:
        written: the durable write; None if it failed.
        read: reading it back; None if it failed.
        error: why nothing (more) was measured; empty if all was.
        wrong_bytes: bytes in chunks that came back different.
    """

    written: TransferReport | None = None
    read: TransferReport | None = None
    error: str = ""
    wrong_bytes: int = 0


class _Contents:
    """Bytes of the file: one random block, which each chunk reads from another place on."""

    def __init__(self) -> None:
        self._block = memoryview(os.urandom(CHUNK_BYTES + (CHUNK_BYTES >> 4)))
        self._hashes: dict[int, int] = {}
        self.wrong_bytes = 0
        self._lock = threading.Lock()

    def fill(self, offset: int, memory: memoryview) -> None:
        start = offset % CHUNK_BYTES + offset // CHUNK_BYTES * _SHIFT % (CHUNK_BYTES >> 4)
        memory[:] = self._block[start : start + len(memory)]
        found = xxhash.xxh3_64_intdigest(memory)
        with self._lock:
            self._hashes[offset] = found

    def check(self, offset: int, memory: memoryview) -> None:
        if xxhash.xxh3_64_intdigest(memory) != self._hashes.get(offset):
            with self._lock:
                self.wrong_bytes += len(memory)


def measure_bandwidth(
    transport: Transport, directory: Path, size_bytes: int, *, progress: Progress, budget_s: float = BUDGET_S
) -> BandwidthReading:
    """Write and read a file of at most ``size_bytes`` in ``directory``, and remove it, also when interrupted.

    Args:
        transport: whose speed it is.
        directory: on the filesystem to measure.
        size_bytes: rounded up to whole chunks of 16 MiB.
        progress: told how far it is.
        budget_s: seconds that each direction shall take at most, about.
    """
    path = directory / f"{PREFIX}{os.getpid()}-{os.urandom(4).hex()}.bandwidth"
    contents = _Contents()
    written: TransferReport | None = None
    try:
        total, written = _write(transport, path, size_bytes, contents, progress, budget_s)
        done = _Counter("read", total, progress)

        def consume(offset: int, memory: memoryview) -> None:
            contents.check(offset, memory)
            done.add(len(memory))

        read = transport.read(path, [Range(0, total)], consume, deadline_s=DEADLINE_S)
        return BandwidthReading(written, read, wrong_bytes=contents.wrong_bytes)
    except StorageError as error:
        return BandwidthReading(written, error=str(error), wrong_bytes=contents.wrong_bytes)
    finally:
        with contextlib.suppress(OSError, NoAnswer):
            within(_UNLINK_S, path.unlink)


def _write(
    transport: Transport, path: Path, size_bytes: int, contents: _Contents, progress: Progress, budget_s: float
) -> tuple[int, TransferReport]:
    wanted = -(-size_bytes // CHUNK_BYTES) * CHUNK_BYTES
    first = min(wanted, FIRST_BYTES)
    done = _Counter("write", wanted, progress)

    def fill(offset: int, memory: memoryview) -> None:
        contents.fill(offset, memory)
        done.add(len(memory))

    report = transport.write(path, first, fill, deadline_s=DEADLINE_S)
    total = fitting(wanted, first, report.seconds, budget_s)
    if total > first:
        done.total = total
        rest = [Range(first, total - first)]
        report = report + transport.write(path, total, fill, ranges=rest, deadline_s=DEADLINE_S)
    return total, report


def fitting(wanted_bytes: int, first_bytes: int, first_s: float, budget_s: float) -> int:
    """How much to write in all, in whole chunks: at most what is wanted, and what goes in ``budget_s`` at that rate."""
    if first_bytes * budget_s >= wanted_bytes * first_s:
        return wanted_bytes
    chunks = int(first_bytes * budget_s / first_s) // CHUNK_BYTES
    return max(first_bytes, min(wanted_bytes, chunks * CHUNK_BYTES))


class _Counter:
    def __init__(self, action: str, total: int, progress: Progress) -> None:
        self._action, self.total, self._progress = action, total, progress
        self._done = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
        self._progress(self._action, self._done, self.total)


def too_large(size_bytes: int, free_bytes: int) -> str:
    """Why a file of that size is not written, in words; empty if it may be."""
    if size_bytes * _SHARE_OF_FREE <= free_bytes:
        return ""
    return (
        f"a probe of {size_bytes / 1e9:.2f} GB would take more than half of the {free_bytes / 1e9:.2f} GB that are free"
    )


def judge_bandwidth(bandwidth: BandwidthReading, expect_gbps: float | None) -> list[Finding]:
    """Speeds of both directions; ``expect_gbps`` (10^9 bytes/s) is held against reading, which loads wait for."""
    findings = []
    if bandwidth.error or bandwidth.wrong_bytes:
        what = bandwidth.error or f"{bandwidth.wrong_bytes} bytes came back different from what was written"
        why, remedy = "models and checkpoints would fail in the same way", "look at dmesg and at the storage server"
        findings.append(Finding("bandwidth.probe", Verdict.MISSING, what, why, remedy, broken=True))
    if bandwidth.written is not None:
        what, values = _speed("written durably", bandwidth.written)
        findings.append(Finding("bandwidth.write", Verdict.OK, what, values=values))
    if bandwidth.read is not None:
        findings.append(_read(bandwidth.read, expect_gbps))
    return findings


def _speed(what: str, report: TransferReport) -> tuple[str, dict[str, Value]]:
    mode = report.mode.value if report.mode else "nothing"
    why = f"; {report.why_not_better}" if report.why_not_better else ""
    text = f"{report.gb_per_s:.2f} GB/s {what} ({report.bytes / 1e9:.2f} GB in {report.seconds:.2f} s, {mode}{why})"
    values: dict[str, Value] = {
        "gb_per_s": round(report.gb_per_s, 3),
        "bytes": report.bytes,
        "seconds": round(report.seconds, 3),
        "mode": mode,
        "retries": report.retries,
    }
    return text, values


def _read(report: TransferReport, expect_gbps: float | None) -> Finding:
    what, values = _speed("read", report)
    values["expected_gb_per_s"] = expect_gbps
    if expect_gbps is None:
        return Finding("bandwidth.read", Verdict.OK, what, _CAVEAT, values=values)
    what = f"{what}, of {expect_gbps:g} GB/s expected"
    if report.gb_per_s >= expect_gbps:
        return Finding("bandwidth.read", Verdict.OK, what, _CAVEAT, values=values)
    remedy = "try again when nothing else runs, and with a larger --probe-bytes; then look at the findings about fs,"
    remedy += " rdma and memory, and compare with fio"
    if report.mode is Mode.BUFFERED:
        remedy = "see fs.direct: reads went through the page cache"
    return Finding("bandwidth.read", Verdict.LIMITED, what, _CAVEAT, remedy, values)
