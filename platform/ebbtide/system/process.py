"""Who a process is, whether it still lives, and how to die with one's parent.

A pid alone names nobody: it is reused. A pid with its start time (clock ticks since boot) is unique until the next
boot, and the boot id tells boots apart. Source: proc(5), pidfd_open(2).

Not guaranteed: :func:`exit_with_parent` runs in a Python thread, so a child that never gives up the GIL outlives its
parent for as long as it keeps it. (PR_SET_PDEATHSIG would not need the GIL, but fires when the parent's *thread*
ends, and Ray starts children from threads that come and go.)
"""

import os
import select
import signal
import threading
import time
from pathlib import Path

_START_FIELD = 22 - 3  # proc(5): starttime is field 22; fields from 3 on follow the command's closing bracket
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The id of this boot of this machine; the same in all containers on it."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


def started_ticks(pid: int) -> int | None:
    """Start time of process ``pid`` in clock ticks since boot, or None if there is no such process."""
    fields = _stat_fields(pid)
    return int(fields[_START_FIELD]) if fields else None


def is_alive(pid: int, started: int) -> bool:
    """Whether the very process that had ``pid`` and this start time can still hold memory.

    A zombie holds nothing, except one whose other threads have not ended yet.
    """
    fields = _stat_fields(pid)
    if not fields or int(fields[_START_FIELD]) != started:
        return False
    if fields[0] not in ("Z", "X"):
        return True
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def command_of(pid: int) -> str:
    """What process ``pid`` calls itself, 60 characters at most; "" if there is no such process."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
    # Ray's workers set their title ("ray::Class.method"), which then is the whole command line.
    return words[0][:60] if words[0].startswith("ray::") else name[:60]


def exit_with_parent(pid: int, started: int) -> threading.Thread:
    """Kill this process (SIGKILL, no clean-up) as soon as process ``pid`` with start time ``started`` is gone.

    Waits in a daemon thread; if that process is gone already, this call does not return.

    Raises:
        OSError: this process may have no more file descriptors.
    """
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        _die()
    # The pidfd is opened first and checked then: now it cannot come to mean a later process of the same number.
    if not is_alive(pid, started):
        _die()
    thread = threading.Thread(target=_die_after, args=(watched,), name="exit-with-parent", daemon=True)
    thread.start()
    return thread


def kill_exactly(pid: int, started: int) -> bool:
    """SIGKILL the process with this pid and start time; False if it is gone, and then nobody gets a signal."""
    if pid <= 1:
        return False
    try:
        target = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not is_alive(pid, started):
            return False
        signal.pidfd_send_signal(target, signal.SIGKILL)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(target)


def await_end(pid: int, started: int, *, patience_s: float) -> bool:
    """Wait until that process is gone, with its ports and locks; False if it lives on after ``patience_s`` seconds."""
    deadline_s = time.monotonic() + patience_s
    while is_alive(pid, started):
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(0.01)
    return True


def _stat_fields(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # The command's name may hold spaces and brackets: what counts begins after the last closing one.
    return text.rpartition(")")[2].split()


def _die_after(watched: int) -> None:
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    while not poll.poll():
        pass
    _die()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
