"""`--json`: every command has a schema, and errors are one JSON object on stderr.

That what is printed is as its schema says is checked wherever a test runs a command (``tests/builders/json_shape.py``).
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.cli.main import cli
from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.cli.terminal.json_errors import as_json
from ebbtide.cli.terminal.output import print_json_line, with_iso_times
from tests.builders.json_shape import check, check_times, schema


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    ctx = click.Context(command)
    for name in command.list_commands(ctx):
        found = command.get_command(ctx, name)
        assert found is not None
        yield from commands(found, (*path, name))


def test_every_command_with_json_has_a_schema_and_no_schema_is_without_its_command() -> None:
    taking = {
        name
        for name, command in commands(cli)
        if any("--json" in one.opts and isinstance(one, click.Option) and one.is_flag for one in command.params)
    }
    assert taking == set(schema()["properties"])


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


def said(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def error_of(result: Result) -> dict[str, Any]:
    """The last line on stderr."""
    assert result.stdout == "" and "Traceback" not in result.stderr
    found: dict[str, Any] = json.loads(result.stderr.splitlines()[-1])
    check("error", found)
    assert found["exit_code"] == result.exit_code
    error: dict[str, Any] = found["error"]
    return error | {"exit_code": result.exit_code}


@pytest.fixture(autouse=True)
def no_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "kind", "told"),
    [
        (("validate", "--json"), "usage", "Missing argument 'FILE'"),
        (("validate", "--jsn", "--json"), "usage", "No such option"),
        (("validate", "--json", "--jsn"), "usage", "No such option"),
        (("--nonsense", "status", "--json"), "usage", "No such option"),
        (("sttus", "--json"), "usage", "No such command 'sttus'"),
        (("models", "lst", "--json"), "usage", "No such command 'lst'"),
        (("models", "gc", "--grace", "soon", "--json"), "usage", "is no duration"),
        (("keys", "create", "k", "--rpm", "0", "--json"), "usage", "not in the range"),
        (("status", "--json"), "bad_input", "no running pool is on record"),
        (("why", "chat", "--json"), "bad_input", "no running pool is on record"),
        (("plan", "--json"), "bad_input", "give a FILE"),
        (("up", "--rollback", "--json"), "bad_input", "no running pool is on record"),
        (("checkpoints", "list", "j", "--shared-dir", "none", "--json"), "bad_input", "no job j has run"),
        (("up", "gone.yaml", "--json"), "config", "gone.yaml:1:1: cannot be read"),
        (("plan", "gone.yaml", "--json"), "config", "gone.yaml:1:1: cannot be read"),
        (("submit", "gone.yaml", "--json"), "config", "gone.yaml:1:1: cannot be read"),
    ],
)
def test_an_error_is_one_object_with_its_class_and_exit_code(words: tuple[str, ...], kind: str, told: str) -> None:
    result = said(*words)
    found = error_of(result)
    assert (found["class"], found["exit_code"]) == (kind, 2) and told in found["message"]
    assert len(result.stderr.splitlines()) == 1
    if kind == "usage":
        assert found["remedy"].endswith("--help")
    if kind == "config":
        assert (found["problems"][0]["line"], found["problems"][0]["column"]) == (1, 1)


def test_without_json_errors_are_for_people() -> None:
    assert said("validate").stderr.startswith("Usage: ")
    assert said("up", "gone.yaml").stderr.endswith("1 problem\n")


def test_json_among_the_words_of_another_program_is_not_ours() -> None:
    assert said("run", "--gpus", "2", "jupyter", "--json").stderr.startswith("Error: --gpus 2")
    assert said("simulate", "--json").stderr.startswith("Error: Option"), "there it takes a file"


def test_the_result_with_problems_stays_a_result() -> None:
    result = said("validate", "gone.yaml", "--json")
    assert (result.exit_code, result.stderr) == (2, "") and not json.loads(result.stdout)["valid"]


def test_what_failed_is_told_from_what_was_wrong_and_names_the_command_that_helps() -> None:
    failed = as_json(CommandFailed("the arbiter does not answer; see `ebbtide status`"))
    assert failed == {
        "error": {
            "class": "failed",
            "message": "the arbiter does not answer; see `ebbtide status`",
            "remedy": "ebbtide status",
        },
        "exit_code": 1,
    }
    assert as_json(BadInput("no"))["error"]["remedy"] is None


@given(
    st.recursive(
        st.none() | st.floats(-1e12, 1e12) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["at_s", "since_at_s", "a", "b_s"]), inner),
    )
)
def test_times_are_told_twice_and_nothing_else_changes(value: Any) -> None:
    def without(told: Any) -> Any:
        if isinstance(told, list):
            return [without(part) for part in told]
        if isinstance(told, dict):
            return {key: without(part) for key, part in told.items() if key not in ("at", "since_at")}
        return told

    assert without(with_iso_times(value)) == value


def test_a_time_is_iso_8601_in_utc(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = time.time()
    print_json_line({"at_s": now_s, "jobs": ({"ended_at_s": None}, {"ended_at_s": 0.0}, {"ended_at_s": 1e300})})
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    check_times({"at": found["at"], "at_s": now_s}, "")
    assert found["at"].endswith("Z") and [one["ended_at"] for one in found["jobs"]] == [None, None, None]
