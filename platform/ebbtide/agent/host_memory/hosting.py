"""Lending the node's host memory by budget, and clearing up after borrowers.

All books are in the regions themselves: an agent that was killed finds everything again by looking into its folder.
What it does not find again is the budget, which the arbiter tells it each second; until then nothing is lent.

The one rule of clearing up: what a dead borrower left FULL may be the only copy of a job's last steps. It goes only
when somebody says that it is settled, or when the job has ended for good.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ebbtide.snapshot.errors import HostMemoryShort, RegionDamaged
from ebbtide.snapshot.regions.create import MAKING, SUFFIX, create_region, region_path
from ebbtide.snapshot.regions.layout import rounded
from ebbtide.snapshot.regions.look import RegionView, look
from ebbtide.snapshot.regions.states import RegionKey, RegionState

# A job that the arbiter does not name may be one that it has not heard of yet: just submitted, or its ledger is being
# restored. Its memory goes when it was missing in everything that the arbiter said for so long.
MISSING_S = 60.0
IDLE_S = 60.0  # a region that was lent a moment ago has no borrower yet: it is told the path first

_log = logging.getLogger(__name__)


class Hosting:
    """The regions of one node. Safe to use from several threads."""

    def __init__(self, folder: Path, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Nothing is made yet. ``folder``: on a tmpfs; it and its parent become private to this user."""
        self._folder = folder
        self._clock_s = clock_s
        self._budget: int | None = None  # bytes; None: nobody has said yet
        self._missing_since: dict[str, float] = {}  # by job
        self._idle_since: dict[str, float] = {}  # by file: nobody has it, and nothing in it counts
        self._warned: set[str] = set()
        self._lock = threading.Lock()  # of who lends and who clears up

    def set_budget(self, nbytes: int) -> None:
        """What may be lent in all. Memory that is lent already stays lent, also if it is more."""
        self._budget = nbytes

    def lend(self, key: RegionKey, size_bytes: int) -> Path:
        """A region of at least so many bytes, all of them there; takes seconds for many GB.

        What the same rank had before and does not count is taken back for it.

        Raises:
            HostMemoryShort: not within the budget, or the node has not that much; says what would help.
            OSError: the folder cannot be used.
        """
        with self._lock:
            self._make_folder()
            mine = [view for view in self.regions() if (view.key.job, view.key.rank) == (key.job, key.rank)]
            for view in mine:
                if view.key == key and self._fits(view, size_bytes):
                    return view.path
                if view.state is not RegionState.FULL and not view.borrower_lives:
                    view.path.unlink(missing_ok=True)
            self._must_fit(key, rounded(size_bytes))
            if any(view.path == region_path(self._folder, key) for view in self.regions()):
                raise HostMemoryShort(
                    f"rank {key.rank} of {key.job} has host memory under this lease already, and something in it counts"
                )
            return create_region(self._folder, key, size_bytes)

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
        """What gangs of this job up to that lease left is published, or counts no more; gives the files removed."""
        with self._lock:
            return self._remove(
                view for view in self.regions() if view.key.job == job and view.key.lease_epoch <= lease_epoch
            )

    def sweep(self, living_jobs: Iterable[str]) -> list[str]:
        """Take back what nobody can need any more; to be called again and again. Gives the files removed.

        Args:
            living_jobs: every job of the pool that has not ended.
        """
        if not self._lock.acquire(blocking=False):
            return []  # somebody is being lent memory; there is a next time
        try:
            for path in self._files(MAKING):
                path.unlink(missing_ok=True)  # of an agent that was killed; nobody but us makes any
            living, now_s = set(living_jobs), self._clock_s()
            views = self.regions()
            missing = {view.key.job for view in views} - living
            self._missing_since = {job: self._missing_since.get(job, now_s) for job in missing}
            gone = {job for job, since_s in self._missing_since.items() if now_s - since_s >= MISSING_S}
            idle = {view.path.name for view in views if view.state is not RegionState.FULL and not view.borrower_lives}
            self._idle_since = {name: self._idle_since.get(name, now_s) for name in idle}
            unused = {name for name, since_s in self._idle_since.items() if now_s - since_s >= IDLE_S}
            return self._remove(view for view in views if view.key.job in gone or view.path.name in unused)
        finally:
            self._lock.release()

    def _remove(self, views: Iterable[RegionView]) -> list[str]:
        removed = []
        for view in views:
            if not view.borrower_lives:
                view.path.unlink(missing_ok=True)
                removed.append(view.path.name)
        return removed

    @staticmethod
    def _fits(view: RegionView, size_bytes: int) -> bool:
        return view.size_bytes >= size_bytes and view.state is not RegionState.FULL and not view.borrower_lives

    def _must_fit(self, key: RegionKey, size_bytes: int) -> None:
        if self._budget is None:
            raise HostMemoryShort("the arbiter has not told this node's agent yet how much host memory it may lend")
        lent = {view.path.name: view.size_bytes for view in self.regions()}
        if sum(lent.values()) + size_bytes > self._budget:
            raise HostMemoryShort(
                f"rank {key.rank} of {key.job} needs {size_bytes} bytes of host memory; this node lends {self._budget} "
                f"in all and {sum(lent.values())} are lent ({', '.join(sorted(lent)) or 'to nobody'}): raise "
                "pool.host_memory_per_node, or set in_place: false for a job"
            )

    def _make_folder(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self._folder, *self._folder.parents[:2]):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                raise HostMemoryShort(f"{folder} is not this user's own: somebody else could read what is parked there")

    def _files(self, suffix: str) -> list[Path]:
        try:
            return sorted(path for path in self._folder.iterdir() if path.name.endswith(suffix))
        except OSError:  # not made yet
            return []
