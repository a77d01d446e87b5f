"""What a contender tells of one run, and how it is measured inside its process."""

import json
import os
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

GENTLY = "EBBTIDE_BENCH_GENTLY"  # in the environment: forget no pages of anybody else
CLEAR_PEAK = "5"  # proc(5), /proc/self/clear_refs: the peak of the resident size begins anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run of one contender."""

    name: str
    size_bytes: int
    seconds: float
    cpu_s: float
    peak_bytes: int  # by how much the resident size grew at most
    peak_rss_bytes: int  # how large it was at most; pages of mapped files count as well
    modes: dict[str, int] = field(default_factory=dict)  # how ours went, in bytes
    wrong: str = ""  # what is wrong with what came; empty if every byte is right

    def to_line(self) -> str:
        """For the parent."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> "Outcome":
        """The other way round."""
        return cls(**json.loads(line))

    @property
    def gb_per_s(self) -> float:
        """Bytes of content by time."""
        return self.size_bytes / self.seconds / 1e9

    @property
    def cpu_s_per_gb(self) -> float:
        """Of all threads of the process."""
        return self.cpu_s / self.size_bytes * 1e9


def measured(work: Callable[[], T]) -> tuple[T, dict[str, float]]:
    """Run ``work``; its result, and ``seconds``, ``cpu_s``, ``peak_bytes`` and ``peak_rss_bytes`` of it."""
    Path("/proc/self/clear_refs").write_text(CLEAR_PEAK)
    before = _resident("VmRSS")
    cpu_s, began_s = _cpu_s(), time.perf_counter()
    found = work()
    seconds = time.perf_counter() - began_s
    cpu_s, peak = _cpu_s() - cpu_s, _resident("VmHWM")
    return found, {"seconds": seconds, "cpu_s": cpu_s, "peak_bytes": max(0, peak - before), "peak_rss_bytes": peak}


def drop_cached(paths: list[Path]) -> None:
    """Have the kernel forget the pages of these files; of all, where that is allowed and nobody asked to be gentle."""
    if not os.environ.get(GENTLY):
        os.sync()
        try:
            Path("/proc/sys/vm/drop_caches").write_text("3")
            return
        except OSError:
            pass
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(fd)  # pages that are not written yet stay
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _resident(field_name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field_name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"this kernel does not tell {field_name}")
