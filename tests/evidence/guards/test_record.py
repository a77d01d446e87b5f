"""The result of ``make guards``: what was tried, and what no test noticed."""

import json
from pathlib import Path

from evidence.guards.comments import Guard
from evidence.guards.page import page
from evidence.guards.proofs import Proof
from evidence.guards.record import Tried, as_row, proven, save
from evidence.guards.trial import Verdict
from evidence.stamps import Stamp

ONE = Guard("one holds", "platform/ebbtide/pool/ids.py", 3)
TWO = Guard("two holds", "platform/ebbtide/pool/ids.py", 9)
STAMP = Stamp("c", "h", "2026-01-01 10:00", 6.0, ("ebbtide.pool.ids",), "d")


def tried(*verdicts: Verdict) -> list[Tried]:
    return [Tried(how, "tests/test_x.py::test_x", one, 1.0) for how, one in zip(("inverted", "removed"), verdicts)]  # noqa: B905


def test_a_guard_is_proven_if_every_way_is_noticed() -> None:
    assert proven(as_row(ONE, tried(Verdict.CAUGHT, Verdict.HUNG)))
    assert not proven(as_row(ONE, tried(Verdict.CAUGHT, Verdict.PASSED)))
    assert not proven(as_row(ONE, tried(Verdict.BROKEN)))
    assert not proven(as_row(ONE, []))


def test_rows_are_kept_replaced_and_dropped_with_their_guard(tmp_path: Path) -> None:
    path = tmp_path / "guards.json"
    save(as_row(ONE, tried(Verdict.CAUGHT)), STAMP, ["one holds", "two holds"], path)
    save(as_row(TWO, tried(Verdict.PASSED)), STAMP, ["one holds", "two holds"], path)
    found = json.loads(path.read_text())
    assert [row["case"] for row in found["rows"]] == ["one holds", "two holds"]
    assert found["missed"] == ["two holds"] and list(found["stamps"]) == ["one holds"]
    save(as_row(TWO, tried(Verdict.CAUGHT)), STAMP, ["two holds"], path)
    found = json.loads(path.read_text())
    assert [row["case"] for row in found["rows"]] == ["two holds"] and list(found["stamps"]) == ["two holds"]


def test_the_page_has_every_guard_by_its_module_and_says_what_was_never_tried() -> None:
    result = {"rows": [as_row(ONE, tried(Verdict.CAUGHT, Verdict.CAUGHT))]}
    text = page([ONE, TWO], [Proof("one holds", "tests/test_x.py::test_x")], result)
    assert "## ebbtide.pool.ids" in text and "2 guards, 1 of them tried." in text
    assert "| one holds | `test_x` | inverted: caught; removed: caught |" in text
    assert "| two holds |  | never tried |" in text
