"""A node's helper with CRIU, in a process of its own, for tests of sessions: killed and started again at will."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebbtide.helper.client import Helper

ROOT = Path(__file__).parents[3]


class Running:
    """The helper of one node, which can be killed and started again."""

    def __init__(self, folder: Path, criu: Path) -> None:
        self.socket, self._criu = folder / "helper.sock", criu
        self.journal = folder / "helper.sock.state" / "journal"
        self.client = Helper(self.socket)
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "ebbtide.helper", "--socket", str(self.socket), "--criu", str(self._criu)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        while not (line := self.process.stdout.readline()).startswith("ready"):
            assert line, "the helper ended"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def helped(folder: Path, criu: Path) -> Iterator[Running]:
    """One that is killed at the end; ``folder`` is nobody else's."""
    running = Running(folder, criu)
    try:
        yield running
    finally:
        running.kill()
