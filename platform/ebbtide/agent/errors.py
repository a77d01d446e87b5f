"""What can go wrong on a node.

::

    AgentError
    ├── SlotBusy          somebody else holds the slot lock: wait, or give the lease back
    │   └── StaleLease    the slot was leased anew since: never ask again under this lease
    ├── LockDirUnusable   the lock directory cannot be used: no GPU may be touched until a person has mended it
    └── GpuUnreadable     the driver does not say who is on a GPU: it counts as taken
"""

from ebbtide.client.messages import LockHolder


class AgentError(Exception):
    """Base of this package's errors."""


class SlotBusy(AgentError):
    """The slot lock is held by another process; nothing was changed.

    ``holder`` is what that process wrote about itself, or None when it let go while we looked.
    """

    def __init__(self, text: str, holder: LockHolder | None) -> None:
        super().__init__(text, holder)
        self.holder = holder

    def __str__(self) -> str:
        return str(self.args[0])


class StaleLease(SlotBusy):
    """The slot has been held under a higher epoch: the lease of whoever asks is over."""

    def __init__(self, text: str) -> None:
        super().__init__(text, None)


class LockDirUnusable(AgentError):
    """Locks cannot be taken in this directory; the message says why and what to do."""


class GpuUnreadable(AgentError):
    """The driver knows the GPU and does not answer for it; the message says what it said."""
