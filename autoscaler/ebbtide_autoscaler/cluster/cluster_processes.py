"""Which processes belong to a cluster that we started, and their end, each by pid and start time.

Four marks, since none has all: a variable in the environment that all of a cluster inherit (setproctitle, which vLLM
calls, writes over it), output that goes to a file in the temp directory (Ray's and its workers' does), the directory in
an option of the command line (not in that of Ray's client server), and the process tree (all that `ray start` began
has lost its parent). A person's ``tail -f`` of a log there has none of them.

Not guaranteed: a process that left its parent, changed its environment and sends its output elsewhere.
"""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress

import psutil

from ebbtide.system.process import is_alive, started_ticks

MARK = "EBBTIDE_CLUSTER"
"""The variable: the cluster's temp directory. No shell has it that `ebbtide env` prepared, only what a cluster runs."""

STOP_S = 5.0  # from SIGTERM to SIGKILL; a raylet with --block ignored SIGTERM for 20 s (docs/origins.md)
ROUNDS = 5  # what is ended may start something just before; each round finds what the one before could not know

Known = tuple[int, int]
"""(pid, start time)"""


def processes_of(temp_dir: str) -> tuple[Known, ...]:
    """All living processes with a mark that begins with ``temp_dir``; this one and those above it are left out."""
    found = []
    for process in psutil.process_iter(["pid"]):
        if _is_marked(process, temp_dir):
            started = started_ticks(process.pid)
            if started is not None and is_alive(process.pid, started):
                found.append((process.pid, started))
    ourselves = _lineage()
    return tuple(known for known in found if known[0] not in ourselves)


def _is_marked(process: psutil.Process, temp_dir: str) -> bool:
    with suppress(psutil.Error, OSError):  # another user's, or gone
        if process.environ().get(MARK, "").startswith(temp_dir):
            return True
    with suppress(psutil.Error, OSError):
        if any(f"={temp_dir}" in word for word in process.cmdline()):
            return True
    with suppress(OSError):
        return any(os.readlink(f"/proc/{process.pid}/fd/{number}").startswith(temp_dir) for number in (1, 2))
    return False


def _lineage() -> set[int]:
    """This process and those above it: a command may be run in a session of the very pool that it takes down."""
    with suppress(psutil.Error):
        return {os.getpid(), *(process.pid for process in psutil.Process().parents())}
    return {os.getpid()}


def end_all(temp_dir: str) -> int:
    """End every process of the cluster, again until none is found; gives how many had to be killed."""
    killed = 0
    for _ in range(ROUNDS):
        found = processes_of(temp_dir)
        if not found:
            break
        killed += end(found)
    return killed


def end(known: Iterable[Known]) -> int:
    """End processes given by (pid, start time), and all their children: first asked, then killed; gives how many."""
    ours = {pid for pid, started in known if started_ticks(pid) == started}
    processes: dict[int, psutil.Process] = {}
    for pid in ours:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(pid)
            processes.update({child.pid: child for child in [parent, *parent.children(recursive=True)]})
    processes.pop(os.getpid(), None)
    left = {(pid, started) for pid in processes if (started := started_ticks(pid)) is not None}
    for number in (signal.SIGTERM, signal.SIGKILL):
        killed = len(left) if number is signal.SIGKILL else 0
        for pid, _ in left:
            with suppress(psutil.Error):
                processes[pid].send_signal(number)  # never to a later process of the same number
        deadline_s = time.monotonic() + STOP_S
        while left and time.monotonic() < deadline_s:
            left = {one for one in left if is_alive(*one)}  # a zombie that its parent leaves lying is none
            time.sleep(0.02 if left else 0)
    return killed
