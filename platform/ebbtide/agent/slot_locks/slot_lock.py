"""The slot lock: the proof of who may touch a GPU, held by the very process that owns the memory.

It is ``flock`` on one node-local file per GPU, because the kernel drops it when its holder dies in whatever way, and
because nobody needs to be running for that. The content (JSON, written after the lock is had, emptied before it is
let go) only says who holds it; the lock itself never depends on it. The file is never removed.

- *exec*: the descriptor is close-on-exec, so started programs do not inherit the lock.
- *fork without exec*: the child shares the lock and keeps it beyond the parent's death. That is wanted: such a child
  inherits the driver's descriptors too, and the GPU's memory stays taken until it has gone as well. When the parent
  releases, the lock is free at once, whatever children live. In the child ``held`` is False and ``release()`` only
  drops the child's share.
- *a stale lease*: a file beside the lock keeps the highest epoch that ever held it, and a lower one is refused even
  while nobody holds the lock (see ``highest_epoch``).
- *the holder answers for other processes* (a session's supervisor): it names their tree in the file, and as long as
  that tree may live the lock counts as held, even if its holder was killed (see ``lock_content``).
- *the file was deleted while held*: an acquirer that had opened the deleted file notices and starts over. One that
  comes later makes a new file and cannot see the old holder; the directory is 0700 so that only its owner can do
  such a thing, and the node agent keeps on watching the deleted file (see ``slot_watch``).

Not guaranteed: nothing on a network filesystem; and that memory is gone when the lock is: where there is a real GPU,
ask NVML as well.
"""

import errno
import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from ebbtide.agent.errors import LockDirUnusable, SlotBusy, StaleLease
from ebbtide.agent.slot_locks.allocation_log import AllocationLog
from ebbtide.agent.slot_locks.highest_epoch import highest_epoch, remember_epoch
from ebbtide.agent.slot_locks.lock_content import HeldTree, left_behind, read_content, write_content
from ebbtide.client.messages import LockHolder, SlotRef
from ebbtide.system.process import boot_id, started_ticks

_RETRY_S = 0.005
# A probe holds the file for microseconds, longer when it is preempted; probers alone never make an acquirer give up
# before this time.
_PROBE_PATIENCE_S = 1.0


