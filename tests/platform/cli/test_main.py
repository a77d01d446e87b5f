"""The command line as a whole: exit codes, help, and rooms that are broken."""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from ebbtide.cli import main as main_module
from ebbtide.cli.commands.completion import COMPLETE_VARIABLE
from ebbtide.cli.listed_command import ListedCommand, Section
from ebbtide.cli.main import cli
from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.config.loading.pool_file_loader import load


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group="ebbtide.commands")


@click.command("up")
@click.argument("file")
def up(file: str) -> None:
    """Start a pool."""
    load(file)
    if file.endswith("dead.yaml"):
        raise CommandFailed("no cluster answers there")
    raise BadInput("that pool is up already, with another configuration")


def listed(name: str, place: str = "a_room_of_the_tests:up", section: Section = Section.POOL) -> ListedCommand:
    return ListedCommand(name, place, section, f"What {name} does.")


@pytest.fixture(autouse=True)
def rooms(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """The entry points that the command line finds; a test may add to them."""
    room = ModuleType("a_room_of_the_tests")
    room.up = up  # type: ignore[attr-defined]
    room.COMMANDS = [listed("up"), listed("stray", section=Section.JOBS)]  # type: ignore[attr-defined]
    room.BROKEN = [  # type: ignore[attr-defined]
        listed("gone", "no_such_room.commands:gone"),
        listed("empty", "a_room_of_the_tests:MISSING"),
        listed("number", "a_room_of_the_tests:NOTHING"),
        listed("bang", "this_room_explodes:bang"),
    ]
    room.NOTHING = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, room.__name__, room)
    found = [entry("room", "a_room_of_the_tests:COMMANDS")]
    monkeypatch.setattr(main_module, "entry_points", lambda group: found)
    cli.__dict__.pop("listed", None)
    yield found
    cli.__dict__.pop("listed", None)


def test_help_lists_our_commands_and_those_of_rooms() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0 and result.stderr == ""
    for name in ("completion", "schema", "validate", "up"):
        assert f"  {name} " in result.stdout


def test_help_has_sections_and_what_a_person_needs_first_stands_first() -> None:
    lines = CliRunner().invoke(cli, ["--help"]).stdout.splitlines()
    headings = [line.rstrip(":") for line in lines if re.fullmatch(r"[A-Z][a-z]+:", line)]
    assert headings == ["Options", "Pool", "Jobs", "Look", "Models"], "in order, and none that is empty"
    names = [line.split()[0] for line in lines[lines.index("Pool:") :] if re.match(r"  [a-z]", line)]
    assert names[:4] == ["up", "validate", "completion", "schema"]
    columns = {re.match(r"  \S+ +", line).end() for line in lines[lines.index("Pool:") :] if re.match(r"  [a-z]", line)}  # type: ignore[union-attr]
    assert len(columns) == 1, "the texts of all sections begin in one column"


