"""Where a process stands between its owner's GPUs and a checkpoint, as one table.

The states and their numbers are the CUDA driver's (``CUprocessState`` in cuda.h 13.4). A call that the table does not
list for a state is refused and changes nothing. Any call may also end in FAILED, from which nothing leads away.
"""

from collections.abc import Mapping
from enum import Enum


class ProcessState(Enum):
    """What the driver says about one process."""

    RUNNING = 0  # may use its GPUs
    LOCKED = 1  # its memory is on its GPUs, and its calls to CUDA wait
    CHECKPOINTED = 2  # holds nothing on any GPU
    FAILED = 3  # the driver cannot mend it: kill it
    CHECKPOINTING = 4  # custom storage: its memory is mapped into our process, to be copied out
    RESTORING = 5  # custom storage: its memory is mapped into our process, to be copied back


class Call(Enum):
    """What can be asked of the driver about one process."""

    LOCK = "lock"
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    UNLOCK = "unlock"
    OPEN_CHECKPOINT = "open_checkpoint"
    OPEN_RESTORE = "open_restore"
    COMPLETE = "complete"


TABLE: Mapping[ProcessState, Mapping[Call, ProcessState]] = {
    ProcessState.RUNNING: {
        Call.LOCK: ProcessState.LOCKED,  # work in flight is waited for; on a timeout it stays RUNNING
    },
    ProcessState.LOCKED: {
        Call.CHECKPOINT: ProcessState.CHECKPOINTED,  # the driver copies to host memory of its own
        Call.OPEN_CHECKPOINT: ProcessState.CHECKPOINTING,  # we copy
        Call.UNLOCK: ProcessState.RUNNING,
    },
    ProcessState.CHECKPOINTED: {
        Call.RESTORE: ProcessState.LOCKED,  # also on other GPUs of the same chip
        Call.OPEN_RESTORE: ProcessState.RESTORING,  # we copy
    },
    ProcessState.FAILED: {},
    ProcessState.CHECKPOINTING: {
        Call.COMPLETE: ProcessState.CHECKPOINTED,  # our copies are done, the GPU is given up
    },
    ProcessState.RESTORING: {
        Call.COMPLETE: ProcessState.LOCKED,  # our copies are done
    },
}

ON_GPU = frozenset(ProcessState) - {ProcessState.CHECKPOINTED}
"""States in which a process may hold memory on a GPU."""

STEADY = frozenset({ProcessState.RUNNING, ProcessState.LOCKED, ProcessState.CHECKPOINTED})
"""States that a process can be led out of by plain calls, whoever led it in."""


def after(state: ProcessState, call: Call) -> ProcessState | None:
    """The state that ``call`` leads to from ``state``; None where it is refused."""
    return TABLE[state].get(call)


def sources(call: Call) -> tuple[ProcessState, ...]:
    """The states in which ``call`` is allowed."""
    return tuple(state for state, calls in TABLE.items() if call in calls)
