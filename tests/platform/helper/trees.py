"""Process trees to make images of, and helpers to ask, for the tests of this folder."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebbtide.helper.client import Helper, Workload
from ebbtide.helper.criu.criu_program import Criu
from ebbtide.system.process import started_ticks
from ebbtide_testing.gpu_driver.fake_users import users_of

WAIT_S = 30.0
_COUNTER = Path(__file__).with_name("counter.py")
_FAMILY = Path(__file__).with_name("gpu_family.py")


def wait_until(condition: Callable[[], bool]) -> None:
    """Look every 5 ms; fail after `WAIT_S`."""
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s, "did not happen in time"
        time.sleep(0.005)


@dataclass
class Counting:
    """A process that counts into ``out``."""

    process: subprocess.Popen[bytes]
    started: int
    out: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def count(self) -> int:
        """How far it has come; fails if a number is missing or there twice."""
        lines = self.out.read_text().split("\n")[:-1] if self.out.exists() else []
        assert lines == [str(number) for number in range(len(lines))], "a number is lost or repeated"
        return len(lines)

    def goes_on(self) -> None:
        """Wait until it has counted on from where it is."""
        now = self.count()
        wait_until(lambda: self.count() > now + 2)

    def stands_still(self) -> bool:
        """Whether it counts no more."""
        now = self.count()
        time.sleep(0.05)
        return self.count() == now


@contextmanager
def counting(folder: Path, *words: str, **how: Any) -> Iterator[Counting]:
    """Start one, as `ebbtide run` would; it and what was revived of it are killed at the end."""
    out = folder / "out"
    how = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "start_new_session": True,
        "cwd": folder,
        **how,
    }
    process = subprocess.Popen([sys.executable, "-I", "-S", str(_COUNTER), str(out), *words], **how)
    started = started_ticks(process.pid)
    assert started is not None
    tree = Counting(process, started, out)
    try:
        wait_until(lambda: tree.count() > 1)
        yield tree
    finally:
        process.kill()  # does nothing if it was waited for
        end(process.pid)
        process.wait()


@dataclass
class Family:
    """A tree whose root uses no GPU; ``users`` of it do, in the order in which they began."""

    process: subprocess.Popen[str]
    started: int
    users: list[int]
    turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def pid(self) -> int:
        return self.process.pid

    def more(self, word: str) -> int:
        """One more, see `gpu_family`; its pid."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with self.turn:
            self.process.stdin.write(f"{word}\n")
            self.process.stdin.flush()
            pid = int(self.process.stdout.readline())
        if word != "idle":
            self.users.append(pid)
        return pid


@contextmanager
def gpu_family(fake: Path, *words: str) -> Iterator[Family]:
    """A process session, to which only those of its processes use the fake driver's GPU that these words ask for."""
    users_of(fake).mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_FAMILY), str(users_of(fake))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    started = started_ticks(process.pid)
    assert started is not None
    family = Family(process, started, [])
    try:
        for word in words:
            family.more(word)
        yield family
    finally:
        end(process.pid)
        process.wait()


def end(pid: int) -> None:
    """Kill a session that a test has started."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


@dataclass
class Running:
    """A helper process, and how to ask it."""

    process: subprocess.Popen[str]
    helper: Helper
    socket: Path

    def register(self, tree: "Counting | Family", name: str = "session/a") -> Workload:
        return self.helper.register(name, tree.pid, tree.started)


@contextmanager
def helping(folder: Path, criu: Criu | None = None, *words: str, **how: Any) -> Iterator[Running]:
    """Start a helper, one with a fake driver if ``words`` ask for it, and wait until it is ready.

    Kill it at the end.
    """
    path = folder / "helper.sock"
    given = ["--criu", str(criu.path)] if criu else ["--criu", str(folder / "none")]
    module = "ebbtide_testing.gpu_driver" if "--fake-driver" in words else "ebbtide.helper"
    command = [sys.executable, "-m", module, "--socket", str(path), *given, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **how)
    try:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("ready"):
            assert line, "the helper has ended"
        yield Running(process, Helper(path), path)
    finally:
        process.kill()
        process.wait()