def test_without_arguments_the_help_is_shown_as_click_does() -> None:
    result = CliRunner().invoke(cli, [])
    assert result.exit_code == CliRunner().invoke(click.Group("bare", commands=[up]), []).exit_code
    assert "Pool:" in result.output and "  up " in result.output


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("no_such_room.commands:COMMANDS", "ModuleNotFoundError: No module named 'no_such_room'"),
        ("a_room_of_the_tests:MISSING", "AttributeError: "),
        ("a_room_of_the_tests:NOTHING", "it is no list of commands"),
        ("this_room_explodes:COMMANDS", "RuntimeError: first line"),
    ],
)
def test_a_broken_room_is_told_in_one_line_and_the_rest_works(
    rooms: list[EntryPoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, told: str
) -> None:
    (tmp_path / "this_room_explodes.py").write_text("raise RuntimeError('first line\\nsecond line')\n")
    monkeypatch.syspath_prepend(tmp_path)
    rooms.append(entry("broken", value))
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"ebbtide: the commands of 'broken' ({value}) are not there: ") and told in line
    assert "  up " in result.stdout


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gone", "ModuleNotFoundError: No module named 'no_such_room'"),
        ("empty", "AttributeError: "),
        ("number", "it is no command"),
        ("bang", "RuntimeError: first line"),
    ],
)
def test_a_broken_command_is_told_when_it_is_asked_for_and_the_others_work(
    rooms: list[EntryPoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, told: str
) -> None:
    (tmp_path / "this_room_explodes.py").write_text("raise RuntimeError('first line\\nsecond line')\n")
    monkeypatch.syspath_prepend(tmp_path)
    rooms.append(entry("broken", "a_room_of_the_tests:BROKEN"))
    assert f"  {name} " in CliRunner().invoke(cli, ["--help"]).stdout
    result = CliRunner().invoke(cli, [name])
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"`ebbtide {name}` (" in result.stderr and told in result.stderr and "second line" not in result.stderr
    assert CliRunner().invoke(cli, ["completion", "bash"]).exit_code == 0


def test_a_broken_command_is_not_completed_and_nothing_is_said(rooms: list[EntryPoint]) -> None:
    rooms.append(entry("broken", "a_room_of_the_tests:BROKEN"))
    found = ShellComplete(cli, {}, "ebbtide", COMPLETE_VARIABLE).get_completions(["gone"], "--")
    assert [one.value for one in found] == ["--version", "--help"], "of the program itself, as click has it"


def test_names_are_completed_without_importing_a_command(rooms: list[EntryPoint]) -> None:
    rooms.append(entry("broken", "a_room_of_the_tests:BROKEN"))
    found = ShellComplete(cli, {}, "ebbtide", COMPLETE_VARIABLE).get_completions([], "b")
    assert [(one.value, one.help) for one in found] == [("bang", "What bang does.")]


def test_a_room_cannot_replace_a_command(rooms: list[EntryPoint], monkeypatch: pytest.MonkeyPatch) -> None:
    thief = ModuleType("a_thief")
    thief.COMMANDS = [listed("validate"), listed("up"), listed("loot")]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_thief", thief)
    rooms.append(entry("thief", "a_thief:COMMANDS"))
    result = CliRunner().invoke(cli, ["--help"])
    assert "Check FILE" in result.stdout and "  loot" in result.stdout
    assert [line.split(" adds ")[1] for line in result.stderr.splitlines()] == [
        "'validate', which is there already",
        "'up', which is there already",
    ]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("stary", "stray"),
        ("validat", "validate"),
        ("VALIDATE", "validate"),
        ("vlaidate", "validate"),
        ("evnets", "events"),
        ("pu", "up"),
        ("model", "models"),
    ],
)
def test_a_misspelt_command_is_told_which_is_near(typed: str, meant: str) -> None:
    result = CliRunner().invoke(cli, [typed, "--json"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"No such command {typed!r}. Did you mean {meant!r}?" in result.stderr


@pytest.mark.parametrize("typed", ["nonsense", "x" * 10_000, "", "--", "🌊"])
def test_what_is_near_no_command_is_told_so(typed: str) -> None:
    result = CliRunner().invoke(cli, [typed, "x"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "No such command" in result.stderr and "Did you mean" not in result.stderr


def test_our_own_commands_load_no_room(rooms: list[EntryPoint]) -> None:
    rooms.append(entry("broken", "no_such_room.commands:COMMANDS"))
    result = CliRunner().invoke(cli, ["completion", "bash"])
    assert result.exit_code == 0 and result.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "exit_code", "told"),
    [
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["validate"], 2, "Missing argument 'FILE'"),
        (["validate", "--nonsense"], 2, "No such option"),
        (["up", "gone.yaml"], 2, "gone.yaml:1:1: cannot be read: No such file or directory"),
        (["up", "dead.yaml"], 1, "Error: no cluster answers there"),
        (["up", "good.yaml"], 2, "Error: that pool is up already"),
    ],
)
def test_what_goes_wrong_is_one_message_and_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], exit_code: int, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("good.yaml", "dead.yaml"):
        Path(name).write_text("pool: {name: demo}\n")
    result = CliRunner().invoke(cli, arguments)
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert told in result.stderr and "Traceback" not in result.stderr


def test_the_version_is_that_of_the_package() -> None:
    result = CliRunner().invoke(cli, ["--version"])
    assert result.exit_code == 0 and result.stdout.startswith("ebbtide, version ")
