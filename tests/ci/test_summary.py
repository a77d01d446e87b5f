"""What a run says at its end: everything that went wrong is named, and the last line can be counted."""

import json
from pathlib import Path

import pytest

from ci.part import Part
from ci.summary import Result, lines, write


def result(*parts: Part, **changes: object) -> Result:
    made = Result("abc", 70.0, "2 CPU cores", parts=list(parts), took_s=60.0)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_a_clean_run_ends_with_what_passed() -> None:
    told = list(lines(result(Part("test", {"a": "passed", "b": "skipped"}))))
    assert told[-1] == "1 passed, 0 failed, 1 skipped"
    assert not [line for line in told if "FAILED" in line]


@pytest.mark.parametrize(
    "part, said",
    [
        (Part("test", {"a": "failed"}), "FAILED in test: a"),
        (Part("hunts", cut_off=["h"]), "FAILED in hunts: cut off: h"),
        (Part("clusters", untested=["m.py::t"]), "FAILED in clusters: not run: m.py::t"),
        (Part("test", troubles=["it died"]), "FAILED in test: it died"),
    ],
)
def test_what_went_wrong_is_named_and_the_run_is_not_clean(part: Part, said: str) -> None:
    found = result(Part("check", {"lint": "passed"}), part)
    assert said in lines(found) and not found.clean


def test_flakes_what_was_left_running_and_hunts_without_time_are_named_and_fail_nothing() -> None:
    part = Part("test", {"a": "passed"}, flakes=["a"], left=["7 raylet"], notes=["m.py was cut off"])
    found = result(part, not_begun=["h.py"])
    told = list(lines(found))
    assert "test: flaky (failed, then passed alone): a" in told
    assert "test: ended what was left running: 7 raylet" in told
    assert "test: m.py was cut off" in told
    assert "hunt not run, no time was left: h.py" in told
    assert found.clean


def test_a_run_that_was_interrupted_is_not_clean() -> None:
    found = result(Part("test", {"a": "passed"}), interrupted=True)
    assert "FAILED: the run was interrupted" in lines(found) and not found.clean


def test_many_tests_that_did_not_run_are_counted_and_all_are_in_the_file(tmp_path: Path) -> None:
    found = result(Part("test", untested=[f"t{number}" for number in range(100)]))
    assert sum("not run" in line for line in lines(found)) < 40
    write(found, tmp_path / "out" / "summary.json")
    told = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert len(told["parts"][0]["untested"]) == 100 and told["clean"] is False
