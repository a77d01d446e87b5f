"""A pytest writes down what it tests while it tests, so that one that is killed has told what it did."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ci.progress import Progress, parse, read
from ci.told import FILE

ROOT = Path(__file__).parents[2]
MODULE = """
import time
import pytest

def test_good():
    assert True

@pytest.mark.parametrize("case", ["a::b", "c d"])
def test_cases(case):
    assert True

def test_bad():
    assert False

@pytest.fixture
def broken():
    yield
    raise RuntimeError("in the end")

def test_bad_end(broken):
    pass

@pytest.mark.skip
def test_skipped():
    pass

def test_hangs():
    time.sleep(HANG)

def test_never_reached():
    pass
"""


def start(folder: Path, hang_s: float, *arguments: str) -> tuple["subprocess.Popen[bytes]", Path]:
    (folder / "test_it.py").write_text(MODULE.replace("HANG", str(hang_s)))
    told = folder / "told.jsonl"
    env = {**os.environ, FILE: str(told), "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "ci.told",
        "-q",
        "-p",
        "no:cacheprovider",
        *arguments,
        "test_it.py",
    ]
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return process, told


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "with workers"])
def test_a_whole_run_is_told_with_the_worst_of_each_test(tmp_path: Path, workers: tuple[str, ...]) -> None:
    process, told = start(tmp_path, 0.0, *workers)
    assert process.wait(60) == 1
    found = read(told)
    assert {name.partition("::")[2]: outcome for name, outcome in found.outcomes.items()} == {
        "test_good": "passed",
        "test_cases[a::b]": "passed",
        "test_cases[c d]": "passed",
        "test_bad": "failed",
        "test_bad_end": "failed",
        "test_skipped": "skipped",
        "test_hangs": "passed",
        "test_never_reached": "passed",
    }
    assert found.listed == found.outcomes.keys() and not found.running and not found.untested
    assert sorted(found.failed) == ["test_it.py::test_bad", "test_it.py::test_bad_end"]


def test_one_that_is_killed_has_told_what_it_did_and_where_it_was(tmp_path: Path) -> None:
    process, told = start(tmp_path, 600.0)
    deadline_s = time.monotonic() + 60
    while not any(name.endswith("hangs") for name in read(told).running):
        assert time.monotonic() < deadline_s and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    found = read(told)
    assert found.running == ("test_it.py::test_hangs",)
    assert found.untested == ["test_it.py::test_never_reached"]
    assert found.count("passed") == 3
    assert found.in_words() == "3 passed, 2 failed, 1 skipped, 1 cut off, 1 not run"


def test_a_module_that_cannot_be_collected_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import no_such_module")
    told = tmp_path / "told.jsonl"
    env = {**os.environ, FILE: str(told), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "pytest", "-p", "ci.told", "test_it.py"], cwd=tmp_path, env=env, timeout=60)
    assert read(told).failed == ["test_it.py"]


def test_without_a_file_nothing_was_tested(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == Progress() and Progress().in_words() == "no tests"


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    told = tmp_path / "told"
    told.write_text('{"ids": ["a"]}\n{"start": "a"}\n{"end": "a", "outc')
    assert read(told).running == ("a",)


def test_a_test_that_runs_twice_has_its_last_outcome() -> None:
    end = '{"end": "a", "outcome": "%s", "seconds": 1}'
    assert parse(['{"ids": ["a"]}', end % "failed", '{"start": "a"}', end % "passed"]).outcomes == {"a": "passed"}
