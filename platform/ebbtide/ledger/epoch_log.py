"""The writing end of the ledger: appends from any thread are queued, and one thread commits them in groups.

While one group is being synced the next one gathers: the more wait, the more share an fsync. What a group's
acknowledgement means, and what fences off a stale writer, is in ``epoch_file``.

Not guaranteed: records whose append failed or is pending may or may not count. On NFS the look-up of a newer file may
be answered from a cache up to its acdirmin (30 s) old; mount with ``lookupcache=none`` or take Lustre.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.ledger.epoch_file import Disk, EpochFile, ReplayCost
from ebbtide.ledger.errors import LedgerBroken, LedgerError, RecordRefused
from ebbtide.ledger.history_bounds import HistoryBounds
from ebbtide.ledger.opening_record import RESERVED, snapshot_records
from ebbtide.ledger.record import JSON, encode_payload

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
    texts: list[bytes]
    since_s: float
    is_snapshot: bool = False
    done: Future[int] = field(default_factory=Future)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.texts))


class EpochLog:
    """An open ledger; make one with :meth:`open`. All methods may be called from any thread."""

    def __init__(self, file: EpochFile, history: HistoryBounds) -> None:
        self.directory = file.directory
        self._file, self._history = file, history
        self._changed = threading.Condition()
        self._queued: deque[_Append] = deque()
        self._queued_bytes = 0
        self._writing: list[_Append] = []
        self._broken: LedgerBroken | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"ledger-{file.epoch}", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        writer: str,
        expects: str = "",
        history: HistoryBounds | None = None,
        fsync: Callable[[int], None] = os.fsync,
        write: Callable[[int, bytes], int] = os.write,
    ) -> "EpochLog":
        """Begin a new epoch; it is durable, and all older ones are fenced off, when this returns.

        Blocks for as long as the filesystem does: call it where a deadline is kept. Afterwards
        ``replay(directory, up_to=log.epoch)`` gives what this epoch took over.

        Args:
            directory: made with mode 0700 if it is not there.
            writer: who writes, for people (host, pid).
            expects: identity of the ledger that must be there; nothing is made if it is not. "": any, or none.
            history: how much of the past is kept.

        Raises:
            LedgerUnusable: the directory is read-only, full or failing, or does not hold what is expected.
            LedgerFenced: another epoch was opened meanwhile.
            LedgerCorrupt: records that must count are damaged.
        """
        file = EpochFile.open(directory, writer=writer, expects=expects, disk=Disk(fsync, write))
        return cls(file, history or HistoryBounds())

    @property
    def epoch(self) -> int:
        """The epoch whose file is written now; it grows by one with each snapshot that is acknowledged."""
        return self._file.epoch

    @property
    def ledger(self) -> str:
        """The identity of this ledger, for ``expects``."""
        return self._file.ledger

    def append(self, payloads: Sequence[Mapping[str, JSON]]) -> Future[int]:
        """Queue records, in order and together; never blocks.

        Returns:
            A future that gives the last record's sequence number when all are durable, or fails with
            :class:`LedgerBroken`. Its ``result(timeout)`` is the caller's deadline.

        Raises:
            RecordRefused: a payload is no JSON object, or of a type that is the log's own; nothing was queued.
        """
        for payload in payloads:
            if payload.get("type") in RESERVED:  # guard: the log's own types cannot be appended
                raise RecordRefused(f"records of type {payload['type']!r} are written by the log itself")
        return self._queue(_Append([encode_payload(payload) for payload in payloads], time.monotonic()))

    def roll(self, contents: Sequence[Mapping[str, JSON]]) -> Future[int]:
        """Queue a snapshot of all that was appended before, and go over to a new file with it; never blocks.

        Returns:
            A future that is done when the snapshot is durable: replay starts with it from then on, and what is too
            much of the past is removed. It fails with :class:`SnapshotDeclined` if there is no room (the log goes on
            as it was), else with :class:`LedgerBroken`.

        Raises:
            RecordRefused: a part is no JSON object; nothing was queued.
        """
        texts = [encode_payload(record) for record in snapshot_records(contents)]
        return self._queue(_Append(texts, time.monotonic(), is_snapshot=True))

    def replay_cost(self) -> ReplayCost:
        """What a replay would read now; never blocks."""
        return self._file.cost

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

    def _queue(self, one: _Append) -> Future[int]:
        one.done.set_running_or_notify_cancel()  # what is queued will be written: it cannot be cancelled
        with self._changed:
            if self._broken is None and self._closing:  # guard: a closed log says so
                self._broken = LedgerBroken(f"epoch {self.epoch} of {self.directory} is closed")
            # guard: what waits for a hung filesystem has a bound
            if self._broken is None and self._queued_bytes > MAX_PENDING_BYTES:
                self._broken = LedgerBroken(
                    f"{self._queued_bytes} bytes wait for {self._file.path}: "
                    "its filesystem hangs, or takes less than is appended"
                )
            if self._broken is not None:  # guard: after a failed write no more is taken
                one.done.set_exception(self._broken)
                return one.done
            self._queued.append(one)
            self._queued_bytes += one.size_bytes
            self._changed.notify()
        return one.done

    # ---- the writing thread

    def _run(self) -> None:
        try:
            while batch := self._take():
                self._commit(batch)
        finally:
            self._end()  # guard: no caller waits for ever
            self._file.close()

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
        """Group commit: one write and one fsync for all appends up to the next snapshot, or to the end."""
        group: list[_Append] = []
        for one in batch:
            if one.is_snapshot:  # guard: a snapshot says what was queued before it
                self._settle(group, self._append)
                self._settle([one], self._roll)
                group = []
            else:
                group.append(one)
        self._settle(group, self._append)
        if (
            any(one.is_snapshot for one in batch)
            # guard: a log that is broken removes no file
            and self._broken is None
        ):
            self._file.forget(self._history)

    def _append(self, group: list[_Append]) -> list[int]:
        return self._file.append([one.texts for one in group])

    def _roll(self, group: list[_Append]) -> list[int]:
        [one] = group
        self._file.roll(one.texts)
        return [len(one.texts)]

    def _settle(self, group: list[_Append], commit: Callable[[list[_Append]], list[int]]) -> None:
        if not group:
            return
        numbers: list[int] = []
        failed: LedgerError | None = self._broken
        if failed is None:
            try:
                numbers = commit(group)
            except LedgerError as error:
                failed = error
        with self._changed:
            self._writing = self._writing[len(group) :]
            if isinstance(failed, LedgerBroken):  # guard: after a failed write no more is written to the file
                self._broken = self._broken or failed
        for place, one in enumerate(group):
            if failed is None:
                one.done.set_result(numbers[place])
            else:
                one.done.set_exception(failed)
