"""What one logical slot may take of a machine without GPUs, and how processes of a cluster learn it: by environment.

`up` counts it when it starts a cluster; every process that Ray starts there inherits it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

MEMORY_VARIABLE = "EBBTIDE_SLOT_MEMORY_BYTES"
THREADS_VARIABLE = "EBBTIDE_SLOT_THREADS"


@dataclass(frozen=True, slots=True)
class SlotShare:
    """Bytes of host memory, and threads that compute."""

    memory_bytes: int
    threads: int

    def to_environment(self) -> dict[str, str]:
        """The form in the environment."""
        return {MEMORY_VARIABLE: str(self.memory_bytes), THREADS_VARIABLE: str(self.threads)}


def slot_share_from_environment(environ: Mapping[str, str]) -> SlotShare | None:
    """The share; None where no `up` has counted one: on GPUs, and in a cluster that was joined."""
    memory, threads = environ.get(MEMORY_VARIABLE, ""), environ.get(THREADS_VARIABLE, "")
    return SlotShare(int(memory), int(threads)) if memory.isdigit() and threads.isdigit() else None
