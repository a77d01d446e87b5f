"""The writing end of the ledger: one epoch, one file, one writer.

An epoch is opened in this order, each step durable before the next: create the file with O_EXCL (whoever loses a race
takes the next number), read the older files, write a first record that fixes up to which offset each of them counts.
Reading comes after creating, and an append is acknowledged only if after its fsync there is still no newer file.
Hence: a record that was acknowledged lay in its file before the newer file was made, so the newer epoch read it and
counts it; and a stale writer, paused for however long at whatever line, is never acknowledged again.

After a failed write or fsync nothing may be tried again on the same file: the kernel may have dropped the pages and
would report success (fsyncgate, https://lwn.net/Articles/752063/). The log is broken for good; open a new epoch.

Not guaranteed: records whose append failed or is pending may or may not count. On NFS the look-up of a newer file may
be answered from a cache up to its acdirmin (30 s) old; mount with ``lookupcache=none`` or take Lustre.
"""

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from ebbtide.ledger.errors import LedgerBroken, LedgerFenced, LedgerUnusable
from ebbtide.ledger.reader import OPENING, epoch_path, list_epochs, survey, valid_end
from ebbtide.ledger.record import JSON, encode_payload, frame

# An arbiter writes some 10 kB a second: this is an hour of a hung filesystem, and then memory must not grow on.
MAX_PENDING_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class LedgerHealth:
    """How the log does: appends not yet acknowledged, age of the oldest in seconds, and why it is broken, or ''."""

    pending: int
    oldest_pending_s: float
    broken: str


@dataclass(slots=True)
class _Append:
    data: bytes
    last_seq: int
    since_s: float
    done: Future[int] = field(default_factory=Future)


