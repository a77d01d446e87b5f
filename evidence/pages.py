"""A page of Markdown beside each result: what was run where, its bars, and its rows. Pure up to `page`.

The JSON is what was measured; the page is made of it by ``python -m evidence pages``, and a test compares them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidence.provenance import RESULTS

PAGE_ELSEWHERE = {"guards"}  # docs/guards.md
FACTS = ("command", "hardware", "date", "versions")
LEFT_OUT = {"bars", "stamps", "name", "samples", *FACTS}  # stamps: what `make evidence` compares
DIGITS = 4
WIDE = 12  # columns
CELL = 120  # characters: what is longer is for the JSON


def page(name: str, found: Mapping[str, Any]) -> str:
    """The page of one result, ``name`` being that of its file."""
    lines = [f"# {name}", "", f"Made of `{name.rpartition('/')[2]}.json` by `python -m evidence pages`.", ""]
    lines += [f"- {fact}: {_cell(found[fact])}" for fact in FACTS if found.get(fact)]
    lines += ["", *_table(_rows(found["bars"]))] if found.get("bars") else []
    for title, part in found.items():
        if title not in LEFT_OUT:
            lines += _part(title, part, 2)
    return "\n".join(lines).rstrip("\n") + "\n"


def _part(title: str, part: Any, level: int) -> Iterator[str]:
    rows = _rows(part)
    if rows and any(len(row) > 1 for row in rows):
        yield from ("", f"{'#' * level} {title}", "", *_table(rows))
    elif isinstance(part, Mapping) and part and all(isinstance(one, Mapping) for one in part.values()):
        below = [line for name, one in part.items() for line in _part(name, one, level + 1)]
        yield from ("", f"{'#' * level} {title}", *below) if below else ()
    elif _is_scalar(part):
        yield from ("", f"{title}: {_cell(part)}")


def _rows(part: Any) -> list[dict[str, str]]:
    """The rows of what is like a table: a list of records, or records by name. Only what fits a cell."""
    if isinstance(part, Mapping):
        part = [{"name": name, **one} for name, one in part.items() if isinstance(one, Mapping)]
    if not isinstance(part, Sequence) or isinstance(part, str) or not all(isinstance(one, Mapping) for one in part):
        return []
    return [{key: _cell(value) for key, value in one.items() if _is_scalar(value)} for one in part]


def _is_scalar(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "mean" in value
    return not isinstance(value, list)


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        if "mean" in value:
            spread = value.get("std", value.get("stdev"))
            return _cell(value["mean"]) + (f" ± {_cell(spread)}" if spread else "")
        return ", ".join(f"{name} {_cell(one)}" for name, one in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}" if abs(value) < 10**DIGITS else f"{value:.0f}"
    text = "" if value is None else str(value)
    return " ".join(text.replace("|", "\\|").split())[:CELL]


def _table(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if len(columns) > max(WIDE, len(rows)):  # a line for each figure instead, so that it can be read
        head, *names = columns
        rows = [{head: name, **{row.get(head, ""): row.get(name, "") for row in rows}} for name in names]
        columns = list(dict.fromkeys(name for row in rows for name in row))
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"
    yield from (f"| {' | '.join(row.get(name, '') for name in columns)} |" for row in rows)


def pages(results: Path = RESULTS) -> dict[Path, str]:
    """What stands, or should stand, beside each result."""
    paths = {path: str(path.relative_to(results).with_suffix("")) for path in sorted(results.rglob("*.json"))}
    return {
        path.with_suffix(".md"): page(name, json.loads(path.read_text()))
        for path, name in paths.items()
        if name not in PAGE_ELSEWHERE
    }


def write_beside(path: Path, found: Mapping[str, Any], results: Path) -> None:
    """Write the page of one result of ``results``."""
    name = str(path.relative_to(results).with_suffix(""))
    if name not in PAGE_ELSEWHERE:
        path.with_suffix(".md").write_text(page(name, found))


def write(results: Path = RESULTS) -> list[Path]:
    """Write those that are not as they should be; gives them."""
    made = pages(results)
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        path.write_text(made[path])
    return stale
