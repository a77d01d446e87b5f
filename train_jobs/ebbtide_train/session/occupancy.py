"""What this process holds on its slot: the slot lock, the process group, the DDP, and the tracked tensors.

Order is the point of this module. Taking: lock, then memory, then group. Leaving: DDP, group, memory, and the lock
last, so that whoever gets the lock next finds the memory gone.

On a GPU the CUDA context stays after everything tracked has left, so there the lock is kept until the process exits,
and parking in place is refused: nothing here could prove the GPU empty. (The CUDA checkpoint tier will.)
"""

import gc
from collections.abc import Callable
from typing import Protocol

import torch

from ebbtide.client.messages import Lease
from ebbtide.snapshot.errors import NotEvictable, PoolTooSmall
from ebbtide.snapshot.evict import Evicted, Plan, discard, evict, plan
from ebbtide.snapshot.host_pool import HostPool
from ebbtide.snapshot.memory import malloc_trim
from ebbtide_train.session.group import Group
from ebbtide_train.session.meeting import folder_of
from ebbtide_train.session.prepared import Prepared
from ebbtide_train.session.settings import SessionSettings
from ebbtide_train.session.tracked import Tracked


class Lock(Protocol):
    """The part of the slot lock that a session uses."""

    def acquire(self, timeout_s: float) -> None:
        """Take it, or raise that another process holds it."""

    def release(self) -> None:
        """Let go; idempotent."""


LockFor = Callable[[Lease, int], Lock]  # the lock of one rank's slot under a lease


class NoLock:
    """For control runs and tests that have no slots."""

    def acquire(self, timeout_s: float) -> None:
        """Nothing to take."""

    def release(self) -> None:
        """Nothing to let go."""


class Occupancy:
    """One rank's hold on its slot."""

    def __init__(self, settings: SessionSettings, lock_for: LockFor) -> None:
        self._settings = settings
        self._lock_for = lock_for
        self._lock: Lock | None = None
        self._formations = 0
        self._pool: HostPool | None = None
        self._away: Plan | None = None  # what was evicted
        self.device = _device(settings.device)
        self.group: Group | None = None

    def take_slot(self, lease: Lease) -> None:
        """Take the slot lock under ``lease``; before any device allocation."""
        lock = self._lock_for(lease, self._settings.rank)
        lock.acquire(self._settings.lock_timeout_s)
        self._lock = lock

    def form_group(self, lease_epoch: int) -> Group:
        """Meet the other ranks at a rendezvous file that no formation has used before."""
        settings = self._settings
        meeting = folder_of(settings) / f"{lease_epoch}-{self._formations}"
        self._formations += 1
        self.group = Group(
            rank=settings.rank,
            world=settings.world,
            device=self.device,
            rendezvous=meeting,
            timeout_s=settings.group_timeout_s,
        )
        return self.group

    def wrap(self, prepared: Prepared, *, init_sync: bool) -> None:
        """DDP over the present group; a gang of one needs none."""
        if self._settings.world > 1:
            prepared.wrap(device=self.device, bucket_cap_mb=self._settings.bucket_cap_mb, init_sync=init_sync)

    def refusal(self, tracked: Tracked) -> str:
        """Why this rank cannot park in place; empty if it can, and then the host pool is mapped and large enough."""
        if not self._settings.in_place:
            return "the job is configured not to park in place"
        if self.device.type == "cuda":
            return "on a GPU the CUDA context would stay on the slot; stop and restart instead"
        try:
            self._reserve(plan(tracked.tensors()).size_bytes)
        except (NotEvictable, PoolTooSmall) as error:
            return str(error)
        return ""

    def vacate(self, prepared: Prepared, tracked: Tracked) -> Evicted:
        """Leave the slot in place; `refusal` has just been empty on every rank."""
        self._drop_group(prepared)
        assert self._pool is not None, "refusal() maps the pool"
        away = plan(tracked.tensors())
        evicted = evict(away, self._pool)
        self._away = away
        self._trim_and_release()
        return evicted

    def come_back(self, evicted: Evicted, prepared: Prepared, lease: Lease) -> Group:
        """Take the slot again and put everything back where it was."""
        self.take_slot(lease)
        evicted.restore()
        self._away = None
        group = self.form_group(lease.epoch)
        self.wrap(prepared, init_sync=False)  # every rank has its own bits back
        return group

    def leave(self, prepared: Prepared | None, tracked: Tracked | None, *, drop_state: bool) -> None:
        """Leave for good: with ``drop_state`` the tracked tensors go at once and, on the CPU, the lock with them.

        Whatever cannot be dropped here keeps the lock until this process exits.
        """
        self._drop_group(prepared)
        if not drop_state or tracked is None:
            return
        try:
            # Objects are not asked for their tensors while those are away: one that looks into them would crash.
            left = plan(tracked.tensors()) if self._away is None else self._away
        except NotEvictable:
            return
        discard(left)
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        self._trim_and_release()

    def _reserve(self, size_bytes: int) -> None:
        if self._pool is None or self._pool.size_bytes < size_bytes:
            if self._pool is not None:
                self._pool.close()
            self._pool = HostPool(size_bytes)

    def _drop_group(self, prepared: Prepared | None) -> None:
        """DDP first. With the group destroyed first, ranks were seen to hang here (3 ranks, several times); the likely
        cause is that a reducer with the last reference to the group ends it while it holds the interpreter's lock,
        which the group's threads want in order to let go of their tensors."""
        if prepared is not None and not prepared.unwrap():
            gc.collect()  # somebody's cycle holds it; a collection takes 0.1 to 0.3 s, so only then
        if self.group is not None:
            self.group.destroy()
            self.group = None

    def _trim_and_release(self) -> None:
        malloc_trim()
        if self.device.type == "cpu" and self._lock is not None:
            self._lock.release()
            self._lock = None


def _device(wish: str) -> torch.device:
    if wish == "auto":
        wish = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wish, torch.cuda.current_device()) if wish == "cuda" else torch.device(wish)
