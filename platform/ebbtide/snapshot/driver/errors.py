"""What can go wrong with a checkpoint of GPU memory, split by what the catcher does.

::

    DriverError           one call about one process; says the call, the pid, what happened and what to do
    ├── DriverRefused     the call was not made, or came to nothing: the state is as before; use another tier
    │   └── LockTimeout   work on the GPU did not end in time: the process runs on; ask again later
    ├── DriverUnknown     it may or may not have happened: read back with state(), never call again blindly
    └── ProcessLost       nothing will bring it back: its memory is gone, or must be assumed gone
        ├── ProcessGone   there is no such process: its GPU memory is free
        └── DriverFailed  the driver gave it up: kill it, fall back to the last durable state
    CopyFailed            the bytes of an open operation could not be moved: it is still open; move them another way
    GangError             a verb for all ranks of a gang; says each rank's state and why
    ├── GangRefused       all ranks are whole, and in the states that the error says: use another tier
    ├── GangUnsettled     the driver does not say where some ranks are, or some could not be led back: read back and
    │                     ask again, or kill; their GPUs may be given to nobody
    └── GangLost          some ranks are lost, so the gang is: kill the rest, fall back to the last durable state
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ebbtide.snapshot.driver.process_states import ProcessState


class DriverError(Exception):
    """Base of what one call can raise.

    Attributes:
        call: what was asked: ``state``, or the value of a `Call`.
        pid: about whom.
    """

    def __init__(self, call: str, pid: int, what: str, remedy: str) -> None:
        super().__init__(f"{call} of process {pid}: {what}; {remedy}")
        self.call, self.pid = call, pid
        self._made_of = (call, pid, what, remedy)

    def __reduce__(self) -> tuple[Any, ...]:
        """So that it survives the way to another process."""
        return type(self), self._made_of


class DriverRefused(DriverError):
    """Nothing has changed."""


class LockTimeout(DriverRefused):
    """The process was not locked in time and runs on."""


class DriverUnknown(DriverError):
    """Whether the call took effect is not known."""


class ProcessLost(DriverError):
    """What the process held on its GPUs cannot be had any more."""


class ProcessGone(ProcessLost):
    """There is no such process."""


class DriverFailed(ProcessLost):
    """The driver says FAILED, or whoever held the copy of its memory has died."""


class CopyFailed(Exception):
    """What was opened is not copied, and not lost: the operation stays open until another way works."""


class GangError(Exception):
    """Base of what a verb for a gang can raise.

    Attributes:
        states: where each rank is now; None: not known, no such process, or none that uses CUDA.
        causes: what went wrong, by pid.
        moved: ranks that meanwhile were restored onto other GPUs: their next map starts from those.
    """

    def __init__(
        self,
        verb: str,
        states: Mapping[int, ProcessState | None],
        causes: Mapping[int, DriverError],
        remedy: str,
        moved: Sequence[int] = (),
    ) -> None:
        why = "; ".join(str(cause) for cause in causes.values())
        where = ", ".join(f"{pid} {state.name if state else 'unknown'}" for pid, state in states.items())
        super().__init__(f"cannot {verb} the gang: {why}. Now: {where}. {remedy}")
        self.states, self.causes, self.moved = dict(states), dict(causes), tuple(moved)
        self._made_of = (verb, self.states, self.causes, remedy, self.moved)

    def __reduce__(self) -> tuple[Any, ...]:
        """So that it survives the way to another process."""
        return type(self), self._made_of


class GangRefused(GangError):
    """It did not work, and every rank is whole."""


class GangUnsettled(GangError):
    """It did not work, and not every rank could be led back or be asked."""


class GangLost(GangError):
    """At least one rank is lost."""
