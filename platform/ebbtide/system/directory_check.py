"""Can a directory be written to, now? A small file is written, synced and removed again, under a deadline.

The directory itself is not created: asking changes nothing. When it does not exist, the nearest one above it that does
is asked instead. What is *not* known afterwards: whether other nodes see the same directory.
"""

import os
import queue
import threading
from pathlib import Path
from uuid import uuid4

MIN_FREE_BYTES = 256 * 2**20  # a ledger of weeks and the checkpoints of a small model
DEADLINE_S = 10.0  # a network filesystem that is only slow answers within it; a hung one never does
PROBE_BYTES = 4096  # one block: too small to be kept inside an inode


def directory_fault(path: Path, *, min_free_bytes: int = MIN_FREE_BYTES, deadline_s: float = DEADLINE_S) -> str | None:
    """Why ``path`` cannot serve as a shared directory, or None."""
    answers: queue.Queue[str | None] = queue.Queue(1)
    # A thread in a hung system call can never be ended; as a daemon it does not keep this process alive.
    threading.Thread(target=lambda: answers.put(_probe(path, min_free_bytes)), daemon=True).start()
    try:
        return answers.get(timeout=deadline_s)
    except queue.Empty:
        return f"{path} did not answer within {deadline_s:g} s: is its filesystem hung?"


def _probe(path: Path, min_free_bytes: int) -> str | None:
    doing, there = "looked at", path
    try:
        while not os.path.lexists(there) and there != there.parent:
            there = there.parent
        if not there.is_dir():
            return f"{there} is no directory"
        doing = "written to" if there == path else "created"
        probe = there / f".ebbtide-probe-{uuid4().hex}"
        try:
            _write_synced(probe)
        finally:
            probe.unlink(missing_ok=True)
        doing = "measured"
        free_bytes = _free_bytes(there)
    except OSError as error:
        return f"{path} cannot be {doing}: {os.strerror(error.errno or 0)} (errno {error.errno}, in {there})"
    if free_bytes < min_free_bytes:
        return f"{path} has {free_bytes >> 20} MiB free: at least {min_free_bytes >> 20} MiB are needed"
    return None


def _write_synced(probe: Path) -> None:
    with probe.open("xb", buffering=0) as file:
        file.write(bytes(PROBE_BYTES))
        os.fsync(file.fileno())


def _free_bytes(directory: Path) -> int:
    state = os.statvfs(directory)
    return state.f_bavail * state.f_frsize
