"""Whatever a filesystem does wrong to a whole operation on the store: it succeeds, or one error says where and why.

And either way nothing that is there is damaged, what was there before is still there, and the same operation succeeds
once the filesystem is well again. The table is printed; a cell whose fault did not happen counts as broken, and so does
one that nobody thought about. The transports below have a table of their own (``test_fault_matrix.py``).
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders.store import evicts
from tests.platform.storage.shim.faults import NOT_THERE, RIGHT, Outcome, build, run, table
from tests.platform.storage.shim.store_rows import COLUMNS, ROWS
from tests.turns import SHORT_AND_WHOLE, every, said

SHIM = Path(__file__).parent / "shim"
IN_TIME_S = 8.0  # calls that hang do so for longer
# What an error must name, by what its row is about; a rename may be told by where it comes from.
NAMES = {
    "weights": (".safetensors",),
    "index": (".safetensors.idx",),
    "manifest": ("manifest.json", "COMMIT names another manifest"),
    "COMMIT": ("COMMIT",),
    "small file": ("config.json", "state.json"),
    "work": ("store/incoming/", "e1/.tmp-step-2"),
    "object": ("store/incoming/", "e1/.tmp-step-2"),
    "objects": ("store/objects", "train/tide/e1"),
    "ref": ("store/refs/",),
    "lease": ("store/leases/",),
    "source": ("/source",),
}
# A full disk is told in words.
WORDS = {"ENOSPC": "filesystem is full", "EDQUOT": "quota is full"}


def is_told_well(one: Outcome) -> bool:
    """Whether an error says which file of which object, where in it, and why."""
    text, (kind, code) = str(one.detail["text"]), one.got.split(maxsplit=1)
    about = one.row.removeprefix("new ").split(": ")[0]
    why = kind in ("Corrupt", "SourceChanged") or code in text or WORDS[code] in text
    has_offset = one.row.removeprefix("new ").startswith(("weights: read", "weights: write", "source: read"))
    where = not has_offset or "hangs" in one.row or "at byte" in text
    return why and where and "victim" in text and any(name in text for name in NAMES[about])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("share", SHORT_AND_WHOLE)
@pytest.mark.parametrize("column", COLUMNS)
def test_every_fault_of_a_whole_operation_ends_well_or_in_one_error_and_an_unharmed_store(
    tmp_path: Path, record_property: Callable[[str, object], None], column: str, share: int
) -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert all(set(row.expected) == set(COLUMNS) for row in ROWS), "a cell that nobody thought about"
    if not evicts(tmp_path):
        pytest.skip("files here cannot be read past the page cache: set TMPDIR to a directory on a disk")
    program = SHIM / ("checkpoint_cells.py" if column in ("save", "resume") else "store_cells.py")
    rows = every(share, [row for row in ROWS if row.expected[column] != NOT_THERE])
    outcomes = run(program, build(tmp_path), tmp_path / column.replace(" ", "-"), rows, column)
    record_property("table", f"{said(share)}\n{table(rows, [column], outcomes)}")
    assert [one for one in outcomes if not one.holds] == []
    assert [one for one in outcomes if one.got != RIGHT and not is_told_well(one)] == []
    assert [one for one in outcomes if "hangs" in one.row and one.seconds > IN_TIME_S] == [], "not in time"
    assert [one for one in outcomes if one.got.startswith("NoRoom") and one.detail["left"]] == [], "left behind"
