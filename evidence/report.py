"""``make evidence``: per result what is fresh, stale and missing, and how long the rest would take."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from evidence import carried
from evidence.digest import digest_of
from evidence.provenance import RESULTS as FOLDER
from evidence.result_file import load
from evidence.results import RESULTS, Result
from evidence.stamps import stamps_of
from evidence.standing import Row, Standing, rows


@dataclass(frozen=True, slots=True)
class Found:
    """A result with all its rows."""

    result: Result
    rows: list[Row]

    def those(self, standing: Standing) -> list[Row]:
        """The rows that stand so."""
        return [row for row in self.rows if row.standing is standing]

    @property
    def rest_s(self) -> float:
        """How long it would take to measure what is missing or stale."""
        return sum(row.takes_s for row in self.rows if row.standing is not Standing.FRESH)


def found(result: Result, folder: Path = FOLDER) -> Found:
    """How a result stands, by the code that is checked out."""
    return Found(result, rows(result.cases(), stamps_of(load(result.name, folder)), digest_of, carried.same()))


def found_all(names: Sequence[str] = (), folder: Path = FOLDER) -> list[Found]:
    """All results, or those of ``names``."""
    return [found(one, folder) for one in RESULTS if not names or one.name in names]


def as_table(all_found: Sequence[Found]) -> Table:
    """For people."""
    table = Table(title="evidence, by the code that is checked out")
    for name in ("result", "fresh", "stale", "missing", "the rest takes", "measured by"):
        table.add_column(name, justify="right" if name in ("fresh", "stale", "missing", "the rest takes") else "left")
    for one in all_found:
        counts = [str(len(one.those(standing))) for standing in (Standing.FRESH, Standing.STALE, Standing.MISSING)]
        table.add_row(one.result.name, *counts, in_words(one.rest_s), one.result.command)
    table.add_section()
    table.add_row("all", "", "", "", in_words(sum(one.rest_s for one in all_found)), "")
    return table


def as_json(all_found: Sequence[Found]) -> dict[str, Any]:
    """For scripts: by result the names of its cases, by how they stand."""
    return {
        one.result.name: {
            **{standing.value: [row.case.name for row in one.those(standing)] for standing in Standing},
            "rest_s": round(one.rest_s, 1),
            "command": one.result.command,
        }
        for one in all_found
    }


def in_words(seconds: float) -> str:
    """Minutes, or hours where they are many."""
    if seconds <= 0:
        return "-"
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{max(1, round(seconds / 60))} min"
