"""Host memory that evicted state is copied to, as whoever evicts uses it.

Two kinds. *Lent*: a region that the node's agent has made (``regions``); it outlives the process that borrowed it, so
what is parked there survives that process. *Own*: private memory of this process, for runs that nobody parks in
earnest; it dies with the process.

Both are had long before they are needed, and pre-faulted: a copy then runs at memcpy speed while somebody waits.
"""

from typing import Protocol, TypeAlias

import torch

from ebbtide.snapshot.eviction.host_pool import HostPool

Note: TypeAlias = bytes  # within the classes below, ``bytes`` is the payload


class HostRegion(Protocol):
    """One rank's share of host memory. What is in it counts from `seal` until `begin` or `clear`."""

    @property
    def size_bytes(self) -> int:
        """How much fits."""

    @property
    def bytes(self) -> torch.Tensor:
        """The payload as one flat uint8 tensor on the CPU."""

    def begin(self) -> None:
        """What is in it counts no more; to be called before the first byte is written."""

    def seal(self, note: Note) -> None:
        """All is written, and ``note`` says what it is: from now on it counts."""

    def hash_payload(self) -> None:
        """Record hashes of what is in it, so that whoever takes it over can verify it. May run in a thread."""

    def clear(self) -> None:
        """What is in it counts no more; it can be used again."""

    def close(self) -> None:
        """Give the memory back; idempotent. Tensors that still look into it keep their pages."""


class HostMemory(Protocol):
    """Where regions come from."""

    def lend(self, size_bytes: int) -> HostRegion:
        """A region of at least so many bytes, in place of the one lent before, which must be closed.

        Raises:
            PoolTooSmall: there is no such memory, or nobody who lends it answers; says why, and what would help.
        """


class OwnMemory:
    """Memory of this process alone: parked state is gone when the process is."""

    def lend(self, size_bytes: int) -> HostRegion:
        """See `HostMemory.lend`."""
        return OwnRegion(size_bytes)


class OwnRegion:
    """A host pool that keeps no books, since nobody could read them after this process."""

    def __init__(self, size_bytes: int) -> None:
        """Map and pre-fault; raises PoolTooSmall."""
        self._pool = HostPool(size_bytes)

    @property
    def size_bytes(self) -> int:
        """How much fits."""
        return self._pool.size_bytes

    @property
    def bytes(self) -> torch.Tensor:
        """The payload."""
        return self._pool.bytes

    def begin(self) -> None:
        """Nothing is noted."""

    def seal(self, note: Note) -> None:
        """Nothing is noted."""

    def hash_payload(self) -> None:
        """Nobody would compare them."""

    def clear(self) -> None:
        """Nothing is noted."""

    def close(self) -> None:
        """See `HostPool.close`."""
        self._pool.close()
