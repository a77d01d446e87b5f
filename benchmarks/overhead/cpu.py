"""CPU time of a system's processes, from /proc: all that it runs, engines apart.

The system is everything that descends from its first processes. An engine is known by its title: vLLM calls its
processes ``VLLM::...``, under whatever server they run; what they start counts as engine, too.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil

ENGINE = "VLLM::"


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds by process: (pid, when it was made) -> (seconds, name)."""

    by_process: dict[tuple[int, float], tuple[float, str]]

    def since(self, before: "Spent") -> dict[str, float]:
        """Seconds by name since ``before``; processes that ended meanwhile are left out."""
        found: dict[str, float] = {}
        for key, (seconds, name) in self.by_process.items():
            took_s = seconds - before.by_process.get(key, (0.0, ""))[0]
            found[name] = found.get(name, 0.0) + took_s
        return found


def spent(roots: Iterable[int]) -> Spent:
    """What the system of ``roots`` has used so far."""
    found: dict[tuple[int, float], tuple[float, str]] = {}
    todo = []
    for pid in roots:
        with suppress(psutil.NoSuchProcess):
            todo.append(psutil.Process(pid))
    while todo:
        process = todo.pop()
        with suppress(psutil.NoSuchProcess):
            name = _title(process)
            key = (process.pid, process.create_time())
            if name.startswith(ENGINE) or key in found:
                continue
            times = process.cpu_times()
            found[key] = (times.user + times.system, name)
            todo += process.children()
    return Spent(found)


def _title(process: psutil.Process) -> str:
    """What a process calls itself: Ray and vLLM set it."""
    line = process.cmdline()
    return line[0] if line and "::" in line[0] else process.name()
