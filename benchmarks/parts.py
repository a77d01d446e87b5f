"""Measuring a result part after part, each saved when it has ended; see `benchmarks.record`.

A part that fails is named in the output and in the result, what could not be measured counts as not met, and the exit
code is 1; the other parts are measured all the same.
"""

import shutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.progress import minutes as in_minutes
from benchmarks.record import Book, Goals, Measured
from evidence.again import in_turn
from evidence.provenance import commit
from evidence.results import cases_of
from evidence.stamps import Begun, stamps_of, with_stamps


@dataclass(frozen=True, slots=True)
class Run:
    """One run of some parts.

    Attributes:
        goals: of all parts of the result, in the order of the file.
        directory: on the filesystem to be measured; each part has a folder in it while it runs.
        results: where the file is.
    """

    book: Book
    goals: Goals
    directory: Path
    results: Path
    quick: bool


def measure(run: Run, parts: Mapping[str, Callable[[Path], Measured]], *, minutes: float | None = None) -> int:
    """Measure these parts; gives the exit code: 1 if something failed, whatever the bars are.

    Args:
        parts: by name.
        minutes: only those that are missing or stale, the stalest first, as long as there is time.
    """
    document: dict[str, Any] = record.load(run.book, run.results) or {}
    failed: list[str] = []
    loaded = commit()
    processes = {case.name: case.processes for case in cases_of(run.book.name)}
    chosen = []
    for name in in_turn(run.book.name, document, list(parts), minutes):
        began, begun = record.Began.now(loaded), Begun.now(processes.get(name, ()))
        chosen.append(name)
        print(f"== {name}", flush=True)
        measured = _measured(parts[name], run.directory.absolute() / name)
        facts = record.facts(run.book, name, run.directory, began, quick=run.quick)
        old = record.load(run.book, run.results)
        document = record.with_part(run.book, old, name, measured, facts, run.goals)
        stamps = {one: stamp for one, stamp in stamps_of(old).items() if one in run.goals and one != name}
        document = with_stamps(document, stamps | ({} if isinstance(measured, str) else {name: begun.ended()}))
        path = record.save(run.book, document, run.results, quick=run.quick)
        failed += [f"{name}: {measured}"] if isinstance(measured, str) else [_told(name, gap) for gap in measured.gaps]
        print(f"== {name}: {in_minutes(time.time() - began.at_s)}, saved in {path}", flush=True)
    for line in lines(document, chosen):
        print(line)
    for what in failed:
        print(f"failed: {what}", file=sys.stderr)
    return 1 if failed else 0


def lines(document: Mapping[str, Any], parts: Sequence[str]) -> list[str]:
    """Rows and bars of these parts, for people."""
    found = []
    for one in document.get("rows", ()):
        if one["part"] in parts:
            spread = f"({one['min']} .. {one['max']}, n={one['n']})" if one["n"] else one["failed"][:100]
            found.append(f"{one['case']:20} {one['metric']:60} {one['median']!s:>12} {one['unit']:8} {spread}")
    for bar in document.get("bars", ()):
        if any(part in parts for part in bar["part"].split(", ")):
            why = f" ({bar['why']})" if "why" in bar else ""
            met = "met   " if bar["met"] else "MISSED"
            found.append(f"{met} {bar['bar']}: {bar['value']}, goal {bar['goal']}{why}")
    return found


def _measured(part: Callable[[Path], Measured], folder: Path) -> Measured | str:
    """What it brought, or why it failed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        return part(folder)
    except Exception as error:  # noqa: BLE001 - outermost: the other parts are worth having all the same
        traceback.print_exc()
        return repr(error)[:300]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _told(part: str, gap: record.Gap) -> str:
    return f"{part}: {gap.case}, {gap.metric}: {gap.why}"
