"""One command with all that it starts: its output is passed on, and nothing of it outlives its end.

This process adopts what the command leaves behind (`evidence.family`), and ends it by pid when the command has ended
or its time is over.
"""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evidence.family import adopting_orphans, end_descendants, wait_for

GRACE_S = 10.0  # for a pytest that is told to stop: to end its fixtures; a cluster goes within five seconds


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended.

    Attributes:
        code: its exit code, negative for a signal; None if its time was over.
        left: what it had left running, as ``pid command``.
    """

    code: int | None
    seconds: float
    left: tuple[str, ...] = ()


def run(
    command: Sequence[str], *, limit_s: float, env: Mapping[str, str] | None = None, log: Path | None = None
) -> Ended:
    """Run until it ends, or for ``limit_s``; what it prints goes to this process's stdout, or to ``log``."""
    began_s = time.monotonic()
    with adopting_orphans(), open(log or os.devnull, "ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file if log is not None else None,
            stderr=subprocess.STDOUT if log is not None else None,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        code = None
        try:
            code = wait_for(process.pid, limit_s)
        finally:
            seconds = time.monotonic() - began_s
            left = end_descendants(grace_s=GRACE_S if code is None else 0.0)
            process.returncode = code or 0  # it was reaped here, so Popen must not look for it
    return Ended(code, seconds, tuple(left) if code is not None else ())
