"""The supervisor's end of the watchdog: starts one, and sees whether it lives.

Not guaranteed: that somebody notices at once who kills the watchdog; the supervisor looks ten times a second.
"""

import json
import os
import select
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict

from ebbtide_train.interactive.errors import CannotStart
from ebbtide_train.interactive.process_tree.tree import Process
from ebbtide_train.interactive.session_folder import SessionFolder

START_S = 30.0  # a Python process with a few imports: 0.1 s, on a machine that swaps a hundred times that
_MESSAGE_BYTES = 4096


class WatchdogClient:
    """One watchdog. Its life is that of one tree: from its start, or revival, to its end or its image."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    @classmethod
    def start(cls, place: SessionFolder, lock: int, waits: int) -> tuple["WatchdogClient", Process]:
        """Start the tree of ``place`` under a watchdog that shares descriptor ``lock``; gives the tree's leader too.

        The leader runs nothing before it reads `leader.GO` from descriptor ``waits``, and ends where that ends.

        Raises:
            CannotStart: neither runs.
        """
        post, said = cls._begin(place, lock, "", stdin=waits)
        return post, Process(said["pid"], said["started"])

    @classmethod
    def await_revival(
        cls, place: SessionFolder, lock: int, *, pid: int, since: int, within_s: float
    ) -> "WatchdogClient":
        """A watchdog for a tree that is about to be revived, whose leader will have ``pid``; ``since`` in ticks.

        Args:
            within_s: how long that may take; the watchdog waits for it even if the supervisor is gone.

        Raises:
            CannotStart: it does not run.
        """
        return cls._begin(place, lock, f"{pid}:{since}:{within_s}")[0]

    @classmethod
    def _begin(
        cls, place: SessionFolder, lock: int, expected: str, *, stdin: int = subprocess.DEVNULL
    ) -> tuple["WatchdogClient", dict[str, int]]:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log = os.open(place.keeper_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        module = "ebbtide_train.interactive.process_tree.watchdog"
        try:
            subprocess.run(
                [sys.executable, "-m", module, str(theirs.fileno()), str(lock), str(place.folder), expected],
                stdin=stdin,
                stdout=log,
                stderr=log,
                cwd="/",
                pass_fds=(theirs.fileno(), lock),
                check=True,
                timeout=START_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            mine.close()
            raise CannotStart(f"its watchdog cannot be started: {error}; see {place.keeper_log}") from error
        finally:
            theirs.close()
            os.close(log)
        said = _first_word(mine)
        if "pid" not in said:
            mine.close()
            raise CannotStart(f"it cannot be started: {said.get('error') or f'see {place.keeper_log}'}")
        return cls(mine), said

    def watch(self, leader: Process) -> None:
        """The tree has been revived: this is its leader."""
        with suppress(OSError):  # it is gone: the supervisor's next look says so
            self._control.sendall(json.dumps({"watch": asdict(leader)}).encode())

    def dismiss(self) -> None:
        """Nothing was revived: whatever gets that pid from now on is not the watchdog's."""
        with suppress(OSError):
            self._control.sendall(json.dumps({"dismiss": True}).encode())

    def share(self, lock: int) -> None:
        """Another lock than the one so far: that of a slot taken anew, for a tree which stayed."""
        with suppress(OSError):
            socket.send_fds(self._control, [b"{}"], [lock])

    def alive(self) -> bool:
        """Whether the watchdog lives."""
        readable, _, _ = select.select([self._control], [], [], 0.0)
        if not readable:
            return True
        try:
            return bool(self._control.recv(_MESSAGE_BYTES))
        except OSError:
            return False

    def close(self) -> None:
        """Leave the tree to the watchdog, which ends whatever is left of it."""
        self._control.close()


def _first_word(control: socket.socket) -> dict[str, int]:
    control.settimeout(START_S)
    try:
        found: dict[str, int] = json.loads(control.recv(_MESSAGE_BYTES) or b"{}")
    except (OSError, ValueError):
        return {}
    finally:
        control.settimeout(None)
    return found
