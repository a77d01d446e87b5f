"""Host memory that the node lends: a region of this rank's own, which outlives this process with what is in it."""

from pathlib import Path
from typing import Protocol

from ebbtide.snapshot.errors import PoolTooSmall, RegionBusy, SnapshotError
from ebbtide.snapshot.eviction.host_memory import HostRegion
from ebbtide.snapshot.regions.region import Region
from ebbtide.snapshot.regions.region_states import RegionKey

TRIES = 3  # it may be taken back between the answer and the opening, since nobody had it yet


class Lender(Protocol):
    """Whoever keeps count of this node's host memory."""

    def lend(self, key: RegionKey, size_bytes: int) -> Path:
        """The file of a region of at least that size, with all its memory taken; in place of the one with this key.

        Raises:
            PoolTooSmall: there is not so much to lend, or nobody answers within a time that the lender knows.
        """


class LentRegion:
    """See `ebbtide.snapshot.eviction.host_memory.HostMemory`."""

    def __init__(self, lender: Lender, key: RegionKey) -> None:
        """Nothing is lent yet. ``key``: of this rank, with the lease epoch that its gang began with."""
        self._lender, self._key = lender, key

    def lend(self, size_bytes: int) -> HostRegion:
        """See `HostMemory.lend`."""
        region = self._borrowed(size_bytes)
        if region.key != self._key or region.size_bytes < size_bytes:
            region.close()
            raise PoolTooSmall(f"{region.path} is of {region.key}, {region.size_bytes} bytes: not what was asked for")
        return region

    def _borrowed(self, size_bytes: int) -> Region:
        why = ""
        for _ in range(TRIES):
            path = self._lender.lend(self._key, size_bytes)
            try:
                return Region.open(path)
            except RegionBusy as error:
                why = str(error)
            except (SnapshotError, OSError) as error:
                raise PoolTooSmall(f"the host memory lent at {path} cannot be used: {error}") from error
        raise PoolTooSmall(f"the host memory that is lent cannot be used: {why}")
