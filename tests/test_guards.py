"""The list of guards (docs/decisions/008-guards.md) names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "decisions" / "008-guards.md"
ROW = re.compile(r"\| `(test_\w+\.py)` (\w+)( \w+)? \|$", re.MULTILINE)


def test_every_test_that_misses_a_guard_is_there() -> None:
    sources = {path.name: "" for path in (ROOT / "tests").rglob("test_*.py")}
    for path in (ROOT / "tests").rglob("test_*.py"):
        sources[path.name] += path.read_text()
    rows = ROW.findall(PAGE.read_text())
    assert len(rows) > 500
    gone = [f"{file} {name}" for file, name, _ in rows if not re.search(rf"\b(test_)?{name}\b", sources.get(file, ""))]
    assert gone == []
