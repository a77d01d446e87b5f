"""What can go wrong in the pool's core.

::

    PoolError
    ├── IllegalTransition   an event that the transition tables forbid here: the caller dropped or repeated one
    └── InvariantViolated   the state contradicts a promise: our own bug, stop and shout
"""


class PoolError(Exception):
    """Base of this package's errors; state is never changed when one is raised."""


class IllegalTransition(PoolError):
    """An event is not allowed in the present state; nothing was changed."""


class InvariantViolated(PoolError):
    """A promise (docs/promises.md) would be broken; nothing was changed."""
