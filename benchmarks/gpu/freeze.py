"""The CUDA driver's checkpoint of another process, through our own driver port where this checkout has it.

Everything that cannot be done is told in words and raises nothing else than `CannotFreeze`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

LOCK_MS = 30_000
_ATTEMPT_S = 120.0


class CannotFreeze(Exception):
    """It does not work here, or did not this time."""


@dataclass(frozen=True, slots=True)
class Freezer:
    """The driver of this process, which has been started."""

    driver: Any
    says: str
    custom_storage: bool

    def freeze(self, pid: int) -> None:
        """Lock and checkpoint; when this returns the process holds nothing on its GPUs."""
        self._do(lambda: (self.driver.lock(pid, LOCK_MS), self.driver.checkpoint(pid)))

    def thaw(self, pid: int) -> None:
        """Restore and unlock."""
        self._do(lambda: (self.driver.restore(pid, {}), self.driver.unlock(pid)))

    def try_lock(self, pid: int) -> None:
        """Lock and unlock."""
        self._do(lambda: (self.driver.lock(pid, LOCK_MS), self.driver.unlock(pid)))

    def _do(self, calls: Any) -> None:
        try:
            calls()
        except Exception as error:
            raise CannotFreeze(f"{type(error).__name__}: {error}"[:400]) from error


def find() -> Freezer:
    """The one that works here.

    Raises:
        CannotFreeze: there is none; says why.
    """
    try:
        driver = import_module("ebbtide.snapshot.driver.driver_choice").find_driver()
    except (ImportError, OSError) as error:
        raise CannotFreeze(f"the driver port cannot be loaded: {error}") from error
    can = driver.capabilities()
    if not can.can_checkpoint:
        raise CannotFreeze(can.why_not_checkpoint)
    custom = can.why_not_custom_storage or "custom storage works"
    return Freezer(driver, f"{can.driver}; {custom}; {can.why_not_remap or 'remap works'}", can.custom_storage)


def privileges(pid: int) -> dict[str, str]:
    """What locking and unlocking ``pid`` gives as we are, without capabilities, and as nobody; by way, in words.

    The process is unlocked again each time, and runs on.
    """
    ways: dict[str, list[str]] = {"as we are": []}
    if shutil.which("setpriv") and os.geteuid() == 0:
        ways["as root without capabilities"] = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
        ways["as another user"] = ["setpriv", "--reuid=65534", "--clear-groups"]
    return {name: _attempt(words, pid) for name, words in ways.items()} | _status()


def _attempt(words: list[str], pid: int) -> str:
    return answer([*words, sys.executable, "-m", "benchmarks.gpu.freeze", str(pid)]) or "works"


def answer(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    """What a program says at its end, or that it does not work and why, in words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ATTEMPT_S, check=False, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not known: {error}"[:300]
    said = (done.stdout + (done.stderr if done.returncode else "")).strip().splitlines()
    last = said[-1][:300] if said else ""
    return last if done.returncode == 0 else f"does not work: {last or done.returncode}"


def _status() -> dict[str, str]:
    found = {"user": str(os.geteuid())}
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            found["effective capabilities"] = line.split()[1]
    yama = Path("/proc/sys/kernel/yama/ptrace_scope")
    return found | {"ptrace_scope": yama.read_text().strip() if yama.exists() else "there is no yama"}


def main() -> None:
    """``PID``: lock it and unlock it."""
    pid = int(sys.argv[1])
    try:
        find().try_lock(pid)
    except Exception as error:  # outermost: for people
        raise SystemExit(f"{type(error).__name__}: {error}") from error


if __name__ == "__main__":
    main()
