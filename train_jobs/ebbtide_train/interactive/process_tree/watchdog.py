"""The watchdog of a session: shares the supervisor's slot lock and ends the tree when the supervisor is gone.

Its own process, and no child of the supervisor's: Ray kills the children of a worker that it kills. It leaves when no
process of the tree is left, and never before: so the slot lock, which it shares, proves that the slot is free.

Started by ``watchdog_client``. It hears of the supervisor's death by the end of their socket. Messages on it are JSON,
a packet each: first one from here, ``{"pid", "started"}`` of the leader or ``{"error"}``; then to here, of a tree that
is revived, ``{"watch": {"pid", "started"}}``, or ``{"dismiss": true}`` if nothing came of it. One that comes with a
descriptor replaces the shared lock.

If supervisor and watchdog are killed together, the tree lives until its leader notices, half a second at most (see
``leader``); until then the lock's file speaks for it (see ``ebbtide.agent.slot_locks.lock_content``).
"""

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from ebbtide_train.interactive.process_tree.leader import PR_SET_CHILD_SUBREAPER
from ebbtide_train.interactive.process_tree.tree import Process, Tree, this_process

LOOK_S = 0.2  # between looks at the tree: how long a free slot may be taken for held
# Between looks for one that is revived when nobody keeps it any more: a tenth of a second later its own leader may have
# ended it, and who misses it holds the slot for as long as a revival may take.
EXPECT_LOOK_S = 0.01
REAP_S = 5.0  # processes that were killed end within milliseconds
LEADER = Path(__file__).with_name("leader.py")
MESSAGE_BYTES = 4096


class Watchdog:
    """``expected``: pid and least start time of a tree that is being revived, which may take ``within_s``."""

    def __init__(
        self, control: socket.socket, lock: int, tree: Tree | None, expected: Process | None, within_s: float = 0.0
    ) -> None:
        self._control, self._lock = control, lock
        self._tree, self._expected, self._within_s = tree, expected, within_s

    def serve(self) -> None:
        """Until the tree is gone, by itself or, once the supervisor is, by our hand."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while poll.poll(LOOK_S * 1000) == [] or self._heard():
            _reap()
            if self._tree is not None and self._tree.gone():
                return _reap_all()
        waited_s, waits = 0.0, self._tree is None
        while self._tree is None and self._expected is not None and waited_s < self._within_s:
            self._tree = self._revived()
            select.select([], [], [], EXPECT_LOOK_S)
            waited_s += EXPECT_LOOK_S
        # For ever: whoever takes a process for dead that cannot be killed gives its slot to another.
        while self._tree is not None and not self._tree.kill(patience_s=1.0):
            _reap()
        if waits and self._tree is not None:
            os.ftruncate(self._lock, 0)  # what was expected has come and is gone: nobody needs to wait for it any more
        return _reap_all()

    def _heard(self) -> bool:
        """Take in one message; False: the supervisor is gone."""
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
        except OSError:
            return False
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
            os.close(self._lock)
            self._lock = descriptor
        if not packet:
            return False
        message = json.loads(packet)
        self._expected = None if "dismiss" in message else self._expected
        if "watch" in message:
            self._tree = Tree(Process(**message["watch"]), above=os.getpid())
        return True

    def _revived(self) -> Tree | None:
        if self._expected is None:
            return None
        there = this_process(self._expected.pid)
        return None if there is None or there.started < self._expected.started else Tree(there)


def start_leader(folder: Path) -> Process:
    """Start the tree of ``folder``: a process session of its own, with no descriptor of ours but standard input, where
    it waits for the supervisor's word.

    Raises:
        OSError: it cannot be started.
    """
    output = os.open(folder / "output.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        started = subprocess.Popen(
            [sys.executable, "-I", "-S", str(LEADER), str(folder)],
            stdout=output,
            stderr=output,
            cwd="/",
            env={},
            close_fds=True,
            start_new_session=True,
        )
    finally:
        os.close(output)
    found = this_process(started.pid)
    assert found is not None, "a child stays until it is waited for"
    started.returncode = 0  # `_reap` waits for it: Popen shall not complain
    return found


def main(control_fd: int, lock_fd: int, folder: Path, expected: str) -> None:
    """Leave the supervisor's family, start the tree unless it is ``expected`` (``PID:TICKS:SECONDS``), and guard it."""
    for descriptor in (control_fd, lock_fd):
        os.set_inheritable(descriptor, False)
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    control = socket.socket(fileno=control_fd)
    if expected:
        pid, ticks, within_s = expected.split(":")
        watchdog = Watchdog(control, lock_fd, None, Process(int(pid), int(ticks)), float(within_s))
        said = {"pid": os.getpid()}
    else:
        try:
            leader = start_leader(folder)
        except OSError as error:
            control.sendall(json.dumps({"error": str(error)}).encode())
            return
        watchdog = Watchdog(control, lock_fd, Tree(leader, above=os.getpid()), None)
        said = {"pid": leader.pid, "started": leader.started}
    with suppress(OSError):  # a supervisor that is gone already is noticed below
        control.sendall(json.dumps(said).encode())
    watchdog.serve()


def _reap() -> bool:
    """Wait for those that have ended; whether some have not."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _reap_all() -> None:
    """A dead process keeps its pid until somebody waits for it, and a revival needs exactly that pid. Where nobody
    adopts the dead (a container whose first process does not wait), it must be done here."""
    deadline_s = time.monotonic() + REAP_S
    while _reap() and time.monotonic() < deadline_s:
        time.sleep(0.005)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
