"""One `up` or `down` at a time for a pool on this machine: each looks at what runs, and ends what it finds left over.

The lock is flock's, so it falls with its process, however that ends. Two machines are told apart by the mark on the
cluster (:mod:`.ownership`).
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebbtide.system.process import command_of
from ebbtide.system.runtime_dir import runtime_dir

LOCK = "lifecycle.lock"


class Busy(RuntimeError):
    """Another process brings the pool up or takes it down; nothing was changed. The message names it."""


@contextmanager
def alone(pool: str) -> Iterator[None]:
    """Hold the pool's lock; where its folder cannot be written there is none, and what comes next will say so.

    Raises:
        Busy: another process holds it.
    """
    descriptor = _open(runtime_dir(pool))
    try:
        if descriptor is not None:
            _take(descriptor, pool)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open(folder: Path) -> int | None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None


def _take(descriptor: int, pool: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
        who = f"process {text} ({command_of(int(text))})" if text.isdigit() else "another process"
        raise Busy(
            f"{who} is bringing the pool {pool} up or taking it down: wait until it has ended, or end it (kill "
            f"{text or 'PID'}), and try again"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