class EpochLog:
    """An open epoch; make one with :meth:`open`. All methods may be called from any thread."""

    def __init__(
        self,
        directory: Path,
        *,
        epoch: int,
        fd: int,
        fsync: Callable[[int], None],
        write: Callable[[int, bytes], int],
    ) -> None:
        self.directory, self.epoch = directory, epoch
        self._fd, self._fsync, self._write = fd, fsync, write
        self._newer = epoch_path(directory, epoch + 1)  # numbers have no gaps, so this one comes first
        self._changed = threading.Condition()
        self._queued: deque[_Append] = deque()
        self._queued_bytes = 0
        self._writing: list[_Append] = []
        self._next_seq = 1
        self._broken: LedgerBroken | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"ledger-{epoch}", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        writer: str,
        fsync: Callable[[int], None] = os.fsync,
        write: Callable[[int, bytes], int] = os.write,
    ) -> "EpochLog":
        """Begin a new epoch; it is durable, and all older ones are fenced off, when this returns.

        Blocks for as long as the filesystem does: call it where a deadline is kept. Afterwards
        ``replay(directory, up_to=log.epoch)`` gives what this epoch took over.

        Args:
            directory: made with mode 0700 if it is not there.
            writer: who writes, for people (host, pid).

        Raises:
            LedgerUnusable: the directory is read-only, full or failing.
            LedgerFenced: another epoch was opened meanwhile.
            LedgerCorrupt: records that must count are damaged.
        """
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            epoch, fd = _create(directory)
        except OSError as error:
            _refuse(directory, "make a file in", error)
        try:
            _sync_directory(directory, fsync)
            old = survey(directory, up_to=epoch - 1)
            counts = {**old.limits, old.top: valid_end(directory, old.top)} if old.top else {}
            opening: dict[str, JSON] = {
                "type": OPENING,
                "writer": writer,
                "made_ns": time.time_ns(),  # tells this ledger from another that was made in its place
                "counts": {str(number): end for number, end in counts.items()},
            }
            _write_all(write, fd, frame(epoch, 0, encode_payload(opening)))
            fsync(fd)
            if _exists(epoch_path(directory, epoch + 1)):
                raise LedgerFenced(f"epoch {epoch} of {directory} was overtaken while it was opened")
        except OSError as error:
            os.close(fd)
            _refuse(directory, "write to", error)
        except BaseException:
            os.close(fd)
            raise
        return cls(directory, epoch=epoch, fd=fd, fsync=fsync, write=write)

    @property
    def next_seq(self) -> int:
        """The number that the next payload gets; stable only for the one thread that appends."""
        with self._changed:
            return self._next_seq

    def append(self, payloads: Sequence[Mapping[str, JSON]]) -> Future[int]:
        """Queue records, in order and together; never blocks.

        Returns:
            A future that gives the last record's sequence number when all are durable, or fails with
            :class:`LedgerBroken`. Its ``result(timeout)`` is the caller's deadline.

        Raises:
            RecordRefused: a payload is no JSON object; nothing was queued.
        """
        texts = [encode_payload(payload) for payload in payloads]
        with self._changed:
            if self._broken is None and self._closing:
                self._broken = LedgerBroken(f"epoch {self.epoch} of {self.directory} is closed")
            if self._broken is None and self._queued_bytes > MAX_PENDING_BYTES:
                self._broken = LedgerBroken(
                    f"{self._queued_bytes} bytes wait for {epoch_path(self.directory, self.epoch)}: "
                    "its filesystem hangs, or takes less than is appended"
                )
            first = self._next_seq
            last = first + len(texts) - 1
            data = b"".join(frame(self.epoch, first + place, text) for place, text in enumerate(texts))
            queued = _Append(data, last, time.monotonic())
            queued.done.set_running_or_notify_cancel()  # what is queued will be written: it cannot be cancelled
            if self._broken is not None:
                queued.done.set_exception(self._broken)
                return queued.done
            self._next_seq = last + 1
            self._queued.append(queued)
            self._queued_bytes += len(data)
            self._changed.notify()
        return queued.done

    def health(self) -> LedgerHealth:
        """How the log does; never blocks."""
        with self._changed:
            waiting = [*self._writing, *self._queued]
            oldest_s = time.monotonic() - waiting[0].since_s if waiting else 0.0
            return LedgerHealth(len(waiting), oldest_s, str(self._broken) if self._broken else "")

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is queued and end; after ``timeout_s`` of a hung filesystem it is left to its thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while batch := self._take():
                self._commit(batch)
        finally:
            self._end()
            os.close(self._fd)

    def _end(self) -> None:
        """Nobody waits for ever, even if this thread ends by a bug."""
        with self._changed:
            left = [*self._writing, *self._queued]
            self._queued.clear()
            self._broken = self._broken or LedgerBroken(f"epoch {self.epoch} of {self.directory} is closed")
            for one in left:
                if not one.done.done():
                    one.done.set_exception(self._broken)

    def _take(self) -> list[_Append]:
        with self._changed:
            self._changed.wait_for(lambda: self._queued or self._closing)
            self._writing = list(self._queued)
            self._queued.clear()
            self._queued_bytes = 0
            return self._writing

    def _commit(self, batch: list[_Append]) -> None:
        """Group commit: one write and one fsync for all that was queued."""
        broken = self._broken
        if broken is None:
            path = epoch_path(self.directory, self.epoch)
            try:
                _write_all(self._write, self._fd, b"".join(one.data for one in batch))
                self._fsync(self._fd)
                if _exists(self._newer):
                    broken = LedgerFenced(f"{path} is fenced off: {self._newer.name} exists, another arbiter took over")
            except OSError as error:
                broken = LedgerBroken(
                    f"cannot append to {path}: [errno {error.errno}] {error.strerror}; nothing more is written there"
                )
                broken.__cause__ = error
        with self._changed:
            self._broken = self._broken or broken
            self._writing = []
        for one in batch:
            if broken is None:
                one.done.set_result(one.last_seq)
            else:
                one.done.set_exception(broken)


def _create(directory: Path) -> tuple[int, int]:
    epoch = max(list_epochs(directory), default=0) + 1
    while True:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            return epoch, os.open(epoch_path(directory, epoch), flags, 0o600)
        except FileExistsError:
            epoch += 1


def _sync_directory(directory: Path, fsync: Callable[[int], None]) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fsync(fd)
    finally:
        os.close(fd)


def _write_all(write: Callable[[int, bytes], int], fd: int, data: bytes) -> None:
    view = data
    while view:
        written = write(fd, view)
        if written <= 0:
            raise OSError(errno.EIO, "write took nothing")
        view = view[written:]


def _exists(path: Path) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def _refuse(directory: Path, what: str, error: OSError) -> NoReturn:
    raise LedgerUnusable(
        f"cannot {what} the ledger {directory}: [errno {error.errno}] {error.strerror}; "
        "it needs a shared directory that is writable and has space"
    ) from error
