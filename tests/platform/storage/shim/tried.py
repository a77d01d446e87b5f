"""How a cell of the store's fault matrix is tried."""

import shutil
from pathlib import Path

from tests.platform.storage.shim.faults import Cell
from tests.platform.storage.shim.store_trials import Load, Publish, Trial, patience


def template(folder: Path, kind: type[Trial]) -> Path:
    """What is there before, made once for all cells of a column."""
    before = folder / "before"
    if not before.exists():
        kind.prepare(before)
    return before


def tried(kind: type[Trial], cell: Cell) -> None:
    """The operation, under the faults; whatever came of it, nothing is damaged, and without them it succeeds."""
    before, place = template(cell.folder, kind), cell.folder / f"{cell.victim}place"
    shutil.copytree(before, place)
    trial, done = kind(place, shared_leases=kind in (Publish, Load)), False
    try:
        with patience(cell.deadline_s), cell.lies():
            trial.act()
        done = True
    finally:
        trial.heal(before)
        trial.check(done=done)
        cell.detail["left"] = trial.left()
        if not done:
            trial.act()
            trial.check(done=True)
