"""Host memory that the node lends: a region of this rank's own, which outlives this process with what is in it."""

import time
from pathlib import Path
from typing import Protocol

from ebbtide.snapshot.errors import PoolTooSmall, RegionBusy, SnapshotError
from ebbtide.snapshot.host_memory import HostRegion
from ebbtide.snapshot.regions.region import Region
from ebbtide.snapshot.regions.states import RegionKey

LOOKED_AT_S = 1.0  # whoever looks at a region holds its lock for microseconds; longer when it is preempted


class Lender(Protocol):
    """Whoever keeps count of this node's host memory."""

    def lend(self, key: RegionKey, size_bytes: int) -> Path:
        """The file of a region of at least that size, with all its memory taken; in place of the one with this key.

        Raises:
            PoolTooSmall: there is not so much to lend, or nobody answers within a time that the lender knows.
        """


class LentMemory:
    """See `ebbtide.snapshot.host_memory.HostMemory`."""

    def __init__(self, lender: Lender, key: RegionKey) -> None:
        """Nothing is lent yet. ``key``: of this rank, with the lease epoch that its gang began with."""
        self._lender, self._key = lender, key

    def lend(self, size_bytes: int) -> HostRegion:
        """See `HostMemory.lend`."""
        path = self._lender.lend(self._key, size_bytes)
        try:
            region = _opened(path)
        except (SnapshotError, OSError) as error:
            raise PoolTooSmall(f"the host memory that was lent at {path} cannot be used: {error}") from error
        if region.key != self._key or region.size_bytes < size_bytes:
            region.close()
            raise PoolTooSmall(
                f"{path} is lent to {region.key}, with {region.size_bytes} bytes: not what was asked for"
            )
        return region


def _opened(path: Path) -> Region:
    deadline_s = time.monotonic() + LOOKED_AT_S
    while True:
        try:
            return Region.open(path)
        except RegionBusy:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.001)
