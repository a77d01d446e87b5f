"""Each part of the storage result is replaced by itself, at once or not at all."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import rows
from benchmarks.bulk import __main__ as bulk
from benchmarks.bulk import fio
from benchmarks.bulk.__main__ import BOOK
from benchmarks.record import Gap, Measured, filesystem, load, save, with_part
from benchmarks.rows import Bar, row
from evidence.provenance import RESULTS

GOALS = {"reads": {"a": "> 1", "b": "> 2"}, "loads": {"c": "half"}}
ISSUE_BARS = {
    *("cold_read_ratio", "cold_read_cpu", "cold_read_vs_peers", "durable_write_ratio", "durable_write_vs_dcp"),
    *("tp2_bytes_per_rank", "artefact_restart"),
}


def measured(value: float) -> Measured:
    return Measured(
        [row("read", "ours", "GB/s", [value, 3 * value, 2 * value])],
        [Bar("a", "> 1", value, value > 1), Bar("b", "> 2", value, value > 2)],
        sizes={"bytes": 8},
    )


def bars(document: dict[str, Any]) -> dict[str, Any]:
    return {bar["bar"]: bar["value"] for bar in document["bars"]}


def test_the_parts_promise_exactly_the_bars_of_the_issue() -> None:
    assert {bar for goals in bulk.GOALS.values() for bar in goals} == ISSUE_BARS


def test_bars_of_parts_that_were_never_run_are_null_and_say_why() -> None:
    found = with_part(BOOK, None, "reads", measured(5.0), {"date": "today"}, GOALS)
    assert bars(found) == {"a": 5.0, "b": 5.0, "c": None}
    (not_run,) = [bar for bar in found["bars"] if bar["bar"] == "c"]
    assert not_run == {
        "part": "loads",
        "bar": "c",
        "goal": "half",
        "value": None,
        "met": False,
        "why": "this part was not run yet",
    }
    assert found["parts"] == {"reads": {"date": "today", "sizes": {"bytes": 8}}}


def test_a_part_replaces_its_own_rows_and_bars_and_nothing_else() -> None:
    first = with_part(BOOK, None, "reads", measured(5.0), {"date": "monday"}, GOALS)
    loads = Measured([row("bytes", "rank 0", "bytes", [7])], [Bar("c", "half", 0.5, True)])
    second = with_part(BOOK, first, "loads", loads, {"date": "tuesday"}, GOALS)
    third = with_part(BOOK, second, "reads", measured(9.0), {"date": "friday"}, GOALS)
    assert bars(third) == {"a": 9.0, "b": 9.0, "c": 0.5}
    assert {name: part["date"] for name, part in third["parts"].items()} == {"reads": "friday", "loads": "tuesday"}
    assert [one for one in third["rows"] if one["part"] == "loads"] == second["rows"][1:]
    assert [one["median"] for one in third["rows"]] == [18.0, 7]


def test_a_part_that_failed_has_null_bars_with_the_reason_and_no_old_rows() -> None:
    first = with_part(BOOK, None, "reads", measured(5.0), {}, GOALS)
    found = with_part(BOOK, first, "reads", "OSError('disk')", {}, GOALS)
    assert found["rows"] == []
    assert bars(found) == {"a": None, "b": None, "c": None}
    assert found["bars"][0]["why"] == "this part failed: OSError('disk')"
    assert found["parts"]["reads"]["failed"] == "OSError('disk')"


def test_a_bar_without_a_value_keeps_its_goal_and_one_that_was_forgotten_is_there() -> None:
    some = Measured([], [Bar("a", "not measured: kvikio", None, False)])
    found = with_part(BOOK, None, "reads", some, {}, GOALS)
    assert [(bar["goal"], bar["why"]) for bar in found["bars"][:2]] == [
        ("> 1", "not measured: kvikio"),
        ("> 2", "the part brought no figures for it"),
    ]


def test_a_row_says_what_failed_whether_it_has_figures_or_not() -> None:
    some = Measured([row("x", "ours", "s", [1.0])], gaps=[Gap("x", "ours", "1 failed"), Gap("x", "theirs", "died")])
    found = with_part(BOOK, None, "reads", some, {}, GOALS)
    assert [(one["metric"], one["n"], one["median"], one["failed"]) for one in found["rows"]] == [
        ("ours", 1, 1.0, "1 failed"),
        ("theirs", 0, None, "died"),
    ]


def test_a_bar_of_several_parts_is_met_by_all_and_has_the_least_value() -> None:
    goals = {"small": {"a": "> 1"}, "large": {"a": "> 1"}}

    def some(value: float) -> Measured:
        return Measured([], [Bar("a", "> 1", value, value > 1)])

    one = with_part(BOOK, None, "small", some(5.0), {}, goals)
    assert [(bar["value"], bar["met"], bar["why"]) for bar in one["bars"]] == [
        (None, False, "large: this part was not run yet")
    ]
    two = with_part(BOOK, one, "large", some(3.0), {}, goals)
    assert [(bar["value"], bar["met"], bar["values"]) for bar in two["bars"]] == [(3.0, True, {"small": 5, "large": 3})]
    three = with_part(BOOK, two, "small", some(0.5), {}, goals)
    assert [(bar["value"], bar["met"]) for bar in three["bars"]] == [(0.5, False)]


def test_a_result_of_the_older_form_is_replaced() -> None:
    old = {"name": "storage", "rows": [{"case": "x"}], "bars": [{"bar": "a", "value": 3}]}
    assert bars(with_part(BOOK, old, "loads", measured(1.0), {}, {"loads": {"a": "", "b": ""}})) == {"a": 1.0, "b": 1.0}


def test_what_was_measured_quickly_never_lands_among_the_results() -> None:
    with pytest.raises(ValueError, match="--quick is no result"):
        save(BOOK, {}, RESULTS / ".." / "results", quick=True)


def test_a_save_that_is_cut_off_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(BOOK, {"a": 1}, tmp_path, quick=False)

    def cut_off(fd: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", cut_off)
    with pytest.raises(OSError, match="no space"):
        save(BOOK, {"a": 2}, tmp_path, quick=False)
    assert load(BOOK, tmp_path) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["storage.json"]


def test_a_file_that_is_no_result_is_not_thrown_away(tmp_path: Path) -> None:
    assert load(BOOK, tmp_path) is None
    (tmp_path / "storage.json").write_text("[]")
    with pytest.raises(ValueError, match="move it away"):
        load(BOOK, tmp_path)
    (tmp_path / "storage.json").write_text("{")
    with pytest.raises(ValueError):
        load(BOOK, tmp_path)


def test_the_filesystem_is_that_of_the_longest_mount() -> None:
    mounts = (
        "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:9 / /mnt/lustre rw shared:1 - lustre x rw\n3 1 0:8 / /mnt/l rw - nfs y"
    )
    assert filesystem(Path("/mnt/lustre/dir"), mounts) == "lustre"
    assert filesystem(Path("/mnt/other"), mounts) == "ext4"


def part(brings: Callable[[], Measured], *bar_names: str) -> bulk.Part:
    return bulk.Part(lambda folder, quick, huge: brings(), dict.fromkeys(bar_names, "goal"), needs_fio=False)


def failing() -> Measured:
    raise OSError("no port")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fio, "huge_pages", lambda: _Nothing())
    monkeypatch.setattr(rows, "RESULTS", tmp_path / "nowhere")
    return tmp_path


class _Nothing:
    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass


def test_a_run_saves_part_after_part_and_goes_on_after_one_that_fails(here: Path) -> None:
    seen = []

    def last() -> Measured:
        seen.append(json.loads((here / "results" / "storage.json").read_text()))
        return Measured([], [Bar("z", "goal", 1.0, True)])

    parts = {
        "one": part(lambda: Measured([], [Bar("x", "goal", 1.0, True)]), "x"),
        "two": part(failing, "y"),
        "three": part(last, "z"),
    }
    assert bulk.main([], parts, here / "results") == 1
    assert bars(seen[0]) == {"x": 1.0, "y": None, "z": None}
    found = load(BOOK, here / "results")
    assert found is not None and bars(found) == {"x": 1.0, "y": None, "z": 1.0}
    assert set(found["parts"]["one"]) >= {"date", "commit", "hardware", "filesystem", "load_average_before", "sizes"}


def test_a_quick_run_writes_beside_the_results(here: Path) -> None:
    parts = {"one": part(lambda: Measured([], [Bar("x", "goal", 1.0, True)]), "x")}
    assert bulk.main(["--quick"], parts, here / "results") == 0
    assert not (here / "results").exists()
    assert load(BOOK, here / "out") is not None


def test_only_some_parts_leave_the_others_as_they_stand(here: Path) -> None:
    value = iter((1.0, 2.0))
    parts = {
        "reads": part(lambda: Measured([], [Bar("x", "goal", next(value), True)]), "x"),
        "loads": part(lambda: Measured([], [Bar("y", "goal", 7.0, True)]), "y"),
    }
    assert bulk.main([], parts, here / "results") == 0
    assert bulk.main(["--only", "reads"], parts, here / "results") == 0
    found = load(BOOK, here / "results")
    assert found is not None and bars(found) == {"x": 2.0, "y": 7.0}


def test_a_gap_makes_the_exit_code_1(here: Path) -> None:
    parts = {"one": part(lambda: Measured(bars=[Bar("x", "g", 1.0, True)], gaps=[Gap("a", "b", "died")]), "x")}
    assert bulk.main([], parts, here / "results") == 1
