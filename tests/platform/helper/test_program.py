"""Which CRIU is taken, and why none is."""

import os
from pathlib import Path

import pytest

from ebbtide.helper.criu import criu_program
from ebbtide.helper.criu.criu_program import Criu, NoCriu, find, look_at


def made(folder: Path, version: str = "4.2.1", check: int = 0) -> Path:
    """A program that says that it is CRIU."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "criu"
    path.write_text(
        f'#!/bin/sh\n[ "$1" = check ] && {{ echo "no luck" >&2; exit {check}; }}\necho "Version: {version}"\n'
    )
    path.chmod(0o700)
    return path


def test_the_one_that_is_named_wins_then_path_then_the_checkout(tmp_path: Path) -> None:
    named, on_path, checkout = made(tmp_path / "a"), made(tmp_path / "b"), made(tmp_path / ".criu")
    environment = {criu_program.VARIABLE: str(named), "PATH": str(on_path.parent)}
    for expected in (named, on_path, checkout):
        assert find(environment, tmp_path) == Criu(expected, "4.2.1")
        environment = {"PATH": str(on_path.parent)} if expected == named else {"PATH": "/nowhere"}


def test_why_there_is_none(tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\n")
    silent.chmod(0o700)
    cases = [
        (tmp_path / "missing", "no CRIU at .*make criu"),
        (made(tmp_path / "old", "3.17.1"), "is CRIU 3.17.1; 4.1 or later"),
        (made(tmp_path / "unfit", check=1), "no luck"),
        (silent, "does not say its version"),
        (Path(__file__), "cannot be run"),
    ]
    for path, says in cases:
        found = find({criu_program.VARIABLE: str(path)}, tmp_path)
        assert isinstance(found, NoCriu)
        with pytest.raises(AssertionError, match=says):
            raise AssertionError(found.why)


@pytest.mark.parametrize(
    ("version", "has", "takes"), [("4.1", False, False), ("4.1", True, True), ("4.2", False, True)]
)
def test_whether_it_takes_internet_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, has: bool, takes: bool
) -> None:
    monkeypatch.setattr(criu_program, "_inet_has_passcred", lambda: has)
    found = look_at(made(tmp_path, version))
    assert isinstance(found, Criu) and found.takes_inet is takes


def test_a_runner_without_our_word_begins_nothing(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    path = tmp_path / "criu"
    path.write_text(f"#!/bin/sh\ntouch {touched}\nexit 5\n")
    path.chmod(0o700)
    for word in (False, True):
        run = tmp_path / str(word)
        run.mkdir()
        held = criu_program.Held(Criu(path, "4.2"), run, ())
        assert held.runner.is_running() and held.runner.code() is None
        if word:
            held.go()
            held.reap()
        else:
            held.give_up()
        assert not held.runner.is_running()
        assert touched.exists() is word and held.runner.code() == (5 if word else None)
    assert os.listdir(tmp_path / "False") == []
