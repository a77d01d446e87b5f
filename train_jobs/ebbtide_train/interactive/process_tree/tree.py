"""The process tree of a session: who belongs to it, what it has used, and its end.

The tree's first process, the leader, is a subreaper: whatever its descendants do (fork twice, leave the session), they
stay below it. A process that was once seen in the tree belongs to it for good, and so does one of the leader's
process session: that covers those that are left after the leader itself was killed.

Processes are named by pid and start time, so that a reused pid is never taken for one of the tree. Source: proc(5),
prctl(2) PR_SET_CHILD_SUBREAPER.

Not guaranteed: that a process is found which left the session and was born since the last look, when somebody kills
the leader at the same moment. No look is a snapshot: it is repeated until nothing new is found.
"""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from ebbtide.system.process import is_alive, kill_exactly, started_ticks

_PPID, _SESSION, _UTIME, _START = 4 - 3, 6 - 3, 14 - 3, 22 - 3  # fields of proc(5) after the command's closing bracket
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Process:
    """One process; the start time is in clock ticks since boot."""

    pid: int
    started: int

    def alive(self) -> bool:
        """Whether it can still hold memory."""
        return is_alive(self.pid, self.started)


@dataclass(frozen=True, slots=True)
class _Row:
    process: Process
    parent: int
    session: int
    cpu_s: float  # its own and that of its children which have ended and were waited for


class Tree:
    """All processes of one session on this node.

    Args:
        leader: the first of them.
        above: a process whose children all belong to the tree, and which does not itself: its watchdog.
    """

    def __init__(self, leader: Process, *, above: int | None = None) -> None:
        self.leader = leader
        self._above = above
        self._known: set[Process] = {leader}

    def look(self) -> frozenset[Process]:
        """Those that live now."""
        self._rows()
        return frozenset(self._known)

    def cpu_s(self) -> float:
        """CPU seconds used so far. Falls a little when a process is killed whose parent never waits for it."""
        return sum(row.cpu_s for row in self._rows())

    def gone(self) -> bool:
        """Whether no process of it can hold memory any more."""
        return not self.look()

    def terminate(self) -> None:
        """Ask every process but the leader to end (SIGTERM); the leader ends when its children have."""
        for process in self.look() - {self.leader}:
            _signal(process, signal.SIGTERM)

    def wait_gone(self, patience_s: float) -> bool:
        """Wait until nothing is left; False if something is after ``patience_s`` seconds."""
        deadline_s = time.monotonic() + patience_s
        while not self.gone():
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_POLL_S)
        return True

    def kill(self, patience_s: float) -> bool:
        """SIGKILL until nothing is left. False: something stays.

        The leader is stopped first and killed last: so the others stay findable below it, and it does not write down
        our kill as the command's own end.
        """
        _signal(self.leader, signal.SIGSTOP)
        deadline_s = time.monotonic() + patience_s
        while left := self.look():
            for process in (left - {self.leader}) or left:
                kill_exactly(process.pid, process.started)
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_POLL_S)
        return True

    def _rows(self) -> list[_Row]:
        """The rows of the members; takes in new ones and forgets the dead."""
        self._known = {process for process in self._known if process.alive()}
        rows = [row for row in _all_rows() if row.process.started >= self.leader.started]  # no member is older
        # The number of a process session is not given away while anybody is in it. If a stranger has it, nobody is.
        reused = any(row.process.pid == self.leader.pid and row.process != self.leader for row in rows)
        session = None if reused else self.leader.pid
        pids = {process.pid for process in self._known}
        if self._above is not None:
            pids.add(self._above)
        found, rest = [], rows
        while rest:
            mine = [r for r in rest if r.process in self._known or r.parent in pids or r.session == session]
            if not mine:
                break
            found += mine
            pids |= {row.process.pid for row in mine}
            rest = [row for row in rest if row not in mine]
        self._known |= {row.process for row in found if row.process.alive()}
        return found


def this_process(pid: int) -> Process | None:
    """The process that has this pid now."""
    started = started_ticks(pid)
    return None if started is None else Process(pid, started)


def _signal(process: Process, number: int) -> None:
    try:
        target = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        if process.alive():
            signal.pidfd_send_signal(target, number)
    except (ProcessLookupError, PermissionError):
        pass
    finally:
        os.close(target)


def _all_rows() -> list[_Row]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and (row := _row(int(name))) is not None:
            found.append(row)
    return found


def _row(pid: int) -> _Row | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    cpu_s = sum(int(field) for field in fields[_UTIME : _UTIME + 4]) / _TICKS_PER_S
    return _Row(Process(pid, int(fields[_START])), int(fields[_PPID]), int(fields[_SESSION]), cpu_s)
