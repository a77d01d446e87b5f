"""Lending the node's host memory by budget, and clearing up after borrowers.

All books are in the regions themselves: an agent that was killed finds everything again by looking into its folder.
What it does not find again is the budget, which the arbiter tells it each second; until then nothing is lent.

The one rule of clearing up: what a dead borrower left FULL may be the only copy of a job's last steps. It goes only
when somebody says that it is settled, or when the job has ended for good.

Taking memory lasts seconds for many GB. Who waits for that keeps nobody else waiting: it is counted as lent first, and
made without the lock of the books.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ebbtide.agent.host_memory.available_memory import available_bytes
from ebbtide.agent.host_memory.regions_folder import make_private
from ebbtide.snapshot.errors import HostMemoryShort, RegionDamaged
from ebbtide.snapshot.regions.layout import round_up
from ebbtide.snapshot.regions.region_creation import MAKING, SUFFIX, create_region, region_path
from ebbtide.snapshot.regions.region_removal import remove_region
from ebbtide.snapshot.regions.region_states import RegionKey, RegionState
from ebbtide.snapshot.regions.region_view import RegionView, look

# A job that the arbiter does not name may be one that it has not heard of yet: just submitted, or its ledger is being
# restored. Its memory goes when it was missing in everything that the arbiter said for so long.
MISSING_S = 60.0
IDLE_S = 60.0  # a region that was lent a moment ago has no borrower yet: it is told the path first

_log = logging.getLogger(__name__)


class RegionLender:
    """The regions of one node. Safe to use from several threads; only one process may have a folder."""

    def __init__(
        self,
        folder: Path,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        available: Callable[[], int | None] = available_bytes,
    ) -> None:
        """Nothing is made yet.

        Args:
            folder: on a tmpfs; it and the two above it are made, and are this user's alone.
            clock_s: for how long something is as it is.
            available: what the node's memory can still give; None: that is not known.
        """
        self._folder = folder
        self._clock_s, self._available = clock_s, available
        self._budget: int | None = None  # bytes; None: nobody has said yet
        self._making: dict[RegionKey, int] = {}  # bytes
        self._missing_since: dict[str, float] = {}  # by job
        self._idle_since: dict[str, float] = {}  # by file: nobody has it, and nothing in it counts
        self._warned: set[str] = set()
        self._books = threading.Condition()

    def set_budget(self, nbytes: int) -> None:
        """What may be lent in all. Memory that is lent already stays lent, also if it is more."""
        self._budget = nbytes

    def lend(self, key: RegionKey, size_bytes: int) -> Path:
        """A region of at least so many bytes, all of them there; takes some 0.3 s per GB.

        What the same rank had before and does not count is taken back for it. Whoever asks again, since an answer was
        lost, gets the same.

        Raises:
            HostMemoryShort: not within the budget, or the node has not that much; says what would help.
            OSError: the folder cannot be used.
        """
        with self._books:
            self._books.wait_for(lambda: key not in self._making)
            make_private(self._folder)
            for view in self.regions():
                if (view.key.job, view.key.rank) != (key.job, key.rank):
                    continue
                if view.key == key and _fits(view, size_bytes):
                    self._idle_since.pop(view.path.name, None)  # it is waited for from now on
                    return view.path
                if view.key == key and (view.state is RegionState.FULL or view.borrower_lives):
                    raise HostMemoryShort(
                        f"rank {key.rank} of {key.job} has host memory under this lease already, and "
                        + ("somebody uses it" if view.borrower_lives else "what is in it counts")
                    )
                remove_region(view.path, though_full=False)
            self._must_fit(key, round_up(size_bytes))
            self._making[key] = round_up(size_bytes)
        try:
            return create_region(self._folder, key, size_bytes)
        finally:
            with self._books:
                del self._making[key]
                self._books.notify_all()

    def regions(self) -> list[RegionView]:
        """All that are there now; what is none of ours is passed over."""
        found = []
        for path in self._files(SUFFIX):
            try:
                found.append(look(path))
            except FileNotFoundError:
                continue
            except (RegionDamaged, OSError) as error:
                if path.name not in self._warned:
                    self._warned.add(path.name)
                    _log.warning("%s is not used, and nobody removes it but you: %s", path, error)
        return found

    def settle(self, job: str, lease_epoch: int) -> list[str]:
        """What gangs of this job up to that lease left is published, or counts no more; gives the files removed.

        What somebody still uses stays, and counts: it is to be said again when that process has gone.
        """
        with self._books:
            over = [view for view in self.regions() if view.key.job == job and view.key.lease_epoch <= lease_epoch]
            return [view.path.name for view in over if remove_region(view.path, though_full=True)]

    def sweep(self, living_jobs: Iterable[str]) -> list[str]:
        """Take back what nobody can need any more; to be called again and again. Gives the files removed.

        Args:
            living_jobs: every job of the pool that has not ended.
        """
        with self._books:
            made = {region_path(self._folder, key).with_suffix(MAKING) for key in self._making}
            for path in self._files(MAKING):
                if path not in made:  # of an agent that was killed
                    path.unlink(missing_ok=True)
            living, now_s = set(living_jobs), self._clock_s()
            views = self.regions()
            missing = {view.key.job for view in views} - living
            self._missing_since = {job: self._missing_since.get(job, now_s) for job in missing}
            gone = {job for job, since_s in self._missing_since.items() if now_s - since_s >= MISSING_S}
            idle = {view.path.name for view in views if view.state is not RegionState.FULL and not view.borrower_lives}
            self._idle_since = {name: self._idle_since.get(name, now_s) for name in idle}
            unused = {name for name, since_s in self._idle_since.items() if now_s - since_s >= IDLE_S}
            return [
                view.path.name
                for view in views
                if (view.key.job in gone and remove_region(view.path, though_full=True))
                or (view.path.name in unused and remove_region(view.path, though_full=False))
            ]

    def _must_fit(self, key: RegionKey, size_bytes: int) -> None:
        asks = f"rank {key.rank} of {key.job} needs {size_bytes} bytes of host memory"
        if self._budget is None:
            raise HostMemoryShort(f"{asks}; the arbiter has not told this node's agent yet how much it may lend")
        lent = {view.path.name: view.size_bytes for view in self.regions()}
        # By name: one that has just been made is on both lists.
        lent |= {region_path(self._folder, made).name: size for made, size in self._making.items()}
        if sum(lent.values()) + size_bytes > self._budget:
            raise HostMemoryShort(
                f"{asks}; this node lends {self._budget} in all and {sum(lent.values())} are lent "
                f"({', '.join(sorted(lent)) or 'to nobody'}): raise pool.host_memory_per_node, or set in_place: false "
                "for a job"
            )
        there = self._available()
        # What is being made is taken off in full, though part of it is taken already: too little is lent at worst.
        if there is not None and size_bytes > there - sum(self._making.values()):
            raise HostMemoryShort(
                f"{asks}; this node has {there} bytes left that nobody uses, {sum(self._making.values())} of them "
                "promised: lower pool.host_memory_per_node, or run less beside it"
            )

    def _files(self, suffix: str) -> list[Path]:
        try:
            return sorted(path for path in self._folder.iterdir() if path.name.endswith(suffix))
        except OSError:  # not made yet
            return []


def _fits(view: RegionView, size_bytes: int) -> bool:
    return view.size_bytes >= size_bytes and view.state is RegionState.EMPTY and not view.borrower_lives
