"""What goes wrong with a session.

::

    SessionProblem
    ├── CannotPark       it runs on as before; the message says why it cannot be taken off its slot, and what would work
    ├── OutcomeUnknown   nobody can say whether it was taken off: look at its processes and its image, never ask again
    ├── CannotRevive     nothing runs; the image is as it was, and may go on elsewhere
    ├── CannotStart      nothing ran
    └── SessionCrashed   its processes were killed under it: the next supervisor takes its last image, if there is one
"""


class SessionProblem(Exception):
    """Base of a session's failures."""


class CannotPark(SessionProblem):
    """Refused, and nothing has changed."""


class OutcomeUnknown(SessionProblem):
    """The answer was lost on its way; what really happened must be looked at.

    Attributes:
        over: nothing is under way any more: what can be seen now, stays so.
    """

    def __init__(self, text: str, *, over: bool = False) -> None:
        super().__init__(text)
        self.over = over


class CannotRevive(SessionProblem):
    """The image could not be brought back here; it stays as it was."""


class CannotStart(SessionProblem):
    """The command did not begin."""


class SessionCrashed(SessionProblem):
    """The tree is gone and nobody asked for it."""
