"""The command line as a whole: exit codes, help, and rooms that are broken."""

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from subprocess import run
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

from ebbtide.cli import main as main_module
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


@pytest.fixture(autouse=True)
def rooms(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """The entry points that the command line finds; a test may add to them."""
    room = ModuleType("a_room_of_the_tests")
    room.COMMANDS = [up]  # type: ignore[attr-defined]
    room.NOTHING = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, room.__name__, room)
    found = [entry("room", "a_room_of_the_tests:COMMANDS")]
    monkeypatch.setattr(main_module, "entry_points", lambda group: found)
    monkeypatch.setattr(cli, "_rooms", None)
    yield found


def test_help_lists_our_commands_and_those_of_rooms() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0 and result.stderr == ""
    for name in ("completion", "schema", "validate", "up"):
        assert f"  {name} " in result.stdout


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


def test_a_room_cannot_replace_a_command(rooms: list[EntryPoint], monkeypatch: pytest.MonkeyPatch) -> None:
    thief = ModuleType("a_thief")
    thief.COMMANDS = [click.Command("validate"), click.Command("up"), click.Command("loot", help="All.")]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_thief", thief)
    rooms.append(entry("thief", "a_thief:COMMANDS"))
    result = CliRunner().invoke(cli, ["--help"])
    assert "Check FILE" in result.stdout and "  loot" in result.stdout
    assert [line.split(" adds ")[1] for line in result.stderr.splitlines()] == [
        "'validate', which is there already",
        "'up', which is there already",
    ]


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


def test_the_installed_program_validates_without_ray_torch_or_a_room() -> None:
    code = (
        "import sys; sys.argv = ['ebbtide', 'validate', '/none.yaml']\n"
        "from ebbtide.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, {'ray', 'torch', 'vllm'} & set(sys.modules))\n"
    )
    done = run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "2 set()\n"
    assert done.stderr == "/none.yaml:1:1: cannot be read: No such file or directory\n1 problem\n"
