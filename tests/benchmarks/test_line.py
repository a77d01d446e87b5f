from pathlib import Path

from benchmarks.line import PARTS, run
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
    assert {bar for _, bars in PARTS.values() for bar in bars} == ISSUE_BARS


def test_a_part_that_fails_leaves_its_bars_missed_and_the_others_measured() -> None:
    def good(quick: bool) -> tuple[list[Row], list[Bar]]:
        return [row("c", "m", "s", [3.0, 1.0, 2.0])], [Bar("a", "under 5", 2.0, True)]

    def bad(quick: bool) -> tuple[list[Row], list[Bar]]:
        raise OSError("no port")

    rows, bars, failed = run({"bad": (bad, ("b",)), "good": (good, ("a",))}, quick=True)
    assert rows == [Row("c", "m", "s", 2.0, 1.0, 3.0, 3)]
    assert [(bar.bar, bar.value, bar.met) for bar in bars] == [("b", None, False), ("a", 2.0, True)]
    assert len(failed) == 1


def test_a_result_is_written_whole(tmp_path: Path) -> None:
    path = write(result("x", "make x", [], [Bar("a", "g", None, False)]), tmp_path)
    assert '"met": false' in path.read_text()
