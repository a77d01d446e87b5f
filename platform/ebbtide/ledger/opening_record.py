"""The first record of every epoch's file: which ledger this is, what of the older files counts, where replay starts.

Readers yield neither it nor the records of a snapshot, except to whoever replays: they repeat what is known.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ebbtide.ledger.record import JSON, LedgerRecord

OPENING = "epoch_opened"
"""``type`` of the first record, number 0."""
SNAPSHOT = "snapshot"
"""``type`` of the records of a snapshot, numbers 1 to ``of``; each holds a ``part`` of the whole."""
RESERVED = frozenset({OPENING, SNAPSHOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a first record says. Files written before there were snapshots lack all but ``counts``."""

    ledger: str = ""  # tells this ledger from another that was made in its place; "": not said
    counts: Mapping[int, int] = field(default_factory=dict)  # up to which offset each older epoch counts
    first: int = 0  # epochs below this one are history that may be gone
    base: int = 0  # the epoch whose snapshot a replay starts with, this one's own apart; 0: there is none
    base_end: int = 0  # the offset behind that snapshot
    parts: int = 0  # records of the snapshot that this file begins with, whole only if all of them are valid

    def payload(self, writer: str) -> dict[str, JSON]:
        """The record; ``writer`` is for people."""
        return {
            "type": OPENING,
            "writer": writer,
            "made_ns": time.time_ns(),
            "ledger": self.ledger,
            "counts": {str(number): end for number, end in self.counts.items()},
            "first": self.first,
            "base": self.base,
            "base_end": self.base_end,
            "parts": self.parts,
        }


def opening_of(record: LedgerRecord) -> Opening | None:
    """What a file's first record says; None: it is no such record."""
    payload = record.payload
    counts = payload.get("counts")
    if payload.get("type") != OPENING or not isinstance(counts, Mapping):
        return None

    def number(name: str) -> int:
        value = payload.get(name, 0)
        return value if isinstance(value, int) else 0

    return Opening(
        ledger=str(payload.get("ledger", "")),
        counts={int(key): int(str(value)) for key, value in counts.items()},
        first=number("first"),
        base=number("base"),
        base_end=number("base_end"),
        parts=number("parts"),
    )


def snapshot_records(contents: Sequence[Mapping[str, JSON]]) -> list[dict[str, JSON]]:
    """The records of a snapshot of these contents."""
    return [
        {**content, "type": SNAPSHOT, "part": part, "of": len(contents)} for part, content in enumerate(contents, 1)
    ]
