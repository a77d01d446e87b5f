"""Faults for a process of its own: rules for the preloaded shim, a program that runs cells under them, and their table.

A *cell* is one row (what the filesystem does wrong) in one column (what is tried). Columns are functions in a program
that calls `serve`; rows are `Row` values in a test that calls `run`. So that no cell is empty by accident, each says
whether its fault really happened.
"""

import contextlib
import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ebbtide.storage.errors import StorageError

SOURCE = Path(__file__).with_name("shim.c")
ROOT = Path(__file__).parents[4]
RIGHT = "right"
NOT_THERE = "-"  # the fault cannot happen in this column


@dataclass(frozen=True)
class Fault:
    """One rule of the shim; see there. ``times`` 0 means always; ``at``: how a path goes on to its end, with ``*``."""

    op: str
    action: str
    number: int = 0
    nth: int = 1
    times: int = 1
    at: str = ""

    def rule(self, part: str) -> str:
        """For paths that contain ``part``, and go on as ``at`` says."""
        return (
            f"{self.op} {f'*{part}*{self.at}' if self.at else part} {self.nth} {self.times} {self.action} {self.number}"
        )


@dataclass(frozen=True)
class Row:
    """What goes wrong, and what each column must come to: ``RIGHT``, an error's name and errno, or ``NOT_THERE``."""

    name: str
    faults: Sequence[Fault]
    expected: Mapping[str, str]
    deadline_s: float = 60


@dataclass
class Outcome:
    """What one cell came to."""

    row: str
    column: str
    got: str
    expected: str
    faulty: bool
    fired: int
    seconds: float
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether that is as it must be, and the fault happened (if there is one)."""
        return self.got == self.expected and (self.fired > 0) == self.faulty


def build(folder: Path) -> Path:
    """The shim, compiled; skips the test where that cannot be."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler here (cc, gcc or clang): the shim that makes a filesystem lie cannot be built")
    library = folder / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        pytest.skip(f"the shim does not build with this C library: {built.stderr.strip()[:300]}")
    return library


def environment(shim: Path, rules: str = "") -> dict[str, str]:
    """For a child process that runs under ``rules`` from its start."""
    return os.environ | {"LD_PRELOAD": str(shim), "EBBTIDE_FAULTS": rules, "PYTHONDONTWRITEBYTECODE": "1"}


def run(program: Path, shim: Path, folder: Path, rows: Sequence[Row], column: str) -> list[Outcome]:
    """Run one column of the rows in a process of its own; ``folder`` is for its files."""
    rows = [row for row in rows if row.expected[column] != NOT_THERE]
    folder.mkdir()
    cells = [
        {
            "column": column,
            "folder": str(folder),
            "victim": f"victim{number}.",
            "rules": ";".join(fault.rule(f"victim{number}.") for fault in row.faults),
            "deadline_s": row.deadline_s,
        }
        for number, row in enumerate(rows)
    ]
    ran = subprocess.run(
        [sys.executable, str(program)],
        input="\n".join(map(json.dumps, cells)),
        env=environment(shim) | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert ran.returncode == 0 and len(found) == len(rows), f"{column} died after {len(found)} rows: {ran.stderr}"
    return [
        Outcome(
            row=row.name,
            column=column,
            got=one["got"],
            expected=row.expected[column],
            faulty=bool(row.faults),
            fired=one["fired"],
            seconds=one["seconds"],
            detail=one["detail"],
        )
        for row, one in zip(rows, found, strict=True)
    ]


class Cell:
    """What a column's function is given: where to work, how long, and the faults to work under.

    The faults are those of paths with ``victim`` in them, which no other cell has: what still hangs from an earlier
    cell must not take them away.
    """

    def __init__(self, rules: str, folder: Path, victim: str, deadline_s: float) -> None:
        self.folder, self.victim, self.deadline_s = folder, victim, deadline_s
        self.fired, self.seconds = 0, 0.0
        self.detail: dict[str, Any] = {}
        self._rules = rules

    @contextlib.contextmanager
    def lies(self) -> Iterator[None]:
        """The filesystem lies in here only: what prepares and checks a cell must not meet the faults."""
        shim = ctypes.CDLL(None)
        shim.ebbtide_faults(self._rules.encode())
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds = time.monotonic() - began
            self.fired += shim.ebbtide_faults_fired()
            shim.ebbtide_faults(b"")


def serve(columns: Mapping[str, Callable[[Cell], None]]) -> None:
    """The child's side: run each cell named on the standard input, and say what it came to.

    A column's function works on files with ``cell.victim`` in their names, puts what it has to tell into
    ``cell.detail``, and raises AssertionError for wrong bytes.
    """
    for line in sys.stdin:
        order = json.loads(line)
        cell = Cell(order["rules"], Path(order["folder"]), order["victim"], order["deadline_s"])
        try:
            columns[order["column"]](cell)
            got = RIGHT
        except AssertionError as error:
            got = f"WRONG {error}"
        except StorageError as error:
            got = _named(error)
            cell.detail |= {"text": str(error), "offset": getattr(error, "offset", None)}
        except Exception as error:  # noqa: BLE001 - one that no caller expects is a cell that does not hold
            got = f"NOT OURS {type(error).__name__}: {error}"
        told = {"got": got, "fired": cell.fired, "seconds": cell.seconds, "detail": cell.detail}
        print(json.dumps(told), flush=True)
    os._exit(0)  # without waiting for threads that hang


def _named(error: StorageError) -> str:
    code = getattr(error, "errno", None)
    if code is None and isinstance(error.__cause__, OSError):
        code = error.__cause__.errno
    return f"{type(error).__name__} {errno.errorcode.get(code or 0, 'without errno')}"


def table(rows: Sequence[Row], columns: Sequence[str], outcomes: Sequence[Outcome]) -> str:
    """All cells, for people; what is not as it must be stands there with ``!``."""
    found = {(one.row, one.column): one for one in outcomes}
    lines = [["", *columns]]
    for row in rows:
        cells = [found.get((row.name, column)) for column in columns]
        lines.append(
            [row.name, *(NOT_THERE if one is None else ("" if one.holds else "! ") + one.got for one in cells)]
        )
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns) + 1)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
