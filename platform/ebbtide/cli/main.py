"""``ebbtide``: the group of all commands. Exit 0 = done, 1 = failed, 2 = bad input.

Every command is imported when it is asked for: ours by its name, those of other rooms only when the list of all is
wanted or a name is not one of ours. So `validate` and `schema` stay fast and need no Ray; and while a shell completes,
stand-ins take the place of the other rooms' commands.
"""

import os
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

import click

from ebbtide.cli.command_plugins import GROUP, RoomCommands, load_room_commands
from ebbtide.cli.stub_commands import COMPLETE_VARIABLE, STAND_INS
from ebbtide.cli.terminal.json_errors import exit_code_of, print_json_error, wants_json
from ebbtide.cli.terminal.output import print_problems, warn
from ebbtide.config.errors import ConfigErrors

OWN: Mapping[str, str] = {
    "checkpoints": "ebbtide.cli.commands.checkpoints:checkpoints",
    "completion": "ebbtide.cli.commands.completion:completion",
    "doctor": "ebbtide.cli.commands.doctor:doctor",
    "events": "ebbtide.cli.commands.event_history:events",
    "models": "ebbtide.cli.commands.models:models",
    "schema": "ebbtide.cli.commands.schema:schema",
    "validate": "ebbtide.cli.commands.validate:validate",
    "why": "ebbtide.cli.commands.event_history:why",
}
"""The commands of this package, by where they are."""


_WORDS = "ebbtide.words"  # in the context's meta: the command line


class Ebbtide(click.Group):
    """A group that also holds the commands of other rooms, and turns bad configuration into exit code 2."""

    _rooms: RoomCommands | None = None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names; says on stderr which rooms' commands are missing, and why."""
        others = STAND_INS if COMPLETE_VARIABLE in os.environ else self._room_commands().commands
        return sorted({*OWN, *self.commands, *others})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Our own command, else that of another room."""
        if cmd_name in OWN and cmd_name not in self.commands:
            module, _, name = OWN[cmd_name].partition(":")
            self.add_command(getattr(import_module(module), name))
        if COMPLETE_VARIABLE in os.environ and cmd_name in STAND_INS:
            return STAND_INS[cmd_name]
        return self.commands.get(cmd_name) or self._room_commands().commands.get(cmd_name)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; a wrong file is printed problem by problem, and with ``--json`` every error as JSON."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, ConfigErrors) as error:
            if wants_json(ctx, ctx.meta.get(_WORDS, ()), error):
                print_json_error(error)
            elif isinstance(error, ConfigErrors):
                print_problems(error.problems)
            else:
                raise
            raise click.exceptions.Exit(exit_code_of(error)) from error

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Keep the words, which a parse that fails does not."""
        words = tuple(args)
        try:
            ctx = super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            if "--json" not in words:
                raise
            print_json_error(error)
            raise click.exceptions.Exit(error.exit_code) from error
        ctx.meta[_WORDS] = words
        return ctx

    def _room_commands(self) -> RoomCommands:
        if self._rooms is None:
            self._rooms = load_room_commands(entry_points(group=GROUP), taken={*OWN, *self.commands})
            for fault in self._rooms.faults:
                warn(fault)
        return self._rooms


def ebbtide_version() -> str:
    """The installed version, or a word that says there is none."""
    try:
        return version("ebbtide")
    except PackageNotFoundError:
        return "not installed"


@click.group(
    cls=Ebbtide,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit code: 0 done, 1 failed, 2 bad input.",
)
@click.version_option(version=ebbtide_version(), prog_name="ebbtide")
def cli() -> None:
    """One pool of GPUs: serving at high tide, training at the ebb."""


def main() -> None:
    """The program; ends the process with 0, 1 or 2."""
    cli(prog_name="ebbtide")
