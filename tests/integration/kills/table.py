"""The kill table: process x move, what users saw, what was lost, how soon all was well, which promises cover it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.rows import result
from evidence.result_file import read, write
from evidence.results import kill_case
from evidence.stamps import Stamp, stamps_of, with_stamps
from tests.integration.kills.cells import COVERS, Cell
from tests.integration.kills.moves import Move
from tests.integration.kills.processes import Role

COMMAND = "make kills"


def as_rows(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """The cells as plain JSON types."""
    return [
        {
            "process": cell.role.value,
            "move": cell.move.value,
            "ran": cell.ran,
            "why_not": cell.why_not,
            "users_saw": cell.saw,
            "crash_lost_steps": cell.lost_steps,
            "replaced_s": cell.replaced_s,
            "answered_s": cell.answered_s,
            "trained_s": cell.trained_s,
            "covered_by": list(COVERS[cell.role]),
            "findings": [str(finding) for finding in cell.findings],
            "pool_then": cell.seen,
            "at": cell.at,
        }
        for cell in cells
    ]


def show(cells: Sequence[Cell], console: Console | None = None) -> None:
    """Print the table, and the findings below it."""
    table = Table(title="kill -9 of each process in each move", show_lines=False)
    for name in (
        "process",
        "move",
        "users saw",
        "steps run again",
        "replaced s",
        "answered s",
        "trains s",
        "promises",
        "verdict",
    ):
        table.add_column(name, overflow="fold")
    for cell in cells:
        table.add_row(
            cell.role.value,
            cell.move.value,
            ", ".join(f"{count} {saw}" for saw, count in cell.saw.items()),
            str(cell.lost_steps) if cell.ran else "",
            f"{cell.replaced_s:.1f}" if cell.replaced_s else "",
            f"{cell.answered_s:.1f}" if cell.ran else "",
            f"{cell.trained_s:.1f}" if cell.ran else "",
            ", ".join(map(str, COVERS[cell.role])),
            "held" if cell.clean and cell.ran else cell.why_not if cell.clean else f"BROKEN ({len(cell.findings)})",
        )
    console = console or Console(width=160)
    console.print(table)
    for cell in cells:
        for finding in cell.findings:
            console.print(f"{cell.role.value} x {cell.move.value}: {finding}", highlight=False, markup=False)


def document(old: Mapping[str, Any], rows: Sequence[dict[str, Any]], stamps: Mapping[str, Stamp]) -> dict[str, Any]:
    """The table with ``rows`` in the place of those that it has of the same cells.

    A cell that held, or cannot exist, gets its stamp; one that was broken loses it, and so is the first to run again.
    """
    cells = {_case(row): row for row in (*old.get("cells", ()), *rows)}
    kept = {case: stamp for case, stamp in {**stamps_of(old), **stamps}.items() if not _broken(cells[case])}
    roles, moves = [role.value for role in Role], [move.value for move in Move]
    ordered = sorted(cells.values(), key=lambda row: (roles.index(row["process"]), moves.index(row["move"])))
    found = result("kills", COMMAND, [], []) | {
        "ran": sum(row["ran"] for row in ordered),
        "broken": sum(_broken(row) for row in ordered),
        "missing": [f"{role} x {move}" for role, move in _missing(ordered)],
        "cells": ordered,
    }
    return with_stamps(found, {case: kept[case] for case in map(_case, ordered) if case in kept})


def save(cell: Cell, stamp: Stamp, path: Path) -> None:
    """Put a cell into the file as soon as it has ended: a run that is cut off keeps what it has."""
    [row] = as_rows([cell])
    write(document(read(path), [row], {_case(row): stamp}), path)


def _case(row: Mapping[str, Any]) -> str:
    return kill_case(row["process"], row["move"])


def _broken(row: Mapping[str, Any]) -> bool:
    return bool(row["findings"])


def _missing(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    there = {(row["process"], row["move"]) for row in rows if row["ran"]}
    return [(role.value, move.value) for role in Role for move in Move if (role.value, move.value) not in there]
