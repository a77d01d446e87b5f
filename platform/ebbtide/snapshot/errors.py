"""What can go wrong when state is taken off a device.

::

    SnapshotError
    ├── NotEvictable        a tensor cannot leave its device in place: nothing was touched; use a slower tier
    ├── PoolTooSmall        the host memory cannot hold the state: nothing was touched; use a slower tier
    │   └── HostMemoryShort the node has not that much of it, or its budget is spent
    ├── RegionBusy          another process has that host memory: leave it alone
    ├── RegionDamaged       what lies there must not be used
    └── RegionMisused       a step that its state does not allow: our own mistake
"""


class SnapshotError(Exception):
    """Base of this package's errors; the process's state is unchanged when one is raised."""


class NotEvictable(SnapshotError):
    """A tracked tensor cannot be evicted in place; the message names it and the remedy."""


class PoolTooSmall(SnapshotError):
    """The host pool has fewer bytes than the tracked storages."""


class HostMemoryShort(PoolTooSmall):
    """The node has not so much host memory to lend; the message has the numbers and the remedy."""


class RegionBusy(SnapshotError):
    """Somebody else has the region."""


class RegionDamaged(SnapshotError):
    """A file that is no region, was cut off, or holds something else than was put there."""


class RegionMisused(SnapshotError):
    """The region's state does not allow that."""
