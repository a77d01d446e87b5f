"""Commands that the rooms above add by entry points ``ebbtide.commands``; each names a sequence of ``ListedCommand``.

The command line must not import those rooms (they stand on it), and must go on without one that is broken: `validate`
and `--help` work on a machine where Ray cannot be imported.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint

import click

from ebbtide.cli.listed_command import ListedCommand

GROUP = "ebbtide.commands"


class CommandMissing(ImportError):
    """The module of a listed command cannot be imported, or has no such command; the message says why, in a line."""


@dataclass(frozen=True, slots=True)
class RoomCommands:
    """What was found: commands by name, and one line per entry point that gave none."""

    listed: dict[str, ListedCommand]
    faults: tuple[str, ...]


def list_room_commands(entries: Iterable[EntryPoint], *, taken: Iterable[str]) -> RoomCommands:
    """Import every entry point's registry; a name that is already taken stays with the first."""
    listed: dict[str, ListedCommand] = {}
    faults: list[str] = []
    known = set(taken)
    for entry in sorted(entries, key=lambda entry: entry.name):
        try:
            given = entry.load()
        # Another room's module may raise anything while it is imported. Nothing of ours has changed by then, and the
        # user is told; without this line one broken room would take the whole command line with it.
        except Exception as error:  # noqa: BLE001
            faults.append(f"the commands of {entry.name!r} ({entry.value}) are not there: {_one_line(error)}")
            continue
        if not isinstance(given, Sequence) or not all(isinstance(command, ListedCommand) for command in given):
            faults.append(f"the commands of {entry.name!r} ({entry.value}) are not there: it is no list of commands")
            continue
        for command in given:
            if not command.name or command.name in known:
                faults.append(f"{entry.name!r} ({entry.value}) adds {command.name!r}, which is there already")
                continue
            known.add(command.name)
            listed[command.name] = command
    return RoomCommands(listed, tuple(faults))


def load_command(listed: ListedCommand) -> click.Command:
    """Import the command itself.

    Raises:
        CommandMissing: it is not there.
    """
    module, _, attribute = listed.place.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except Exception as error:
        raise CommandMissing(f"`ebbtide {listed.name}` ({listed.place}) is not there: {_one_line(error)}") from error
    if not isinstance(found, click.Command):
        raise CommandMissing(f"`ebbtide {listed.name}` ({listed.place}) is not there: it is no command")
    return found


def _one_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
