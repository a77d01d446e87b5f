"""An engine that can give up its GPUs and take them back: an optional part of the engine port.

Optional, since users bring engines of their own, and since most cannot: an engine without this part, or one that says
that it cannot, ends when it is not wanted.

Asleep means: its processes live, they hold nothing on any GPU (no weights, no context), and the slot locks of their
lease are released. Anything less is not sleep and must be said with an error.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ebbtide_serve.engine.port import Engine
from ebbtide_serve.process.lease_env import EngineLease


@dataclass(frozen=True, slots=True)
class CanSleep:
    """Whether an engine can sleep, as it was started here.

    Attributes:
        host_bytes: host memory that it needs while it sleeps, of all its ranks; at least 1 if it can.
        why_not: empty if it can.
    """

    host_bytes: int = 0
    why_not: str = ""


@runtime_checkable
class Sleeps(Protocol):
    """An engine with this part. It is asked for one thing at a time, and never for anything while it has requests."""

    def can_sleep(self) -> CanSleep:
        """Of the start that has ended."""

    async def sleep(self) -> None:
        """Give up all GPUs, then the slot locks.

        Raises:
            EngineFailed: it did not come to that; whatever it has now, it is to be stopped.
        """

    async def wake(self, lease: EngineLease) -> None:
        """Take the slot locks under ``lease``, which names the slots that it had, then the GPUs; it answers again.

        Raises:
            EngineFailed: it did not come to that; it is to be stopped.
        """


def can_sleep(engine: Engine) -> CanSleep:
    """What the engine says, in a form that a ledger takes."""
    if not isinstance(engine, Sleeps):
        return CanSleep(why_not="its engine has no sleep mode")
    told = engine.can_sleep()
    if told.why_not or told.host_bytes < 1:
        return CanSleep(why_not=told.why_not or "its engine does not say how much host memory it needs")
    return CanSleep(int(told.host_bytes))
