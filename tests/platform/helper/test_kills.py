"""kill -9 of the helper at every edge of its tables: the workload is whole in one place, and nothing is left over.

The edges come from `ebbtide.helper.journal.workload_states`; each is met by killing before and after the line that ends
it. `make test` takes every second one of those that lead forward, `make hunts` all, those that lead back, and each
change of the disk.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide.helper.criu.criu_program import Criu
from ebbtide.helper.journal.workload_states import Op, Step, edges

# Where each edge that leads back is met: by an operation that fails there.
BACK = {
    (Op.DUMP, Step.INTENT): "roomless dump",
    (Op.DUMP, Step.SPAWNED): "bad dump",
    (Op.DUMP, Step.STOPPED): "full dump",
    (Op.DUMP, Step.SEALED): "taken dump",
    (Op.REVIVE, Step.INTENT): "roomless revive",
    (Op.REVIVE, Step.SPAWNED): "bad revive",
    (Op.DISCARD, Step.INTENT): "stuck discard",
}


def points() -> dict[tuple[Op, Step, Step], list[str]]:
    """All edges of the tables of what CRIU does, and the points at which each is met."""
    found: dict[tuple[Op, Step, Step], list[str]] = {}
    for op in (Op.DUMP, Op.REVIVE, Op.DISCARD):
        for last, step in edges(op):
            if step is not Step.UNDONE:
                found[op, last, step] = [f"{op.value}/{when} {step.value}" for when in ("before", "after")]
                if last is Step.SPAWNED:
                    found[op, last, step].insert(0, f"{op.value}/at work")
                if last is Step.SEALED:
                    found[op, last, step].append("unsure dump/itself")
                if last is Step.INTENT:
                    found[op, last, step] += [f"{op.value}/{when} intent" for when in ("before", "after")]
            else:
                how = BACK[op, last]
                found[op, last, step] = [f"{how}/{when} undone" for when in ("before", "after")]
    return found


SHORT = [
    "dump/before spawned", "dump/at work", "dump/before stopped", "dump/before placed", "dump/before killed",
    "unsure dump/itself", "revive/at work", "revive/before restored", "revive/before done",
]  # fmt: skip


def run(folder: Path, criu: Criu, wanted: list[str]) -> dict[str, str]:
    """What became of the workload at each point."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.platform.helper.edge_killer", str(folder), str(criu.path), *wanted],
        capture_output=True, text=True, timeout=280, check=False, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return {one["point"]: one["became"] for one in map(json.loads, ran.stdout.splitlines())}


def table(became: dict[str, str]) -> str:
    """Edge by edge, with what was seen; an edge that was not met in this run says where it is."""
    lines = []
    for (op, last, step), where in points().items():
        seen = [f"{point.partition('/')[2]}: {became[point]}" for point in where if point in became]
        edge = f"{op.value:8}{last.value:9} -> {step.value:10}"
        lines.append(edge + ("; ".join(seen) or "in make hunts"))
    return "\n".join(lines)


def right(point: str) -> set[str]:
    """What may become of a workload that lived (a dump) or was dumped (the others)."""
    operation, _, place = point.partition("/")
    if operation == "unsure dump":
        return {"dumped"}
    if operation == "dump":
        after_the_rename = (
            "before placed",
            "after placed",
            "before killed",
            "after killed",
            "before done",
            "after done",
        )
        return {"dumped"} if place in after_the_rename else {"lives"}
    if operation.endswith("dump"):
        return {"lives"}
    if operation == "stuck discard":
        return {"discarded"} if place == "before undone" else {"dumped"}  # the next helper's disk works
    if operation == "discard":
        return {"dumped"} if place == "before intent" else {"discarded"}
    began = place not in ("before intent", "after intent", "before spawned", "after spawned")
    return {"revived"} if began and operation == "revive" else {"dumped"}


def check(became: dict[str, str], wanted: list[str]) -> None:
    wrong = {point: end for point, end in became.items() if end not in right(point)}
    assert not wrong
    assert list(became) == wanted


def test_every_edge_of_the_tables_is_met() -> None:
    met = points()
    assert all(met.values()) and set(SHORT) <= {point for where in met.values() for point in where}
    assert {edge for edge in met} == {(op, *edge) for op in (Op.DUMP, Op.REVIVE, Op.DISCARD) for edge in edges(op)}


def test_a_killed_helper_leaves_a_workload_whole(
    folder: Path, criu: Criu, record_property: Callable[[str, object], None]
) -> None:
    became = run(folder, criu, SHORT)
    record_property("table", table(became))
    check(became, SHORT)


@pytest.mark.hunt
def test_a_helper_killed_at_any_edge_leaves_a_workload_whole(
    folder: Path, criu: Criu, record_property: Callable[[str, object], None]
) -> None:
    wanted = [point for where in points().values() for point in where]
    became = run(folder, criu, wanted)
    text = table(became)
    record_property("table", text)
    check(became, wanted)
    assert "in make hunts" not in text, "the table has a hole"


# More than an operation makes, so that some come to their end.
MOST_CALLS = {"dump": 40, "revive": 20, "discard": 60}


@pytest.mark.hunt
@pytest.mark.parametrize("operation", list(MOST_CALLS))
def test_a_helper_killed_before_any_change_of_the_disk_leaves_a_workload_whole(
    folder: Path, criu: Criu, operation: str
) -> None:
    wanted = [f"{operation}/call {number}" for number in range(1, MOST_CALLS[operation] + 1)]
    became = run(folder, criu, wanted)
    ends = list(became.values())
    assert list(became) == wanted and "too late" in ends
    first = ends.index("too late")
    assert set(ends[first:]) == {"too late"} and first > 1
    outcomes = {"dump": ("lives", "dumped"), "revive": ("dumped", "revived"), "discard": ("discarded",)}[operation]
    assert set(ends[:first]) <= set(outcomes), became
    assert ends[:first] == sorted(ends[:first], key=outcomes.index), "from some change on it is there, before it is not"
