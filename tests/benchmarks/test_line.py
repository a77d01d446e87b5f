import json
from pathlib import Path

from benchmarks.line import PARTS, Part, main
from benchmarks.rows import Bar, Row, result, row, write

ISSUE_BARS = {
    "decide_1000",
    "gateway_ttft_1",
    "gateway_cpu_vs_ray_llm",
    "reclaim_in_place",
    "resume_in_place",
    "replica_start",
}


def test_the_parts_promise_exactly_the_bars_of_the_issue() -> None:
    assert {bar for part in PARTS.values() for bar in part.goals} == ISSUE_BARS


def test_a_part_that_fails_leaves_its_bars_missed_and_the_others_measured(tmp_path: Path) -> None:
    def good(quick: bool) -> tuple[list[Row], list[Bar]]:
        return [row("c", "m", "s", [3.0, 1.0, 2.0])], [Bar("a", "under 5", 2.0, True)]

    def bad(quick: bool) -> tuple[list[Row], list[Bar]]:
        raise OSError("no port")

    parts = {"bad": Part(bad, {"b": "under 1"}), "good": Part(good, {"a": "under 5"})}
    assert main([], parts, tmp_path) == 1
    found = json.loads((tmp_path / "line.json").read_text())
    [only] = found["rows"]
    assert (only["part"], only["median"], only["min"], only["max"], only["n"]) == ("good", 2.0, 1.0, 3.0, 3)
    assert [(bar["bar"], bar["value"], bar["met"]) for bar in found["bars"]] == [("b", None, False), ("a", 2.0, True)]
    assert list(found["stamps"]) == ["good"], "what failed was not measured"


def test_a_result_is_written_whole(tmp_path: Path) -> None:
    path = write(result("x", "make x", [], [Bar("a", "g", None, False)]), tmp_path)
    assert '"met": false' in path.read_text()
