"""The CRIU program: which one, and running it so that it can outlive us and its end can still be told.

CRIU is never killed while it works on a tree: a tree whose tracer died in the middle of it is not whole. It runs in a
session of its own, beneath a shell that waits for our word and writes down how it ended. So a helper that was killed
leaves either a CRIU that never began, or one that comes to its end, with its exit code in a file for the next helper.
"""

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ebbtide.system.process import is_alive, started_ticks

VARIABLE = "EBBTIDE_CRIU"
IN_CHECKOUT = Path(".criu/criu")  # where `make criu` puts it
OLDEST = (4, 1)  # 3.17 fails on kernels 6.x: unexpected vDSO area bounds
# From 6.16 on kernels have SO_PASSCRED for unix sockets only, and 4.1 gives up when it is not there for others.
_TAKES_INET = (4, 2)
_CHECK_S = 20.0  # takes 0.1 s on an idle machine
# Connections within the tree are dumped. Nothing needs to be locked out: no connection of it leads elsewhere.
INET = ("--tcp-established", "--network-lock", "skip")
# $0 is the folder of this run. Without our word (a pipe that is closed) nothing is begun.
_RUNNER = 'read go || exit 97; "$@" </dev/null >"$0/output" 2>&1; echo $? >"$0/rc.tmp"; mv "$0/rc.tmp" "$0/rc"'


@dataclass(frozen=True, slots=True)
class Criu:
    """A CRIU that works here.

    Attributes:
        path: of the program.
        version: such as 4.2.1.
        takes_inet: it can put TCP and UDP sockets into an image.
    """

    path: Path
    version: str
    takes_inet: bool = True


@dataclass(frozen=True, slots=True)
class NoCriu:
    """There is none that works here; ``why`` says what was tried, for people."""

    why: str


@dataclass(frozen=True, slots=True)
class Runner:
    """The shell that runs CRIU once: who it is, and the folder where its end is written down."""

    pid: int
    started: int
    folder: Path

    def is_running(self) -> bool:
        """Whether the run has not ended."""
        return is_alive(self.pid, self.started)

    def wait(self, deadline_s: float) -> bool:
        """Wait for its end; False if it still runs at ``deadline_s`` (of `time.monotonic`)."""
        while self.is_running():
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(0.005)
        return True

    def code(self) -> int | None:
        """CRIU's exit code; None: it never began, still runs, or its shell was killed."""
        try:
            return int((self.folder / "rc").read_text())
        except (FileNotFoundError, ValueError):
            return None


def find(environment: Mapping[str, str], checkout: Path) -> Criu | NoCriu:
    """The CRIU of ``EBBTIDE_CRIU``, else of PATH, else of the checkout; the first that is there is the one."""
    given = environment.get(VARIABLE) or shutil.which("criu", path=environment.get("PATH"))
    path = Path(given) if given else checkout / IN_CHECKOUT
    if not path.is_file():
        return NoCriu(f"no CRIU at {path}: run `make criu`, or name one by {VARIABLE}")
    return look_at(path)


def look_at(path: Path) -> Criu | NoCriu:
    """Whether the CRIU at ``path`` works on this kernel."""
    try:
        said = _ask(path, "--version")
        number = re.search(r"Version: (\d+)\.(\d+)(\S*)", said.stdout)
        if number is None:
            return NoCriu(f"{path} does not say its version: {(said.stdout + said.stderr).strip()[:200]}")
        version = "".join((number[1], ".", number[2], number[3]))
        if (int(number[1]), int(number[2])) < OLDEST:
            return NoCriu(f"{path} is CRIU {version}; {OLDEST[0]}.{OLDEST[1]} or later is needed: run `make criu`")
        checked = _ask(path, "check")
    except (OSError, subprocess.TimeoutExpired) as error:
        return NoCriu(f"{path} cannot be run: {error}")
    if checked.returncode != 0:
        return NoCriu(f"`{path} check` failed, so CRIU cannot work here: {_last_words(checked.stderr)}")
    takes_inet = (int(number[1]), int(number[2])) >= _TAKES_INET or _inet_has_passcred()
    return Criu(path.resolve(), version, takes_inet)


def _inet_has_passcred() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.getsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED)
        except OSError:
            return False
    return True


def _ask(path: Path, word: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([path, word], capture_output=True, text=True, timeout=_CHECK_S, check=False)


class Held:
    """A runner that waits for the word to begin."""

    def __init__(self, criu: Criu, folder: Path, arguments: tuple[str, ...]) -> None:
        """Start the shell; CRIU itself is not begun. ``folder`` is there and empty."""
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _RUNNER, str(folder), str(criu.path), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        started = started_ticks(self._shell.pid)
        assert started is not None, "it is our child and was not waited for"
        self.runner = Runner(self._shell.pid, started, folder)

    def go(self) -> None:
        """Begin."""
        assert self._shell.stdin is not None
        with self._shell.stdin as word:
            word.write(b"go\n")

    def give_up(self) -> None:
        """End it without having begun."""
        if self._shell.stdin is not None and not self._shell.stdin.closed:
            self._shell.stdin.close()
        self.reap()

    def wait(self, deadline_s: float) -> bool:
        """Wait for its end; False if it still runs at ``deadline_s``."""
        try:
            self._shell.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def reap(self) -> None:
        """Wait for its end, however long it takes."""
        self._shell.wait()


def why_it_failed(folder: Path) -> str:
    """What CRIU's log in a run's folder says went wrong, in one line."""
    for name in ("dump.log", "restore.log", "output"):
        try:
            text = (folder / name).read_text(errors="replace")
        except OSError:
            continue
        errors = [line.partition("): ")[2] for line in text.splitlines() if "Error" in line and "rlimit" not in line]
        if errors:
            return " / ".join(errors[:2])[:500]
        if name == "output" and text.strip():
            return _last_words(text)
    return "it left no log"


def has_finished(folder: Path, log: str) -> bool:
    """Whether CRIU wrote into ``log`` that it came to its end well."""
    try:
        with (folder / log).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            return b"finished successfully" in file.read()
    except OSError:
        return False


def _last_words(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "without a word"
