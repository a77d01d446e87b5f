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
from ebbtide.snapshot.eviction.host_memory import HostMemory, HostRegion
from ebbtide.snapshot.eviction.page_lock import NothingLocked, Pages
from ebbtide.snapshot.eviction.tensor_eviction import Evicted, Plan, copy_out
from ebbtide_train.session.parking.host_checkpoint import Portable

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
        # guard: host memory that is large enough is used again
        if (
            self._region is not None
            and self._region.size_bytes >= size_bytes  # guard: host memory that is too small is not used again
        ):
            return ""
        try:
            # guard: host memory is given back before more is lent
            self.close()  # first: two at once would need twice the memory
            self._region = self._memory.lend(size_bytes)
        except SnapshotError as error:  # guard: host memory that is refused is a reason and no error
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
        if self._region is None:  # guard: without host memory nothing is copied
            raise PoolTooSmall("no host memory was lent")
        self.forget()  # guard: what was kept makes room for the next park
        region, state = self._region, dict[str, object]()
        region.begin()  # guard: a region is begun before it is written
        try:
            evicted = copy_out(plan, region, threads=self._threads)
            if portable is not None:
                state, note = portable.put(plan, region.bytes)
            region.seal(note)
        except BaseException:  # guard: a copy that fails counts for nothing
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
            except (OSError, MemoryError, SnapshotError) as error:  # guard: a parked state without hashes counts
                _logger.warning("what is parked in host memory has no hashes: %s", error)

        hashing = threading.Thread(target=hash_all, name="hash-parked", daemon=True)
        try:
            hashing.start()
        # guard: a parked state counts where no thread can hash it
        except RuntimeError as error:  # "can't start new thread"
            _logger.warning("what is parked in host memory has no hashes: %s", error)
        else:
            self._hashing = hashing

    def forget_if_durable(self, durable_step: int) -> None:
        """The gang runs again, and so much is published: a parked state of that needs to be kept no more."""
        hashing = self._hashing is not None and self._hashing.is_alive()
        if (
            self.stage is Stage.KEPT
            and durable_step >= self._step  # guard: a parked state is kept until its step is durable
            and not hashing  # guard: hashes that are being made hold up no step
        ):
            self.forget()  # guard: a parked state that is durable is given up

    def forget(self) -> None:
        """What is in the region counts no more. Nobody may be reading it (a spill)."""
        # guard: what is away is not given up for another step
        if self.stage not in (Stage.COPIED, Stage.KEPT) or self._region is None:
            return
        self._wait_for_hashes()  # guard: hashes are waited for before host memory is used again
        self._region.clear()  # guard: what is forgotten counts no more
        self._evicted = None
        self._go(Stage.LENT)

    def close(self, *, frozen: bool = False) -> None:
        """Give the memory back: nothing in it is needed any more, since it is committed or can never be.

        ``frozen``: this process is off its GPU, and a call to CUDA would wait for ever; then it ends soon.
        """
        if self._region is None:  # guard: host memory that was given back may be given back again
            return
        self.forget()
        self._wait_for_hashes()  # guard: hashes are waited for before host memory is given back
        self._region.clear()  # guard: what is in host memory that is given back counts no more
        self._pages.leave() if frozen else self._pages.unlock()
        self._region.close()
        self._region = self._evicted = None
        self._go(Stage.NONE)

    def _wait_for_hashes(self) -> None:
        if self._hashing is not None:
            self._hashing.join()
            self._hashing = None

    def _go(self, stage: Stage) -> None:
        if stage not in EDGES[self.stage]:  # guard: host memory changes only as the table of stages lists
            raise ValueError(f"host memory that is {self.stage.value} cannot become {stage.value}")
        self.stage = stage
