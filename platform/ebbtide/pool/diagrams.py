"""State diagrams from the transition tables: ``python -m ebbtide.pool.diagrams docs/concepts.md`` rewrites them.

A diagram stands between two marker comments that name its table, so that the rest of the page is free text.
"""

import re
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from ebbtide.pool.transitions import JOB_TABLE, SEAT_TABLE, SLOT_TABLE

TABLES: Mapping[str, Mapping[Any, Mapping[Any, str]]] = {"slot": SLOT_TABLE, "job": JOB_TABLE, "seat": SEAT_TABLE}


def diagram(table: Mapping[Enum, Mapping[Enum, str]]) -> str:
    """A Mermaid state diagram and the list of its edges with their reasons."""
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    {now.value} --> {then.value}" for now, edges in table.items() for then in edges]
    lines += ["```", "", "| from | to | when |", "|---|---|---|"]
    lines += [f"| {now.value} | {then.value} | {why} |" for now, edges in table.items() for then, why in edges.items()]
    return "\n".join(lines)


def rewrite(page: str) -> str:
    """``page`` with every marked diagram made anew."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name} states -->", f"<!-- end of {name} states -->"
        old = re.search(f"{re.escape(begin)}.*?{re.escape(end)}", page, flags=re.DOTALL)
        if old is not None:
            page = page.replace(old.group(), f"{begin}\n{diagram(table)}\n{end}")
    return page


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(rewrite(path.read_text()))
