"""This rank's share of host memory, and what of its tracked state lies in it.

::

    NONE -lend-> LENT -copy-> COPIED -free-> AWAY -put_back-> KEPT -forget-> LENT
                              COPIED -forget-> LENT           KEPT -copy-> COPIED

From COPIED on the memory holds a state that counts; it goes on counting after the tensors are back (KEPT), until that
step is durable, or the next one is parked. So a gang of which any rank dies on the way back loses nothing: the first
rank's region still holds the whole of it.
"""

import logging
import threading
from collections.abc import Mapping
from enum import Enum

from ebbtide.snapshot.errors import PoolTooSmall, SnapshotError
from ebbtide.snapshot.evict import Evicted, Plan, copy_out
from ebbtide.snapshot.host_memory import HostMemory, HostRegion
from ebbtide.snapshot.page_lock import NothingLocked, Pages
from ebbtide_train.session.portable import Portable

_logger = logging.getLogger(__name__)


class Stage(Enum):
    """What there is in host memory."""

    NONE = "none"
    LENT = "lent"  # memory, and nothing in it that counts
    COPIED = "copied"  # the state, which is still on the device too
    AWAY = "away"  # the only copy of the state
    KEPT = "kept"  # a state that is on the device again


EDGES: Mapping[Stage, frozenset[Stage]] = {
    Stage.NONE: frozenset({Stage.LENT}),
    Stage.LENT: frozenset(
        {
            Stage.COPIED,
            Stage.NONE,  # given back
        }
    ),
    Stage.COPIED: frozenset(
        {
            Stage.AWAY,  # all ranks have copied
            Stage.LENT,  # one has not, so none frees anything
        }
    ),
    Stage.AWAY: frozenset(
        {
            Stage.KEPT,
            Stage.NONE,  # the gang leaves from here, with its state committed
        }
    ),
    Stage.KEPT: frozenset(
        {
            Stage.LENT,  # it is durable, or makes room for the next
            Stage.NONE,
        }
    ),
}


class HostState:
    """One rank's parked state; used by one thread."""

    def __init__(self, memory: HostMemory, threads: int = 1, pages: Pages | None = None) -> None:
        """Nothing is lent yet; ``threads`` copy at once. ``pages``: page-locks what is lent; None: nobody does."""
        self._threads = threads
        self._pages = pages or NothingLocked()
        self.stage = Stage.NONE
        self._memory = memory
        self._region: HostRegion | None = None
        self._evicted: Evicted | None = None
        self._hashing: threading.Thread | None = None
        self._step = 0  # that the region holds, if it holds one

    def lend(self, size_bytes: int) -> str:
        """Have at least so many bytes; gives why that cannot be, or the empty string."""
        if self._region is not None and self._region.size_bytes >= size_bytes:
            return ""
        try:
            self.close()  # first: two at once would need twice the memory
            self._region = self._memory.lend(size_bytes)
        except SnapshotError as error:
            return str(error)
        self._pages.lock(self._region.bytes)
        self._go(Stage.LENT)
        return ""

    def copy(self, plan: Plan, portable: Portable | None, note: bytes, *, step: int) -> dict[str, object]:
        """Copy the storages of ``plan``, and with ``portable`` all else of the state, to the region; seal it.

        Args:
            plan: made just now.
            portable: the state, on the rank that keeps it for the gang.
            note: what the region holds, where there is no ``portable``, which says so itself.
            step: finished steps.

        Returns:
            The state of ``portable`` with its tensors in the region, or nothing.

        Raises:
            SnapshotError, OSError, MemoryError: it could not be copied; the device still has everything.
        """
        if self._region is None:
            raise PoolTooSmall("no host memory was lent")
        self.forget()
        region, state = self._region, dict[str, object]()
        region.begin()
        try:
            evicted = copy_out(plan, region, threads=self._threads)
            if portable is not None:
                state, note = portable.put(plan, region.bytes)
            region.seal(note)
        except BaseException:
            region.clear()
            raise
        self._evicted, self._step = evicted, step
        self._go(Stage.COPIED)
        return state

    def free(self) -> None:
        """Free the device memory of what was copied; all ranks have agreed to."""
        assert self._evicted is not None
        self._go(Stage.AWAY)
        self._evicted.free()

    def put_back(self) -> None:
        """Everything is on the device again; the region keeps its copy."""
        assert self._evicted is not None
        self._evicted.restore()
        self._evicted = None
        self._go(Stage.KEPT)

    @property
    def away(self) -> Plan | None:
        """What has left the device, if anything has."""
        return self._evicted.plan if self.stage is Stage.AWAY and self._evicted is not None else None

    def hash_in_background(self) -> None:
        """Let whoever takes the region over verify it. Without hashes it is trusted for what its note can tell."""
        region = self._region
        assert region is not None

        def hash_all() -> None:
            try:
                region.hash_payload()
            except (OSError, MemoryError, SnapshotError) as error:
                _logger.warning("what is parked in host memory has no hashes: %s", error)

        hashing = threading.Thread(target=hash_all, name="hash-parked", daemon=True)
        try:
            hashing.start()
        except RuntimeError as error:  # "can't start new thread"
            _logger.warning("what is parked in host memory has no hashes: %s", error)
        else:
            self._hashing = hashing

    def forget_if_durable(self, durable_step: int) -> None:
        """The gang runs again, and so much is published: a parked state of that needs to be kept no more."""
        hashing = self._hashing is not None and self._hashing.is_alive()
        if self.stage is Stage.KEPT and durable_step >= self._step and not hashing:
            self.forget()

    def forget(self) -> None:
        """What is in the region counts no more. Nobody may be reading it (a spill)."""
        if self.stage not in (Stage.COPIED, Stage.KEPT) or self._region is None:
            return
        self._wait_for_hashes()
        self._region.clear()
        self._evicted = None
        self._go(Stage.LENT)

    def close(self, *, frozen: bool = False) -> None:
        """Give the memory back: nothing in it is needed any more, since it is committed or can never be.

        ``frozen``: this process is off its GPU, and a call to CUDA would wait for ever; then it ends soon.
        """
        if self._region is None:
            return
        self.forget()
        self._wait_for_hashes()
        self._region.clear()
        self._pages.leave() if frozen else self._pages.unlock()
        self._region.close()
        self._region = self._evicted = None
        self._go(Stage.NONE)

    def _wait_for_hashes(self) -> None:
        if self._hashing is not None:
            self._hashing.join()
            self._hashing = None

    def _go(self, stage: Stage) -> None:
        if stage not in EDGES[self.stage]:
            raise ValueError(f"host memory that is {self.stage.value} cannot become {stage.value}")
        self.stage = stage
