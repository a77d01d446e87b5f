"""All that this process has started, to the last descendant, and its end.

A process that leaves its session or loses its parent would outlive the one that started it. This process adopts such
orphans instead (prctl(2), ``PR_SET_CHILD_SUBREAPER``), so that each stays its descendant and can be ended by pid.
"""

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
LOOK_S = 0.02
ROUNDS = 50
ROUND_S = 0.1  # a killed process is gone within milliseconds, unless the kernel still writes for it


def adopt_orphans(*, adopt: bool = True) -> None:
    """From now on orphans among the descendants become children of this process; without ``adopt``: no more."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Adopts them meanwhile. A process that adopted them and waited for none would keep their zombies, and pids."""
    adopt_orphans()
    try:
        yield
    finally:
        adopt_orphans(adopt=False)


def wait_for(pid: int, limit_s: float) -> int | None:
    """The exit code of a child, negative for a signal; None if it has not ended within ``limit_s``.

    Orphans that end meanwhile are reaped as init would have done: a test that waits for one to vanish must see it go.
    """
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            done, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if done == pid:
            return os.waitstatus_to_exitcode(status)
        if not done:
            if time.monotonic() >= deadline_s:
                return None
            time.sleep(LOOK_S)


def descendants() -> list[psutil.Process]:
    """All that live; zombies are reaped, and do not count."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end_descendants(*, grace_s: float = 0.0) -> list[str]:
    """Ends all descendants: with ``grace_s`` by SIGTERM first, then by SIGKILL.

    A process that is killed can have started another one a moment before; so it is done until none is left. Only for
    a process that waits for no child of its own meanwhile: exit codes of all children are taken.

    Returns:
        The commands of those that had to be killed, each as ``pid command``.
    """
    if grace_s and (there := descendants()):
        _send(there, signal.SIGTERM)
        deadline_s = time.monotonic() + grace_s
        while descendants() and time.monotonic() < deadline_s:
            time.sleep(ROUND_S)
    killed: dict[int, str] = {}
    for _ in range(ROUNDS):
        there = descendants()
        if not there:
            break
        for process in there:
            with suppress(psutil.Error):
                killed[process.pid] = f"{process.pid} {' '.join(process.cmdline())[:120] or process.name()}"
        _send(there, signal.SIGKILL)
        time.sleep(ROUND_S)
    return list(killed.values())


def _send(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