class SlotLock:
    """One process's lock on one slot; take it before the first device allocation, release it after the last free.

    Args:
        lock_dir: node-local directory, made with mode 0700 if it is not there.
        slot: which GPU; its file is named after the uuid, or the index where there is none.
        workload, epoch, rank: what the holder says about itself: lease epoch, rank within a job.
        ledger: of the pool that gave the lease, within which epochs grow; "": the epoch is not compared.
        log_dir: where the allocation log goes; None: none is kept. It may hang or fail without harm to the lock.
    """

    def __init__(
        self,
        lock_dir: Path,
        slot: SlotRef,
        *,
        workload: str,
        epoch: int,
        rank: int = 0,
        ledger: str = "",
        log_dir: Path | None = None,
    ) -> None:
        self._path = lock_file(lock_dir, slot)
        self._slot = slot
        self._workload, self._epoch, self._rank, self._ledger = workload, epoch, rank, ledger
        self._log_dir = log_dir
        self._log: AllocationLog | None = None
        self._fd = -1
        self._owner = 0

    @property
    def held(self) -> bool:
        """Whether this process holds the lock (a forked child never does)."""
        return self._fd >= 0 and self._owner == os.getpid()

    def acquire(self, timeout_s: float) -> None:
        """Take the lock within ``timeout_s`` seconds; does nothing when it is held already.

        Raises:
            SlotBusy: another process still holds it.
            StaleLease: the slot was leased anew since; this lease is worth nothing any more.
            LockDirUnusable: the directory is missing and cannot be made, is not ours alone, or refuses writes.
        """
        if self.held:
            return
        _make_directory(self._path.parent)
        deadline_s = time.monotonic() + timeout_s
        while (fd := _try_lock(self._path)) < 0:
            late_s = time.monotonic() - deadline_s
            if late_s >= 0:
                holder = read_holder(self._path)
                if holder is not None or late_s > _PROBE_PATIENCE_S:
                    raise self._busy(holder)
            time.sleep(_RETRY_S if late_s < 0 else _RETRY_S / 10)
        try:
            self._refuse_if_stale()
        except StaleLease:
            os.close(fd)
            raise
        pid = os.getpid()
        started = started_ticks(pid) or 0
        try:
            # Remembered first: from the moment that we are seen to hold the slot, no older lease may follow.
            if self._ledger:
                remember_epoch(self._path, self._ledger, self._epoch)  # guard: the epoch that held a slot is remembered
            os.ftruncate(fd, 0)  # what a killed predecessor left must not be read as ours
            write_content(fd, LockHolder(self._workload, self._epoch, pid, started, self._rank))
        except OSError as error:
            os.close(fd)
            raise LockDirUnusable(f"cannot write {self._path}: {error.strerror}; free some space there") from error
        self._fd, self._owner = fd, pid
        if self._log_dir is not None:
            self._log = AllocationLog(self._log_dir, self._slot, workload=self._workload, epoch=self._epoch)

    def release(self) -> None:
        """Let go, after the last of the memory was freed; does nothing when it is not held."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        log, self._log = self._log, None
        if self._owner != os.getpid():  # guard: a forked child cannot release its parent's lock
            os.close(fd)  # a forked child: the lock is its parent's
            return
        if log is not None:
            log.note_released()  # before the lock goes, so that no successor's interval can overlap by clock order
        try:
            os.ftruncate(fd, 0)
        finally:
            # Unlocked and not just closed: forked children may have copies of the descriptor.
            fcntl.flock(fd, fcntl.LOCK_UN)  # guard: a release frees the lock though forked children live
            os.close(fd)
        if log is not None:
            log.close()

    def share(self) -> int:
        """A descriptor for another process, which then keeps the lock beyond this one's death; to be closed by the
        caller. `release` lets go for all that share it.

        Raises:
            ValueError: this process does not hold the lock.
        """
        if not self.held:
            raise ValueError(
                f"the lock of GPU {self._slot.index} is not held by this process: there is nothing to share"
            )
        return os.dup(self._fd)

    def hand_over(self) -> None:
        """Leave the lock, as it is, to those that share it (`share`); does nothing when it is not held.

        It is free when the last of them has ended. The allocation log ends here: nobody is left to write when that was.
        """
        if not self.held:
            return
        fd, self._fd = self._fd, -1
        log, self._log = self._log, None
        os.close(fd)
        if log is not None:
            log.note_released()
            log.close()

    def answer_for(self, leader: tuple[int, int] | None, *, expected_s: float = 0.0) -> None:
        """Name the process tree for which this process holds the lock, before it does anything (see `lock_content`).

        Args:
            leader: its pid and start time in ticks; None: there is none any more.
            expected_s: it is not there yet and may appear for so long, started then or later.

        Raises:
            ValueError: this process does not hold the lock.
            LockDirUnusable: it cannot be written.
        """
        if not self.held:
            raise ValueError(f"the lock of GPU {self._slot.index} is not held by this process: it answers for nobody")
        pid = os.getpid()
        holder = LockHolder(self._workload, self._epoch, pid, started_ticks(pid) or 0, self._rank)
        tree = None
        if leader is not None:
            until_s = time.clock_gettime(time.CLOCK_BOOTTIME) + expected_s if expected_s else 0.0
            tree = HeldTree(*leader, until_s=until_s, boot=boot_id())
        try:
            write_content(self._fd, holder, tree)
        except OSError as error:
            raise LockDirUnusable(f"cannot write {self._path}: {error.strerror}; free some space there") from error

    def _refuse_if_stale(self) -> None:
        """Compared under the lock: whoever had it before us has remembered its epoch by now."""
        highest = highest_epoch(self._path, self._ledger) if self._ledger else 0
        if highest > self._epoch:  # guard: a lower epoch is refused though no process holds the lock
            raise StaleLease(
                f"{self._workload} (epoch {self._epoch}) cannot have GPU {self._slot.index}: it has been leased under "
                f"epoch {highest} since; this lease is over, leave"
            )

    def _busy(self, holder: LockHolder | None) -> SlotBusy:
        who = "nobody any more"
        if holder is not None:
            process = f"pid {holder.pid}" if holder.pid else "processes that outlived its holder"
            who = f"{holder.workload} (epoch {holder.epoch}, {process})"
        return SlotBusy(
            f"{self._workload} (epoch {self._epoch}) cannot have GPU {self._slot.index}: {self._path} is held by "
            f"{who}; ask again, or give the lease back",
            holder,
        )

    def __enter__(self) -> Self:
        if not self.held:
            self.acquire(0.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def probe(lock_dir: Path, slot: SlotRef) -> LockHolder | None:
    """Who holds the slot's lock now, by its own words; None: nobody. Disturbs neither holders nor other probes.

    Raises:
        LockDirUnusable: the lock file is there but cannot be read, so nothing is proven.
    """
    return read_holder(lock_file(lock_dir, slot))


def lock_file(lock_dir: Path, slot: SlotRef) -> Path:
    """The slot's file.

    Raises:
        ValueError: the uuid is not fit for a file name.
    """
    if os.sep in slot.uuid or slot.uuid in (".", ".."):
        raise ValueError(f"GPU uuid {slot.uuid!r} of {slot.node}:{slot.index} cannot be a file name")
    return lock_dir / f"{slot.uuid or f'gpu-{slot.index}'}.lock"


def read_holder(path: Path) -> LockHolder | None:
    """Like :func:`probe`, for a lock file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LockDirUnusable(f"cannot read {path}: {error.strerror}; whether its GPU is free is unknown") from error
    try:
        return holder_of(fd)
    finally:
        os.close(fd)


def holder_of(fd: int) -> LockHolder | None:
    """Like :func:`probe`, for an open lock file, which may have been deleted since."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return read_content(fd)
    found = left_behind(fd)
    fcntl.flock(fd, fcntl.LOCK_UN)
    return found


def _make_directory(directory: Path) -> None:
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        mode = os.stat(directory).st_mode
    except OSError as error:
        raise LockDirUnusable(
            f"cannot make the lock directory {directory}: {error.strerror}; name a writable node-local one"
        ) from error
    if mode & 0o002:  # guard: no lock lies in a directory that every user may write to
        raise LockDirUnusable(f"everybody may write to the lock directory {directory}; `chmod 700` it")


def _try_lock(path: Path) -> int:
    """The descriptor of the locked file, or -1 while somebody else has it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise LockDirUnusable(
            f"cannot open {path}: {error.strerror}; the lock directory must be writable and on this node"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # guard: one process has a slot's lock
        mine, there = os.fstat(fd), os.stat(path)
        if (
            # guard: a lock file that was deleted meanwhile is not the lock
            (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
            and left_behind(fd) is None  # guard: a lock is not had while a tree that its file names may live
        ):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass  # held by another, or deleted between open and lock: the caller tries again
    except OSError as error:
        os.close(fd)
        name = errno.errorcode.get(error.errno or 0, "error")
        raise LockDirUnusable(f"cannot lock {path}: {name}; its filesystem must support flock") from error
    os.close(fd)
    return -1
