"""What can go wrong when state is taken off a device.

::

    SnapshotError
    ├── NotEvictable    a tensor cannot leave its device in place: nothing was touched; use a slower tier
    └── PoolTooSmall    the host pool cannot hold the state: nothing was touched; use a slower tier
"""


class SnapshotError(Exception):
    """Base of this package's errors; the process's state is unchanged when one is raised."""


class NotEvictable(SnapshotError):
    """A tracked tensor cannot be evicted in place; the message names it and the remedy."""


class PoolTooSmall(SnapshotError):
    """The host pool has fewer bytes than the tracked storages."""
