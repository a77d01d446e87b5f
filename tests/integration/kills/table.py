"""The kill table: process x move, what users saw, what was lost, how soon all was well, which promises cover it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.rows import result
from tests.integration.kills.cells import COVERS, Cell
from tests.integration.kills.moves import Move
from tests.integration.kills.processes import Role


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


def held_before(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of an earlier run's file that held, by process and move; none if there is no such file."""
    rows = json.loads(path.read_text())["cells"] if path.exists() else []
    return {(row["process"], row["move"]): row for row in rows if row["ran"] and not row["findings"]}


def write(rows: Sequence[dict[str, Any]], path: Path, *, command: str) -> None:
    """Write the table as a result file, in the order of processes and moves."""
    roles, moves = [role.value for role in Role], [move.value for move in Move]
    ordered = sorted(rows, key=lambda row: (roles.index(row["process"]), moves.index(row["move"])))
    found = result("kills", command, [], []) | {
        "ran": sum(row["ran"] for row in rows),
        "broken": sum(bool(row["findings"]) for row in rows),
        "missing": [f"{role} x {move}" for role, move in _missing(rows)],
        "cells": ordered,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


def _missing(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    there = {(row["process"], row["move"]) for row in rows if row["ran"]}
    return [(role.value, move.value) for role in Role for move in Move if (role.value, move.value) not in there]
