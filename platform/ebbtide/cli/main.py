"""``ebbtide``: the group of all commands. Exit 0 = done, 1 = failed, 2 = bad input.

Commands of this package are known at once; those of other rooms are imported only when the list of all is asked for or
a name is not one of ours. So `validate` and `schema` stay fast and need no Ray.
"""

from importlib.metadata import PackageNotFoundError, entry_points, version

import click

from ebbtide.cli.completion import completion
from ebbtide.cli.errors import BadInput
from ebbtide.cli.history import events, why
from ebbtide.cli.output import print_problems, warn
from ebbtide.cli.room_commands import GROUP, RoomCommands, load_room_commands
from ebbtide.cli.schema import schema
from ebbtide.cli.validate import validate
from ebbtide.config.errors import ConfigErrors


class Ebbtide(click.Group):
    """A group that also holds the commands of other rooms, and turns bad configuration into exit code 2."""

    _rooms: RoomCommands | None = None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names; says on stderr which rooms' commands are missing, and why."""
        return sorted({*self.commands, *self._room_commands().commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Our own command, else that of another room."""
        return self.commands.get(cmd_name) or self._room_commands().commands.get(cmd_name)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; a wrong file is printed problem by problem."""
        try:
            return super().invoke(ctx)
        except ConfigErrors as error:
            print_problems(error.problems)
            raise click.exceptions.Exit(BadInput.exit_code) from error

    def _room_commands(self) -> RoomCommands:
        if self._rooms is None:
            self._rooms = load_room_commands(entry_points(group=GROUP), taken=self.commands)
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


for _command in (completion, events, schema, validate, why):
    cli.add_command(_command)


def main() -> None:
    """The program; ends the process with 0, 1 or 2."""
    cli(prog_name="ebbtide")
