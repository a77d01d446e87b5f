"""Runs `lease_process` programs and reads what they say; ends them when the test does."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRAM = Path(__file__).with_name("lease_process.py")
ROOT = Path(__file__).parents[3]
PATIENCE_S = 120.0  # on a machine that does ten other things


class Player:
    """One process."""

    def __init__(self, *words: object, module: str = "") -> None:
        """Run `lease_process` with ``words``, or another module of the tests."""
        program = ["-m", module] if module else [str(PROGRAM)]
        self._process = subprocess.Popen(
            [sys.executable, *program, *map(str, words)], stdout=subprocess.PIPE, text=True, bufsize=1, cwd=ROOT
        )
        self.pid = self._process.pid
        self.said: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.said.append(json.loads(line))
                self._changed.notify_all()

    def events(self) -> list[str]:
        """The names of what it said."""
        return [one["event"] for one in list(self.said)]

    def wait_for(self, *events: str) -> dict[str, Any]:
        """The first thing it says that has one of these names."""
        with self._changed:
            found: list[dict[str, Any]] = []

            def there() -> bool:
                found[:] = [one for one in self.said if one["event"] in events]
                return bool(found)

            assert self._changed.wait_for(there, PATIENCE_S), f"{self.pid} never said {events}, but {self.said}"
            return found[0]

    def stop(self) -> None:
        """SIGSTOP, and wait until it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        until(lambda: Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        """Wait until it has ended by itself, and said all."""
        code = self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._reader.join(PATIENCE_S)
        if self._process.stdout is not None:
            self._process.stdout.close()


def until(holds: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Wait for it."""
    end_s = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.02)
