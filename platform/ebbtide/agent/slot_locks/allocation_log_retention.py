"""Which allocation logs are kept: they are evidence, and every process that ever had a slot leaves one.

The newest always stay, and so does whatever somebody wrote within the last day. Where that is too much, the oldest go,
but none in which there is a word of the last two hours, and none of a process that may have its slot now: such a one
writes ten times a second, and who may is asked of those who know (the node agents), not of the files.

The directory is on the shared filesystem: what it lists may be gone already, its times may come from a cache, and it
may refuse to remove. Each file is looked at again before it goes, and what fails is left for the next time.

Not guaranteed: a bound on the number while more than ``FILES_MAX`` processes take slots within two hours.
"""

import logging
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

KEPT_FILES = 1000  # 1 MB, and as many processes as a small pool starts in a week
KEPT_S = 86_400.0  # whoever asks what went wrong yesterday finds it
FILES_MAX = 10_000  # a listing with its times takes 0.1 s here, and some seconds on a filesystem far away
BYTES_MAX = 64 << 20  # ten times what so many files have as a rule
EVIDENCE_S = 7200.0  # never less than this
_NAME = re.compile(r"(?P<node>.+)-(?P<pid>\d+)-(?P<started>\d+)-(?P<index>\d+)(?:\.old)?\.jsonl")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Writer:
    """Who wrote a log, by its name: node (its first 8 characters), slot, pid and start time in ticks since boot."""

    node: str
    index: int
    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file; ``last_s``: when something was written there last, in seconds since 1970."""

    name: str
    writer: Writer
    size_bytes: int
    last_s: float


def writer_of(name: str) -> Writer | None:
    """Who wrote the log of this name; None: it is no allocation log."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return Writer(found["node"], int(found["index"]), int(found["pid"]), int(found["started"]))


def to_remove(files: Iterable[LogFile], now_s: float, may_hold: Callable[[Writer], bool]) -> list[LogFile]:
    """The logs that are to go, oldest first. Pure.

    Args:
        files: all that there are.
        now_s: seconds since 1970.
        may_hold: whether the process may have its slot now.
    """
    newest_first = sorted(files, key=lambda file: (file.last_s, file.name), reverse=True)
    going, kept, kept_bytes = [], 0, 0
    for place, file in enumerate(newest_first):
        age_s = now_s - file.last_s
        old = place >= KEPT_FILES and age_s > KEPT_S
        too_much = kept >= FILES_MAX or kept_bytes + file.size_bytes > BYTES_MAX
        if (old or too_much) and age_s > EVIDENCE_S and not may_hold(file.writer):
            going.append(file)
        else:
            kept += 1
            kept_bytes += file.size_bytes
    return going[::-1]


def sweep(folder: Path, now_s: float, may_hold: Callable[[Writer], bool]) -> int:
    """Remove the logs that are to go; how many those were. Blocks for as long as the filesystem does.

    Raises:
        OSError: the folder cannot be read; nothing was removed.
    """
    removed = 0
    for file in to_remove(_listed(folder), now_s, may_hold):
        path = folder / file.name
        try:
            if path.stat().st_mtime > file.last_s:
                continue  # somebody has written there since, or the listing was out of date
            path.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            _log.warning("allocation logs are too many, and %s cannot be removed: %s", path, error.strerror)
            break  # a directory that refuses one refuses all
        removed += 1
    return removed


def _listed(folder: Path) -> list[LogFile]:
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                writer = writer_of(entry.name)
                if writer is None:
                    continue
                try:
                    there = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                found.append(LogFile(entry.name, writer, there.st_size, there.st_mtime))
    except FileNotFoundError:
        return []  # nobody has had a slot yet
    return found
