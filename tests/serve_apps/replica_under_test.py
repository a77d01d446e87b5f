"""Starts ``replica_process`` and watches it from outside."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

SLOT_INDEX = 1
MODEL_CACHE = Path.home() / ".cache" / "vllm"  # vLLM's own place: an empty one costs each engine start 10 s
HEADERS = {"x-ebbtide-token": "secret"}


class ReplicaUnderTest:
    """One replica process, its last report and its children."""

    def __init__(self, engine: str, work_dir: Path, *, watch_at_birth: bool = True, **settings: Any) -> None:
        self.lock_dir = work_dir / "locks"
        told: dict[str, Any] = {"engine": engine, "lock_dir": str(self.lock_dir), "cache_dir": str(MODEL_CACHE)}
        told |= {"model_dir": "", "args": {}, "watch_at_birth": watch_at_birth} | settings
        self.log = work_dir / "replica.log"
        script = Path(__file__).with_name("replica_process.py")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(script), json.dumps(told)], stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.report: dict[str, Any] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{") and line.endswith("}\n"):  # a kill may cut the last line short
                self.report = json.loads(line)

    async def until_ready(self, timeout_s: float = 200.0) -> None:
        """Wait for the port to be open."""
        await until(lambda: self._state() == "ready", timeout_s, lambda: self.log.read_text()[-3000:])

    def _state(self) -> Any:
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        return self.report.get("phase")

    def children(self) -> list[psutil.Process]:
        """All processes under it, but for Python's resource tracker, which holds nothing and ends by itself."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has ended by now, as those do that vLLM asks about the machine
                found += [child] if "resource_tracker" not in " ".join(child.cmdline()) else []
        return found

    def kill(self) -> None:
        """kill -9, and reap."""
        self.process.kill()
        self.process.wait()
        self._reader.join(5.0)

    def clean_up(self, children: list[psutil.Process]) -> None:
        """Leave nothing behind, also when a test failed."""
        self.kill()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()


async def until(
    condition: Callable[[], bool], timeout_s: float, explain: Callable[[], str] = lambda: "not in time"
) -> None:
    """Wait for the condition, or fail with the explanation."""
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(explain()) from None


def gone(processes: list[psutil.Process]) -> bool:
    """None of them runs any more (a zombie that nobody reaps holds nothing)."""
    return not any(_runs(process) for process in processes)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two questions
        return False
