"""How much private memory this process holds, and giving freed memory back to the system.

Why ``malloc_trim``: glibc raises its threshold for separate mappings after the first big frees, so that freed tensors
stay in the heap and the process's memory does not fall (seen: 722 MiB before and after a park, 498 after trimming).

Not guaranteed: anything on systems without glibc or without /proc; there nothing is trimmed and reading fails.
"""

import ctypes
from pathlib import Path

_KIB = 1024


def malloc_trim() -> None:
    """Give the heap's free pages back to the system; does nothing where libc has no ``malloc_trim``."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def anonymous_bytes(pid: int | None = None) -> int:
    """Resident anonymous memory (RssAnon) of a process, by default this one: shared and file pages not counted.

    Raises:
        OSError: there is no such process, or no /proc.
    """
    who = "self" if pid is None else str(pid)
    for line in Path(f"/proc/{who}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * _KIB
    raise OSError(f"/proc/{who}/status has no RssAnon line: this kernel does not tell anonymous memory apart")
