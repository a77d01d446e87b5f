"""What this process holds on its slot: the slot lock, the process group, the DDP, and the tracked tensors.

Order is the point of this module. Taking: lock, then memory, then group. Leaving: DDP, group, memory, and the lock
last, so that whoever gets the lock next finds the memory gone.

On a GPU the CUDA context stays after everything tracked has left. Where the driver can take it off (`device_context`)
that comes before the lock; else parking in place is refused, and the lock is kept until the process exits.
"""

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from ebbtide.client.messages import Lease
from ebbtide.snapshot.errors import NotEvictable, SnapshotError
from ebbtide.snapshot.eviction.host_copy import threads_for
from ebbtide.snapshot.eviction.host_memory import HostMemory, OwnMemory
from ebbtide.snapshot.eviction.page_lock import NothingLocked, PageLock
from ebbtide.snapshot.eviction.tensor_eviction import discard, plan
from ebbtide.snapshot.nccl import nccl_settings
from ebbtide.system.process_memory import malloc_trim
from ebbtide_train.session.coordination.file_barrier import file_barrier
from ebbtide_train.session.coordination.process_group import Group
from ebbtide_train.session.coordination.rendezvous import folder_of
from ebbtide_train.session.parking.device_context import ContextStays, DeviceContext, NothingStays
from ebbtide_train.session.parking.host_checkpoint import Portable
from ebbtide_train.session.parking.host_state import HostState
from ebbtide_train.session.parking.park_hindrances import obstacle
from ebbtide_train.session.settings import SessionSettings
from ebbtide_train.session.state.ddp_wrapper import DdpWrapper
from ebbtide_train.session.state.train_state import TrainState


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

    def __init__(
        self, settings: SessionSettings, lock_for: LockFor, memory: HostMemory, context: DeviceContext | None = None
    ) -> None:
        """Nothing is taken yet; ``context``: by default one that nobody takes off a GPU."""
        self._settings = settings
        self._lock_for = lock_for
        self._lock: Lock | None = None
        self._formations = 0
        self._frozen = False  # off its GPU: a call to CUDA would wait until it is back
        self._answered: Path | None = None  # this rank's file of the last roll call
        self.device = _device(settings.device)
        threads = threads_for(sum(slot.node == settings.node for slot in settings.lease.slots))
        self._pages = PageLock if self.device.type == "cuda" else NothingLocked
        self.host = HostState(memory, threads, self._pages())
        self.context = context or (ContextStays() if self.device.type == "cuda" else NothingStays())
        self.group: Group | None = None
        self.nccl: dict[str, str] | None = None  # settings that NCCL has read, once it has been used

    def take_slot(self, lease: Lease) -> None:
        """Take the slot lock under ``lease``; before any device allocation."""
        lock = self._lock_for(lease, self._settings.rank)
        lock.acquire(self._settings.lock_timeout_s)
        self._lock = lock

    def rehearse(self) -> None:
        """See `DeviceContext.rehearse`; with a little page-locked memory, as there will be much: a driver that minds
        that must say so now."""
        trial = HostState(OwnMemory(), pages=self._pages())
        trial.lend(1)
        self.context.rehearse()
        trial.close()

    def form_group(self, lease_epoch: int, *, alone_too: bool = False) -> Group:
        """Meet the other ranks at a rendezvous file that no formation has used before; see `Group`."""
        settings = self._settings
        meeting = folder_of(settings) / f"{lease_epoch}-{self._formations}"
        self._formations += 1
        if self.nccl is None and self.device.type == "cuda" and (settings.world > 1 or alone_too):
            self.nccl = nccl_settings(os.environ)  # of the first formation: NCCL does not look again
        self.group = Group.meet(
            rank=settings.rank,
            world=settings.world,
            device=self.device,
            rendezvous=meeting,
            timeout_s=settings.group_timeout_s,
            alone_too=alone_too,
        )
        return self.group

    def wrap(self, prepared: DdpWrapper, *, init_sync: bool) -> None:
        """DDP over the present group; a gang of one needs none, nor does a model that is split over the ranks."""
        if self._settings.world > 1 and not prepared.split:
            prepared.wrap(device=self.device, bucket_cap_mb=self._settings.bucket_cap_mb, init_sync=init_sync)

    def hindrance(self, tracked: TrainState) -> str:
        """Why this rank can never park in place as it is, whatever memory there is; empty if nothing is found."""
        if not self._settings.in_place:
            return "the job is configured not to park in place"
        return self.context.refusal() or obstacle(tracked.model, self.device, self.nccl)

    def refusal(self, tracked: TrainState, portable: Portable | None) -> str:
        """Why this rank cannot park in place; empty if it can, and then enough host memory is lent to it.

        Args:
            tracked: of this rank.
            portable: its state, on the rank that keeps it for the gang.
        """
        if why := self.hindrance(tracked):
            return why
        try:
            away = plan(tracked.tensors())
        except NotEvictable as error:
            return str(error)
        return self.host.lend(away.size_bytes if portable is None else portable.size_bytes(away))

    def copy_out(
        self, tracked: TrainState, portable: Portable | None, note: bytes, *, step: int
    ) -> tuple[dict[str, object], str]:
        """Copy everything tracked to host memory, and free nothing; `refusal` has just been empty on every rank.

        Returns:
            The state of ``portable``, its tensors in host memory; and why that failed, or the empty string.
        """
        try:
            return self.host.copy(plan(tracked.tensors()), portable, note, step=step), ""
        except (SnapshotError, OSError, MemoryError) as error:
            return {}, str(error) or type(error).__name__

    def vacate(self, prepared: DdpWrapper) -> None:
        """Leave the slot in place; every rank has copied.

        Raises:
            GangBroken: the context cannot leave, or another rank still has the process group; then the lock is kept,
                and this process must end.
        """
        self._drop_group(prepared)
        self.host.free()
        if self.context.occupies:
            self._await_others()
            self.context.freeze()
            self._frozen = True
        self._trim_and_release()

    def come_back(self, prepared: DdpWrapper, lease: Lease) -> Group:
        """Take the slot again and put everything back where it was. Host memory keeps its copy.

        Raises:
            GangBroken: the context cannot come back; then this process must end.
        """
        self.take_slot(lease)
        self.context.thaw()
        self._frozen = False
        self.host.put_back()
        group = self.form_group(lease.epoch)
        if self._answered is not None:
            self._answered.unlink(missing_ok=True)  # all ranks are back
            self._answered = None
        self.wrap(prepared, init_sync=False)  # every rank has its own bits back
        return group

    def leave(self, prepared: DdpWrapper | None, tracked: TrainState | None, *, drop_state: bool) -> None:
        """Leave for good: with ``drop_state`` the tracked tensors go at once, and the lock with them if nothing stays.

        Whatever cannot be dropped here keeps the lock until this process exits.
        """
        self._drop_group(prepared)
        if not drop_state or tracked is None:
            return
        try:
            # Objects are not asked for their tensors while those are away: one that looks into them would crash.
            left = None if self.host.away is not None else plan(tracked.tensors())
        except NotEvictable:
            return
        finally:
            self.host.close(frozen=self._frozen)  # what it held is committed, or can never be
        if left is not None:
            discard(left)
        self._trim_and_release()

    def _await_others(self) -> None:
        settings = self._settings
        if settings.world > 1:
            name = f"off-{settings.lease.epoch}-{self._formations}"
            self._answered = file_barrier(folder_of(settings), name, rank=settings.rank, world=settings.world)

    def _drop_group(self, prepared: DdpWrapper | None) -> None:
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
        if not self.context.occupies and self._lock is not None:
            self._lock.release()
            self._lock = None


def _device(wish: str) -> torch.device:
    if wish == "auto":
        wish = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wish, torch.cuda.current_device()) if wish == "cuda" else torch.device(wish)
