"""Of which sources and on which machine something was measured. The standard library is enough for it."""

import os
import platform
import subprocess
from pathlib import Path

SOURCES = Path(__file__).parent
ITS_RESULTS = "benchmarks/results"  # from the top of the repository
RESULTS = SOURCES.parent / ITS_RESULTS
DIRTY = "-dirty"
NOTED = SOURCES / "commit.txt"  # where the sources went without their repository: `benchmarks.gpu.bundle`
CPUINFO = Path("/proc/cpuinfo")


def commit(where: Path = SOURCES) -> str:
    """Of the sources; ``-dirty`` where files that git tracks differ from it: then the same cannot be measured again.

    Results do not count: each case changes its own, and they are no sources. Without a repository: as it was noted.
    """
    try:
        head = _git(where, "rev-parse", "--short=12", "HEAD")
        changed = _git(
            where, "status", "--porcelain", "--untracked-files=no", "--", ":/", f":(top,exclude){ITS_RESULTS}"
        )
        return head + (DIRTY if changed else "")
    except (OSError, subprocess.SubprocessError):
        return NOTED.read_text().strip() if NOTED.exists() else "unknown"


def as_measured(loaded: str, now: str) -> str:
    """The commit of what was measured: dirty too if the tree did not stay as it was when the sources were loaded.

    Commits of results alone are no change: a long run commits what it has, and goes on.
    """
    return loaded if now == loaded or loaded.endswith(DIRTY) or _only_results(loaded, now) else loaded + DIRTY


def hardware() -> str:
    """Cores and processor."""
    return f"{os.cpu_count()} CPU cores, {processor(CPUINFO.read_text())}, no GPU"


def processor(cpuinfo: str) -> str:
    """The model of the processor, by proc(5), ``/proc/cpuinfo``, and its architecture; that alone if none is told."""
    for line in cpuinfo.splitlines():
        name, _, model = line.partition(":")
        if name.strip() == "model name":
            return f"{model.strip()} ({platform.machine()})"
    return platform.machine()


def _only_results(before: str, now: str) -> bool:
    if now.endswith(DIRTY):
        return False
    try:
        return not _git(SOURCES, "diff", "--name-only", before, now, "--", ":/", f":(top,exclude){ITS_RESULTS}")
    except (OSError, subprocess.SubprocessError):
        return False


def _git(where: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=where, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()
