"""What each row of a result carries: which commit, machine and code it is of, and when it was measured.

A result is a JSON file; its ``stamps`` has a stamp for each of its cases. A case is the unit of measuring again: all
its competitors are run together, so no figure is compared with one of another run.
"""

import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evidence.digest import digest_of

SOURCES = Path(__file__).parent
RESULTS = SOURCES.parent / "benchmarks" / "results"
DIRTY = "-dirty"
ITS_RESULTS = "benchmarks/results"  # from the top of the repository
CPUINFO = Path("/proc/cpuinfo")
KEY = "stamps"


@dataclass(frozen=True, slots=True)
class Stamp:
    """Of one case.

    Attributes:
        commit: of the sources; ``-dirty`` where files that git tracks differed from it.
        date: when the case began, local time, ``YYYY-mm-dd HH:MM``.
        seconds: how long it took.
        processes: the kinds of processes that it stands on (`evidence.processes`).
        digest: of the product code behind them (`evidence.digest`).
    """

    commit: str
    hardware: str
    date: str
    seconds: float
    processes: tuple[str, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class Begun:
    """What must be noted before a case begins: the time, and the code as it is then."""

    at_s: float
    commit: str
    processes: tuple[str, ...]
    digest: str

    @classmethod
    def now(cls, processes: Sequence[str]) -> "Begun":
        """A case begins."""
        names = tuple(sorted(processes))
        return cls(time.time(), commit(), names, digest_of(names))

    def ended(self) -> Stamp:
        """The case has ended."""
        date = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.at_s))
        seconds = round(time.time() - self.at_s, 1)
        return Stamp(as_measured(self.commit, commit()), hardware(), date, seconds, self.processes, self.digest)


def stamps_of(document: Mapping[str, Any] | None) -> dict[str, Stamp]:
    """Of a result, by case; none, if it is older than stamps are."""
    found = (document or {}).get(KEY, {})
    return {case: Stamp(**{**one, "processes": tuple(one["processes"])}) for case, one in found.items()}


def with_stamps(document: Mapping[str, Any], stamps: Mapping[str, Stamp]) -> dict[str, Any]:
    """The result with these stamps instead of what it has."""
    return {**document, KEY: {case: asdict(one) | {"processes": list(one.processes)} for case, one in stamps.items()}}


def load(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """A result; nothing, if there is none yet."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def commit(where: Path = SOURCES) -> str:
    """Of the sources; ``-dirty`` where files that git tracks differ from it: then nobody can measure the same again.

    Results do not count: each case changes its own, and they are no sources.
    """
    try:
        head = _git(where, "rev-parse", "--short=12", "HEAD")
        changed = _git(
            where, "status", "--porcelain", "--untracked-files=no", "--", ":/", f":(top,exclude){ITS_RESULTS}"
        )
        return head + (DIRTY if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


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
