"""Tables and JSON: whole cells in a pipe, no markup, valid JSON."""

import json
import os
import sys
from pathlib import Path

import pytest

from ebbtide.cli.terminal.output import leave_stdout, print_json, print_table, warn


def test_a_table_in_a_pipe_is_neither_cut_nor_coloured_nor_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 200
    print_table(["slot", "held by"], [["a:0", "[bold]tiny[/]"], ["a:1", long], ["a:2", None]])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["slot", "held", "by"],
        ["a:0", "[bold]tiny[/]"],
        ["a:1", long],
        ["a:2", "-"],
    ]


def test_json_is_json_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"path": Path("/a"), "name": "é"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"path": "/a", "name": "é"} and "é" in out


def test_warnings_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    warn("look")
    assert capsys.readouterr() == ("", "ebbtide: look\n")


def test_without_a_stdout_nothing_is_printed_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    print_table(["slot"], [["a:0"]])
    print_json({})


def test_a_reader_that_has_gone_does_not_end_the_process_before_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr(sys, "stdout", os.fdopen(write, "w"))
    with pytest.raises(BrokenPipeError):
        print_table(["slot"], [["a:0"]])
    leave_stdout()
    print_table(["slot"], [["a:0"]])
