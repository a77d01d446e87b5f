"""A node-local SQLite database over the ledger, for questions: ``events`` and ``why``.

It holds nothing of its own: lost, damaged or of another version, it is thrown away and built again from the epoch
files. :meth:`LedgerIndex.update` makes it match what counts now, also where the reader takes something back. What it
knows of files that were removed as history it keeps, up to a bound of its own.

Not guaranteed: answers are as old as the last update. The database must be on a local disk, never beside the ledger.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ebbtide.ledger.errors import LedgerUnusable
from ebbtide.ledger.reader import Follower, Position, identity, survey
from ebbtide.ledger.record import JSON, LedgerRecord
from ebbtide.ledger.record_subjects import subjects_of

KEPT_RECORDS = 1_000_000  # some 500 MB of local disk, and years of a busy pool
_VERSION = 3  # of the tables below; another number on disk means: build again
_TABLES = """
CREATE TABLE source (directory TEXT NOT NULL);
CREATE TABLE position (epoch INTEGER PRIMARY KEY, at INTEGER NOT NULL, seq INTEGER NOT NULL);
CREATE TABLE record (
    epoch INTEGER NOT NULL, seq INTEGER NOT NULL, at INTEGER NOT NULL, id TEXT NOT NULL, type TEXT NOT NULL,
    at_s REAL NOT NULL, cause TEXT, payload TEXT NOT NULL, PRIMARY KEY (epoch, seq)
) WITHOUT ROWID;
CREATE INDEX record_by_id ON record (id);
CREATE INDEX record_by_time ON record (type, epoch, seq);
CREATE TABLE subject (
    name TEXT NOT NULL, epoch INTEGER NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (name, epoch, seq)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class IndexedRecord:
    """A record as the index knows it. ``id`` is the payload's own, else ``<epoch>-<seq>``; ``at_s`` since 1970."""

    id: str
    epoch: int
    seq: int
    type: str
    at_s: float
    cause: str | None
    payload: dict[str, JSON]


class LedgerIndex:
    """The index of the ledger in ``directory``, kept in the file ``database``. For one thread."""

    def __init__(self, directory: Path, database: Path, *, keep: int = KEPT_RECORDS) -> None:
        """Open the index, made anew where needed; it is empty until the first :meth:`update`.

        Args:
            directory: of the ledger.
            database: a file on a local disk.
            keep: the newest so many records are kept.

        Raises:
            LedgerUnusable: the database cannot be made there.
        """
        self._directory, self._database, self._keep = directory, database, keep
        try:
            database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                self._db = self._connect()
            except sqlite3.DatabaseError:
                self._discard()
                self._db = self._connect()
        except (OSError, sqlite3.Error) as error:
            raise LedgerUnusable(f"cannot keep an index of the ledger in {database}: {error}") from error

    def update(self) -> int:
        """Take in what is new; returns how many records that were.

        Raises:
            LedgerCorrupt, LedgerUnusable: see ``replay``; what was indexed before stays.
        """
        try:
            return self._update()
        except sqlite3.DatabaseError:  # guard: a damaged index is built again
            # Damaged under our hands: nothing in it is worth more than building it again.
            self._db.close()
            self._discard()
            self._db = self._connect()
            return self._update()

    def events(
        self,
        since_s: float = 0.0,
        *,
        limit: int = 1000,
        subject: str | None = None,
        types: Sequence[str] = ("event",),
        kinds: Sequence[str] = (),
    ) -> list[IndexedRecord]:
        """The newest ``limit`` records of these types, oldest first.

        Args:
            since_s: only records from this time on, in seconds since 1970.
            subject: only records about this job, endpoint, seat, slot or node.
            kinds: only events of these kinds; none given: all.
        """
        named = ",".join("?" * len(types))
        # As `_add` writes them; SQLite's own JSON functions refuse a NaN.
        like = f"AND ({' OR '.join(['instr(payload, ?)'] * len(kinds))})" if kinds else ""
        texts = [f'"kind": {json.dumps(kind)}' for kind in kinds]
        about = "AND EXISTS (SELECT 1 FROM subject s WHERE s.name=? AND s.epoch=r.epoch AND s.seq=r.seq)"
        rows = self._db.execute(
            f"SELECT epoch, seq, id, type, at_s, cause, payload FROM record r WHERE type IN ({named}) AND at_s>=? "
            f"{about if subject is not None else ''} {like} ORDER BY epoch DESC, seq DESC LIMIT ?",
            [*types, since_s, *([subject] if subject is not None else []), *texts, limit],
        )
        return [_record(row) for row in rows][::-1]

    def record(self, record_id: str) -> IndexedRecord | None:
        """The record of this id."""
        row = self._db.execute(
            "SELECT epoch, seq, id, type, at_s, cause, payload FROM record WHERE id=? "
            "ORDER BY epoch DESC, seq DESC LIMIT 1",
            [record_id],
        ).fetchone()
        return None if row is None else _record(row)

    def chain(self, record_id: str) -> list[IndexedRecord]:
        """The record, its cause, the cause of that, and so on; ends where a cause is unknown or comes again."""
        found: list[IndexedRecord] = []
        seen: set[str] = set()
        wanted: str | None = record_id
        while (
            wanted is not None
            # guard: a chain of causes ends where one comes again
            and wanted not in seen
        ):
            seen.add(wanted)
            one = self.record(wanted)
            if one is None:
                break
            found.append(one)
            wanted = one.cause
        return found

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._database, timeout=10.0)
        try:
            db.execute("PRAGMA synchronous=OFF")  # a crash may cost the index, which costs nothing
            version = db.execute("PRAGMA user_version").fetchone()[0]
            source = db.execute("SELECT directory FROM source").fetchone()[0] if version == _VERSION else ""
            if version == 0:
                db.executescript(_TABLES)
                db.execute("INSERT INTO source VALUES (?)", [self._source()])
                db.execute(f"PRAGMA user_version={_VERSION}")
                db.commit()
            elif (
                version != _VERSION
                # guard: another ledger's index is not taken for this one's
                or source != self._source()
            ):
                raise sqlite3.DatabaseError("of another version, or of another ledger")
        except BaseException:
            db.close()
            raise
        return db

    def _source(self) -> str:
        """Which ledger this is: its place, and its identity, since a place may get another ledger."""
        return f"{self._directory.resolve()} {identity(self._directory, survey(self._directory))}"

    def _discard(self) -> None:
        for name in (self._database.name, f"{self._database.name}-journal"):
            self._database.with_name(name).unlink(missing_ok=True)

    def _update(self) -> int:
        positions = {
            int(epoch): Position(int(at), int(seq))
            for epoch, at, seq in self._db.execute("SELECT epoch, at, seq FROM position")
        }
        follower = Follower(self._directory, positions=positions)
        total = 0
        while True:
            polled = follower.poll()
            if polled.records or polled.dropped:
                with self._db:
                    self._drop(polled.dropped)
                    self._add(polled.records)
                    self._db.execute("DELETE FROM position")
                    self._db.executemany(
                        "INSERT OR REPLACE INTO position VALUES (?,?,?)",
                        [(epoch, one.offset, one.seq) for epoch, one in follower.positions.items()],
                    )
            if not polled.records:
                if total:
                    with self._db:
                        self._trim()  # guard: the index is bounded
                return total
            total += len(polled.records)

    def _drop(self, dropped: Iterable[tuple[int, int]]) -> None:
        for epoch, offset in dropped:
            self._db.execute(
                "DELETE FROM subject WHERE epoch=? AND seq IN (SELECT seq FROM record WHERE epoch=? AND at>=?)",
                [epoch, epoch, offset],
            )
            self._db.execute("DELETE FROM record WHERE epoch=? AND at>=?", [epoch, offset])

    def _trim(self) -> None:
        """Remove what is over the bound, oldest first; the pages are used again, so the file stays bounded too."""
        newest = "SELECT epoch, seq FROM record ORDER BY epoch DESC, seq DESC LIMIT 1 OFFSET ?"
        oldest_gone = self._db.execute(newest, [self._keep]).fetchone()
        if oldest_gone is not None:
            for table in ("record", "subject"):
                self._db.execute(f"DELETE FROM {table} WHERE (epoch, seq) <= (?, ?)", oldest_gone)

    def _add(self, records: Iterable[LedgerRecord]) -> None:
        for record in records:
            payload, cause, at_s = record.payload, record.payload.get("cause"), record.payload.get("at_s")
            self._db.execute(
                "INSERT OR REPLACE INTO record VALUES (?,?,?,?,?,?,?,?)",
                [
                    record.epoch,
                    record.seq,
                    record.offset,
                    _text(payload.get("id") or record.id),
                    _text(payload.get("type", "")),
                    float(at_s) if isinstance(at_s, int | float) else 0.0,
                    _text(cause) if isinstance(cause, str) else None,
                    json.dumps(payload),
                ],
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO subject VALUES (?,?,?)",
                [(_text(name), record.epoch, record.seq) for name in subjects_of(payload)],
            )


def _record(row: tuple[int, int, str, str, float, str | None, str]) -> IndexedRecord:
    epoch, seq, record_id, kind, at_s, cause, payload = row
    return IndexedRecord(record_id, epoch, seq, kind, at_s, cause, json.loads(payload))


def _text(value: object) -> str:
    """JSON may hold lone surrogates, which no database text can."""
    return str(value).encode("utf-8", "replace").decode("utf-8")
