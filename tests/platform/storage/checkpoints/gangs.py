"""Gangs of real processes on gloo, for tests; see `gang_process`."""

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

PATIENCE_S = 150.0  # on a machine that does ten other things
_ENDS = ("returned", "raised", "died")


class Gangs:
    """The process that forks them; a context manager, good for many tests."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.platform.storage.checkpoints.gang_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=Path(__file__).parents[4],
            env=environment,
        )
        self.said: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._count = 0
        threading.Thread(target=self._read, daemon=True).start()

    def start(self, scenario: str, world: int, **arguments: object) -> "Gang":
        """Fork a gang; it runs."""
        assert self._process.stdin is not None
        self._count += 1
        gang = Gang(self, str(self._count), world)
        line = {"gang": gang.name, "world": world, "scenario": scenario, "arguments": arguments}
        self._process.stdin.write(json.dumps(line, default=str) + "\n")
        return gang

    def run(self, scenario: str, world: int, **arguments: object) -> list[Any]:
        """Fork a gang, and give what its ranks return; all must."""
        return self.start(scenario, world, **arguments).values()

    def wait_for(self, holds: Callable[[dict[str, Any]], bool], count: int = 1) -> list[dict[str, Any]]:
        """The lines of which ``holds``, once there are so many."""
        with self._changed:
            found: list[dict[str, Any]] = []

            def there() -> bool:
                found[:] = [one for one in self.said if holds(one)]
                return len(found) >= count

            assert self._changed.wait_for(there, PATIENCE_S), f"it was not said in time; what was: {self.said[-20:]}"
            return found

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.said.append(json.loads(line))
                self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)


class Gang:
    """The ranks of one."""

    def __init__(self, gangs: Gangs, name: str, world: int) -> None:
        self.name, self.world, self._gangs = name, world, gangs

    def wait_for(self, event: str, *, rank: int | None = None, count: int = 1) -> list[dict[str, Any]]:
        """What its ranks said of that event."""
        return self._gangs.wait_for(
            lambda one: (one.get("gang"), one["event"]) == (self.name, event) and rank in (None, one["rank"]), count
        )

    def ends(self) -> list[dict[str, Any]]:
        """How each rank ended, in their order."""
        found = self._gangs.wait_for(lambda one: one.get("gang") == self.name and one["event"] in _ENDS, self.world)
        return sorted(found, key=lambda one: int(one["rank"]))

    def values(self) -> list[Any]:
        """What each rank returned."""
        ends = self.ends()
        assert [one["event"] for one in ends] == ["returned"] * self.world, ends
        return [one["value"] for one in ends]

    def signal(self, number: signal.Signals, ranks: tuple[int, ...] | None = None) -> None:
        """Send a signal to its ranks; with SIGSTOP, until they stand still."""
        begun = self.wait_for("begun", count=self.world)
        pids = [int(one["pid"]) for one in begun if ranks is None or one["rank"] in ranks]
        for pid in pids:
            os.kill(pid, number)
        if number == signal.SIGSTOP:
            end_s = time.monotonic() + PATIENCE_S
            while not all(_stands_still(pid) for pid in pids):
                assert time.monotonic() < end_s
                time.sleep(0.02)


def _stands_still(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
