"""One epoch's file in the hands of its writer: synchronous, for one thread; ``epoch_log`` queues and waits around it.

An epoch is opened in this order, each step durable before the next: create the file with O_EXCL (whoever loses a race
takes the next number), read the older files, write a first record that fixes up to which offset each of them counts.
Reading comes after creating, and an append is acknowledged only if after its fsync there is still no newer file.
Hence: a record that was acknowledged lay in its file before the newer file was made, so the newer epoch read it and
counts it; and a stale writer, paused for however long at whatever line, is never acknowledged again.

A writer may go over to the next epoch itself, with a snapshot of all that was appended so far. It takes the very next
number or none: whoever else has taken that has taken over. The older files are then history.

After a failed write or fsync nothing may be tried again on the same file: the kernel may have dropped the pages and
would report success (fsyncgate, https://lwn.net/Articles/752063/). The file is broken for good; open a new epoch.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from ebbtide.ledger.errors import LedgerBroken, LedgerError, LedgerFenced, LedgerUnusable, SnapshotDeclined
from ebbtide.ledger.history_bounds import HistoryBounds, remove_history
from ebbtide.ledger.ledger_files import create, create_epoch, exists, free_bytes, refuse, sync_directory, write_all
from ebbtide.ledger.opening_record import Opening
from ebbtide.ledger.reader import epoch_path, identity, list_epochs, survey, valid_end, whole_snapshot
from ebbtide.ledger.record import encode_payload, frame

SPARE_FACTOR = 4  # a snapshot is not worth the space that the next appends need


@dataclass(frozen=True, slots=True)
class ReplayCost:
    """What a replay reads now: the snapshot, the records behind it, and how many files they lie in."""

    snapshot_bytes: int = 0
    record_bytes: int = 0
    files: int = 0


@dataclass(frozen=True, slots=True)
class Disk:
    """The calls that a test may let fail."""

    fsync: Callable[[int], None] = os.fsync
    write: Callable[[int, bytes], int] = os.write


class EpochFile:
    """The file that is written now. ``epoch``, ``cost`` and ``ledger`` may be read from any thread."""

    def __init__(self, directory: Path, *, epoch: int, fd: int, end: int, opening: Opening, disk: Disk) -> None:
        self.directory, self.epoch, self.ledger = directory, epoch, opening.ledger
        self._fd, self._end, self._opening, self._disk = fd, end, opening, disk
        self._next_seq = 1
        self.cost = self._cost()

    @classmethod
    def open(cls, directory: Path, *, writer: str, expects: str, disk: Disk) -> "EpochFile":
        """See :meth:`ebbtide.ledger.epoch_log.EpochLog.open`."""
        try:
            if expects:
                _check_identity(directory, expects)
            os.makedirs(
                directory,
                mode=0o700,  # guard: the ledger's directory is its owner's only
                exist_ok=True,
            )
            epoch, fd = create_epoch(directory)
        except OSError as error:
            refuse(directory, "make a file in", error)
        try:
            sync_directory(directory, disk.fsync)  # guard: the name of an epoch's file is synced
            opening = _take_over(directory, epoch)
            data = frame(epoch, 0, encode_payload(opening.payload(writer)))
            write_all(disk.write, fd, data)
            disk.fsync(fd)  # guard: an epoch's first record is synced
            if exists(epoch_path(directory, epoch + 1)):  # guard: a newer file fences off who is just opening
                raise LedgerFenced(f"epoch {epoch} of {directory} was overtaken while it was opened")
        except OSError as error:
            os.close(fd)
            refuse(directory, "write to", error)
        except BaseException:
            os.close(fd)
            raise
        return cls(directory, epoch=epoch, fd=fd, end=len(data), opening=opening, disk=disk)

    @property
    def path(self) -> Path:
        """The file that is written now."""
        return epoch_path(self.directory, self.epoch)

    def append(self, appends: Sequence[Sequence[bytes]]) -> list[int]:
        """Write payloads, durably and together; the number of the last record of each append.

        Raises:
            LedgerBroken: whether they count is unknown; nothing may be written here again.
        """
        frames, last_seqs, seq = [], [], self._next_seq
        for texts in appends:
            frames += [frame(self.epoch, seq + place, text) for place, text in enumerate(texts)]
            seq += len(texts)
            last_seqs.append(seq - 1)
        data = b"".join(frames)
        try:
            write_all(self._disk.write, self._fd, data)
            self._disk.fsync(self._fd)  # guard: every append is synced
            self._check_still_mine()  # guard: a newer file is looked for after every fsync
        except OSError as error:
            raise self._broken(error) from error
        self._next_seq, self._end = seq, self._end + len(data)
        self.cost = self._cost()
        return last_seqs

    def roll(self, texts: Sequence[bytes]) -> None:
        """Go over to the next epoch with a snapshot.

        Raises:
            SnapshotDeclined: nothing has changed.
            LedgerBroken: a new file was made and not finished, and may fence this one off; or somebody else made it.
        """
        epoch, fd = self.epoch + 1, self._next_file(sum(map(len, texts)))
        try:
            sync_directory(self.directory, self._disk.fsync)  # guard: the name of a snapshot's file is synced
            opening = self._successor(len(texts))
            first = encode_payload(opening.payload(f"epoch {self.epoch}, with a snapshot"))
            data = b"".join(frame(epoch, seq, text) for seq, text in enumerate([first, *texts]))
            write_all(self._disk.write, fd, data)
            self._disk.fsync(fd)  # guard: a snapshot is synced
        except OSError as error:
            os.close(fd)
            raise self._broken(error) from error
        except BaseException:
            os.close(fd)
            raise
        os.close(self._fd)
        self.epoch, self._fd, self._next_seq, self._end = epoch, fd, len(texts) + 1, len(data)
        self._opening = replace(opening, base=epoch, base_end=len(data))
        try:
            self._check_still_mine()  # guard: a newer file is looked for after every snapshot
        except OSError as error:
            raise self._broken(error) from error
        self.cost = self._cost()

    def forget(self, bounds: HistoryBounds) -> None:
        """Remove what is too much of the past; what fails is tried again after the next snapshot."""
        with contextlib.suppress(OSError, LedgerError):
            remove_history(self.directory, base=self._opening.base, bounds=bounds)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _cost(self) -> ReplayCost:
        opening = self._opening
        behind = [end for epoch, end in opening.counts.items() if epoch >= opening.base]
        return ReplayCost(opening.base_end, sum(behind) + self._end - opening.base_end, len(behind) + 1)

    def _next_file(self, snapshot_bytes: int) -> int:
        path = epoch_path(self.directory, self.epoch + 1)
        try:
            # guard: no snapshot is made without room for it
            if free_bytes(self.directory) < SPARE_FACTOR * snapshot_bytes:
                raise SnapshotDeclined(f"a snapshot of {snapshot_bytes} bytes would nearly fill {self.directory}")
            return create(path)
        except FileExistsError:  # guard: a snapshot takes the very next number
            raise LedgerFenced(f"{self.path} is fenced off: {path.name} exists, another arbiter took over") from None
        except OSError as error:
            why = f"[errno {error.errno}] {error.strerror}"
            raise SnapshotDeclined(f"no snapshot can be made in {self.directory}: {why}") from error

    def _successor(self, parts: int) -> Opening:
        """The opening of the next epoch. Files that are gone, and that no replay needs, are not named again."""
        mine = self._opening
        first = _first_kept(self.directory, {**mine.counts, self.epoch: self._end}, mine)
        counts = {epoch: end for epoch, end in mine.counts.items() if epoch >= first}
        return replace(mine, counts={**counts, self.epoch: self._end}, first=first, parts=parts)

    def _check_still_mine(self) -> None:
        """After an fsync: the file that took the data must still be there, and still be the newest one."""
        try:
            there, mine = os.stat(self.path), os.fstat(self._fd)
        except FileNotFoundError:  # guard: a file that is gone acknowledges nothing
            raise LedgerBroken(f"{self.path} has disappeared: is its directory still mounted?") from None
        # guard: another file in the place of ours acknowledges nothing
        if (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            raise LedgerBroken(f"another file lies in the place of {self.path}: what was written is not in the ledger")
        newer = epoch_path(self.directory, self.epoch + 1)  # numbers have no gaps, so this one comes first
        if exists(newer):  # guard: a newer file fences the older writer off
            raise LedgerFenced(f"{self.path} is fenced off: {newer.name} exists, another arbiter took over")

    def _broken(self, error: OSError) -> LedgerBroken:
        return LedgerBroken(
            f"cannot append to {self.path}: [errno {error.errno}] {error.strerror}; nothing more is written there"
        )


def _check_identity(directory: Path, expects: str) -> None:
    found = identity(directory, survey(directory))
    if found != expects:  # guard: a ledger that is not the expected one is refused
        what = f"holds another ledger ({found})" if found else "holds no ledger"
        raise LedgerUnusable(
            f"{directory} {what}, and not the one that this pool has kept until now ({expects}); is the shared "
            "directory mounted? Nothing was written"
        )


def _take_over(directory: Path, epoch: int) -> Opening:
    """The opening of a new epoch, by what the older ones hold now."""
    view = survey(directory, up_to=epoch - 1)
    counts = {**view.limits, view.top: valid_end(directory, view.top)} if view.top else {}
    base, base_end = whole_snapshot(directory, view)
    opening = Opening(ledger=identity(directory, view) or uuid4().hex[:16], first=view.first, base=base)
    first = _first_kept(directory, counts, opening)
    return replace(
        opening, base_end=base_end, first=first, counts={one: end for one, end in counts.items() if one >= first}
    )


def _first_kept(directory: Path, counts: dict[int, int], mine: Opening) -> int:
    """The oldest epoch that is still there or that a replay needs; what is older is forgotten."""
    there = [epoch for epoch in list_epochs(directory) if epoch in counts]
    oldest = min(there, default=mine.first)
    return max(mine.first, min(oldest, mine.base) if mine.base else mine.first)
