"""Which records count, and in what order.

One file per epoch. The first record of each (sequence number 0, written by :class:`~ebbtide.ledger.epoch_log.EpochLog`)
fixes up to which offset every earlier epoch counts; epochs that it does not name count for nothing. So the newest
file with a valid first record decides about all older ones, and its own valid part counts whole. What a stale writer
adds to an older file lies beyond the offset, and changes nothing.

Two moments are worth knowing:

- Between the creation of a new file and its first record nobody can tell yet where the old epoch ends. A reader then
  shows what the old file holds; records that were never acknowledged may be seen and taken back later. Acknowledged
  ones are never taken back: see ``epoch_log``.
- On a network filesystem another node may see a file shorter than it is, for as long as attributes are cached. Below
  a fixed offset that is a :class:`LedgerCorrupt` that goes away when asked again.
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.ledger.errors import LedgerCorrupt, LedgerUnusable
from ebbtide.ledger.opening_record import SNAPSHOT, opening_of
from ebbtide.ledger.record import LedgerRecord, scan

_HEAD_BYTES = 256  # an epoch file's first record carries a time and a hash; it never changes
_FILE_NAME = re.compile(r"epoch-(\d{8,})\.log")


@dataclass(frozen=True, slots=True)
class Position:
    """How far an epoch was read: the offset behind the last record, and the number of the next one."""

    offset: int = 0
    seq: int = 0


@dataclass(frozen=True, slots=True)
class LedgerView:
    """Which epochs count: ``top`` whole (0: the ledger is empty), the others up to their ``limits`` in bytes.

    Epochs below ``first`` are forgotten. A replay starts in ``base``, whose snapshot ends at ``base_end`` (0: at the
    beginning), or in ``top`` itself when it begins with a whole snapshot of so many ``parts``.
    """

    top: int = 0
    limits: Mapping[int, int] = field(default_factory=dict)
    first: int = 0
    base: int = 0
    base_end: int = 0
    parts: int = 0
    ledger: str = ""

    def epochs(self) -> list[tuple[int, int | None]]:
        """(epoch, limit), oldest first."""
        older: list[tuple[int, int | None]] = sorted(self.limits.items())
        return [*older, (self.top, None)] if self.top else older


@dataclass(frozen=True, slots=True)
class Polled:
    """What is new since the last poll: first drop, for each (epoch, offset), what was read from there on."""

    dropped: tuple[tuple[int, int], ...] = ()
    records: tuple[LedgerRecord, ...] = ()


def epoch_path(directory: Path, epoch: int) -> Path:
    """The file of an epoch."""
    return directory / f"epoch-{epoch:08d}.log"


def list_epochs(directory: Path) -> list[int]:
    """The epochs that have a file, valid or not, oldest first; empty when there is no directory.

    Raises:
        LedgerUnusable: the directory cannot be read.
    """
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LedgerUnusable(f"cannot list the ledger {directory}: {error.strerror}") from error
    return sorted(int(match.group(1)) for name in names if (match := _FILE_NAME.fullmatch(name)))


def survey(directory: Path, *, up_to: int | None = None) -> LedgerView:
    """Which epochs count now; with ``up_to``: as that epoch sees it, as if there were no later ones.

    Raises:
        LedgerUnusable: the directory or a file cannot be read.
    """
    for epoch in reversed(list_epochs(directory)):
        if up_to is not None and epoch > up_to:
            continue
        for record in _read(directory, epoch, Position(), None):
            found = opening_of(record)
            if found is None:  # guard: a file without a valid first record fences no writer off
                break
            return LedgerView(epoch, found.counts, found.first, found.base, found.base_end, found.parts, found.ledger)
    return LedgerView()


def whole_snapshot(directory: Path, view: LedgerView) -> tuple[int, int]:
    """The epoch of the newest whole snapshot and the offset behind it; (0, 0): there is none.

    Raises:
        LedgerUnusable: a file cannot be read.
    """
    if view.parts:
        whole = 0
        for record in _read(directory, view.top, Position(), None):
            if record.seq > 0 and record.payload.get("type") != SNAPSHOT:
                break
            whole = record.seq
            if whole == view.parts:  # guard: only a whole snapshot is a base
                return view.top, record.end
    return view.base, view.base_end


def identity(directory: Path, view: LedgerView) -> str:
    """Which ledger this is; "" if it is empty. The same for as long as it lives, whatever is added or removed."""
    if view.ledger or not view.top:
        return view.ledger
    with epoch_path(directory, list_epochs(directory)[0]).open("rb") as file:
        return hashlib.sha256(file.read(_HEAD_BYTES)).hexdigest()[:16]


def replay(directory: Path, *, up_to: int | None = None, from_snapshot: bool = False) -> Iterator[LedgerRecord]:
    """Exactly the records that count, in order; with ``up_to``: as that epoch sees it, as if there were no later ones.

    With ``from_snapshot`` it starts with the records of the newest whole snapshot, if there is one. Among what follows
    there may be snapshots again: a whole one says all that came before it, of one that is not whole nothing counts.

    Raises:
        LedgerCorrupt: a record that must count is damaged.
        LedgerUnusable: the directory or a file cannot be read.
    """
    follower = Follower(directory, up_to=up_to, from_snapshot=from_snapshot)
    while records := follower.poll().records:
        yield from records


def past(directory: Path) -> Iterator[LedgerRecord]:
    """All records that count and are still there, in order, those of snapshots too: for whoever asks what happened.

    Where the oldest files are gone, what comes before the first whole snapshot hangs in the air.

    Raises:
        LedgerCorrupt: a record that must count is damaged.
        LedgerUnusable: the directory or a file cannot be read.
    """
    view, there = survey(directory), set(list_epochs(directory))
    for epoch, limit in view.epochs():
        if epoch not in there and epoch < whole_snapshot(directory, view)[0]:
            continue  # removed as history
        end = 0
        for record in _read(directory, epoch, Position(), limit):
            end = record.end
            if record.seq > 0:
                yield record
        if limit is not None and end != limit:
            raise _damaged(directory, epoch, end, limit, view.top)


def follow(
    directory: Path, *, stop: Callable[[], bool], poll_s: float = 0.1, sleep: Callable[[float], None] = time.sleep
) -> Iterator[LedgerRecord]:
    """Like :func:`replay`, and goes on with what is appended, until ``stop`` answers True."""
    follower = Follower(directory)
    while not stop():
        records = follower.poll().records
        yield from records
        if not records:
            sleep(poll_s)


class Follower:
    """Reads on from where it was, and says when something that was read turned out not to count."""

    def __init__(
        self,
        directory: Path,
        *,
        positions: Mapping[int, Position] | None = None,
        up_to: int | None = None,
        batch: int = 1000,
        from_snapshot: bool = False,
    ) -> None:
        self._directory, self._up_to, self._batch, self._from_snapshot = directory, up_to, batch, from_snapshot
        self._from = -1  # the epoch to start in, once known
        self.positions: dict[int, Position] = dict(positions or {})

    def poll(self) -> Polled:
        """At most one batch of new records; no records: there are no more for now.

        Raises:
            LedgerCorrupt, LedgerUnusable: see :func:`replay`; the positions are as before.
        """
        view = survey(self._directory, up_to=self._up_to)
        if self._from_snapshot and self._from < 0:
            self._from = whole_snapshot(self._directory, view)[0]
        positions = {epoch: one for epoch, one in self.positions.items() if epoch >= view.first}
        dropped = self._drop(view, positions)
        records: list[LedgerRecord] = []
        for epoch, limit in view.epochs():
            position = positions.get(epoch, Position())
            if epoch < self._from or (limit is not None and position.offset >= limit):
                continue
            reached = self._take(records, epoch, position, limit)
            positions[epoch] = reached
            if len(records) >= self._batch:
                break
            if limit is not None and reached.offset != limit:  # guard: a damaged record that must count is damage
                self._missing(epoch, reached, limit)
                positions[epoch] = Position(limit)  # removed, so nothing of it can come any more
                if self._from_snapshot:  # what follows upon a gap means nothing: go on where everything is said again
                    self.positions = positions
                    return self.poll() if not records else Polled(tuple(dropped), tuple(records))
        self.positions = positions
        return Polled(tuple(dropped), tuple(records))

    def _take(self, records: list[LedgerRecord], epoch: int, position: Position, limit: int | None) -> Position:
        for record in _read(self._directory, epoch, position, limit):
            position = Position(record.end, record.seq + 1)
            if record.seq > 0 and (self._from_snapshot or record.payload.get("type") != SNAPSHOT):
                records.append(record)
            if len(records) >= self._batch:
                break
        return position

    def _missing(self, epoch: int, reached: Position, limit: int) -> None:
        """Raise, unless the file was removed as history."""
        view = survey(self._directory, up_to=self._up_to)
        path, base = epoch_path(self._directory, epoch), whole_snapshot(self._directory, view)[0]
        if epoch < base and not path.exists():  # guard: a missing file that a replay needs is damage
            self._from = max(self._from, base) if self._from_snapshot else self._from
            return
        raise _damaged(self._directory, epoch, reached.offset, limit, view.top)

    def _drop(self, view: LedgerView, positions: dict[int, Position]) -> list[tuple[int, int]]:
        dropped: list[tuple[int, int]] = []
        for epoch, position in sorted(positions.items()):
            limit = view.limits.get(epoch, position.offset if epoch == view.top else 0)
            if position.offset <= limit:
                continue
            kept = Position()
            for record in _read(self._directory, epoch, Position(), limit) if limit else ():
                kept = Position(record.end, record.seq + 1)
            positions[epoch] = kept
            dropped.append((epoch, limit))  # guard: what turned out not to count is taken back
        return dropped


def _damaged(directory: Path, epoch: int, end: int, limit: int, top: int) -> LedgerCorrupt:
    path = epoch_path(directory, epoch)
    return LedgerCorrupt(
        f"{path} is damaged at offset {end}, but counts up to {limit} by the word of epoch {top}; "
        "restore the file, nothing can be decided without it"
    )


def valid_end(directory: Path, epoch: int) -> int:
    """The offset behind the last valid record of an epoch's file."""
    end = 0
    for record in _read(directory, epoch, Position(), None):
        end = record.end
    return end


def _read(directory: Path, epoch: int, position: Position, limit: int | None) -> Iterator[LedgerRecord]:
    path = epoch_path(directory, epoch)
    try:
        with path.open("rb") as file:
            yield from scan(file, epoch=epoch, offset=position.offset, seq=position.seq, limit=limit)
    except FileNotFoundError:
        return
    except OSError as error:
        raise LedgerUnusable(f"cannot read {path}: {error.strerror}") from error
