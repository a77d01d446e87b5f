"""A result is replaced whole or not at all."""

import os
from pathlib import Path

import pytest

from evidence import result_file
from evidence.result_file import read, write


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "kills.json"
    assert read(path) == {}
    write({"rows": [1]}, path)
    write({"rows": [1, 2]}, path)
    assert read(path) == {"rows": [1, 2]}
    assert [one.name for one in path.parent.iterdir()] == ["kills.json"]


def test_a_disk_that_fails_leaves_the_old_result_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kills.json"
    write({"rows": [1]}, path)

    def fails(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space"):
        write({"rows": [1, 2]}, path)
    assert read(path) == {"rows": [1]}
    assert [one.name for one in tmp_path.iterdir()] == ["kills.json"]


def test_a_result_that_is_named_from_here_gets_its_page_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_file, "RESULTS", tmp_path)
    monkeypatch.chdir(tmp_path)
    result_file.write({"rows": [{"case": "a", 1: (2, 3), "n": 4}]}, Path("some.json"))
    assert "| a | 4 |" in (tmp_path / "some.md").read_text()
