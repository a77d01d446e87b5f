"""The result of ``make guards``: for each guard how it was taken out, and what its tests said; results/guards.json."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence.guards.comments import Guard
from evidence.guards.trial import Verdict
from evidence.provenance import hardware
from evidence.result_file import read, write
from evidence.stamps import Stamp, stamps_of, with_stamps

NAME = "guards"


@dataclass(frozen=True, slots=True)
class Tried:
    """One test without one guard, taken out in one way."""

    how: str
    test: str
    verdict: Verdict
    seconds: float


def as_row(guard: Guard, tried: Iterable[Tried]) -> dict[str, Any]:
    """As plain JSON types; the test as ``file::test``, the file of the guard without its line, which moves."""
    trials = [
        {"how": one.how, "test": one.test, "verdict": one.verdict.value, "seconds": round(one.seconds, 1)}
        for one in tried
    ]
    return {"case": guard.name, "file": guard.file, "trials": trials}


def proven(row: Mapping[str, Any]) -> bool:
    """Whether every test noticed each way."""
    return bool(row["trials"]) and all(Verdict(one["verdict"]).proves for one in row["trials"])


def save(row: dict[str, Any], stamp: Stamp, known: Iterable[str], path: Path) -> None:
    """Put a row into the result; rows of guards that are gone are dropped, and only a proven one gets its stamp."""
    old = read(path)
    rows = {one["case"]: one for one in (*old.get("rows", ()), row)}
    stamps = {**stamps_of(old), row["case"]: stamp}
    names = [name for name in dict.fromkeys(known) if name in rows]
    document = {
        "name": NAME,
        "command": "make guards",
        "hardware": hardware(),
        "missed": [name for name in names if not proven(rows[name])],
        "rows": [rows[name] for name in names],
    }
    kept = {name: stamps[name] for name in names if name in stamps and proven(rows[name])}
    write(with_stamps(document, kept), path)
