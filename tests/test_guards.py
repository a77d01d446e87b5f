"""The lists of guards (docs/decisions) name tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = {"008-guards.md": 500, "016-guards-of-parked-state.md": 100}
ROW = re.compile(r"\| `(test_\w+\.py)` (\w+)( \w+)? \|$", re.MULTILINE)


@pytest.mark.parametrize(("page", "least"), PAGES.items())
def test_every_test_that_misses_a_guard_is_there(page: str, least: int) -> None:
    sources = {path.name: "" for path in (ROOT / "tests").rglob("test_*.py")}
    for path in (ROOT / "tests").rglob("test_*.py"):
        sources[path.name] += path.read_text()
    rows = ROW.findall((ROOT / "docs" / "decisions" / page).read_text())
    assert len(rows) > least
    gone = [f"{file} {name}" for file, name, _ in rows if not re.search(rf"\b(test_)?{name}\b", sources.get(file, ""))]
    assert gone == []
