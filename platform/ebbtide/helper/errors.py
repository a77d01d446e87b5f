"""What the helper answers instead of a result, split by what the asker does.

::

    HelperError               says what, with which values, and what would work
    ├── Refused               nothing was touched; another request, tier or place may do
    │   ├── Malformed         the request itself cannot be understood; mend the caller
    │   └── Busy              another operation on this workload or image is under way; ask again later
    ├── Undone                it was tried and came to nothing: all is as before; use another tier
    ├── OutcomeUnknown        it may have happened, or goes on: read back with ``state``, never ask again blindly
    ├── Lost                  processes cannot be brought back: kill the rest, fall back to the last durable state
    └── Unreachable           no helper answers there, and nothing was asked of it
    HelperUnusable            the helper cannot start or go on: its journal is damaged or cannot be written, or
                              another helper runs
"""

from typing import ClassVar


class HelperError(Exception):
    """Base of what a request can raise, at the helper and again at the client.

    Attributes:
        kind: its name on the wire.
        what: what happened, with values.
        remedy: what would work.
    """

    kind: ClassVar[str] = "error"

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what, self.remedy = what, remedy

    def __reduce__(self) -> tuple[type["HelperError"], tuple[str, str]]:
        """So that it survives the way to another process."""
        return type(self), (self.what, self.remedy)


class Refused(HelperError):
    """Nothing was touched."""

    kind = "refused"


class Malformed(Refused):
    """The request is no request."""

    kind = "malformed"


class Busy(Refused):
    """Somebody else's operation on the same workload or image is under way."""

    kind = "busy"


class Undone(HelperError):
    """Tried, failed, and led back: a process that ran runs, an image that was whole is whole."""

    kind = "undone"


class OutcomeUnknown(HelperError):
    """Nobody knows yet, or the answer was lost."""

    kind = "unknown"


class Lost(HelperError):
    """The driver has given up at least one of the processes."""

    kind = "lost"


class Unreachable(HelperError):
    """There is no helper at this socket."""

    kind = "unreachable"


class HelperUnusable(Exception):
    """The helper cannot begin or go on with its work; the message says why and what to do."""


ON_THE_WIRE: dict[str, type[HelperError]] = {
    one.kind: one for one in (HelperError, Refused, Malformed, Busy, Undone, OutcomeUnknown, Lost)
}
