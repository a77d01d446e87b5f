"""The kill table: process x move, what users saw, what was lost, how soon all was well, which promises cover it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.rows import result
from tests.integration.kills.cells import COVERS, Cell


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


def write(cells: Sequence[Cell], path: Path, *, command: str, took_s: float) -> None:
    """Write the table as a result file."""
    found = result("kills", command, [], []) | {
        "took_s": round(took_s),
        "ran": sum(cell.ran for cell in cells),
        "cannot_exist": sum(not cell.possible for cell in cells),
        "broken": sum(not cell.clean for cell in cells),
        "cells": as_rows(cells),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
