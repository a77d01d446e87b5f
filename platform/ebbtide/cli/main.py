"""``ebbtide``: the group of all commands. Exit 0 = done, 1 = failed, 2 = bad input.

The names and the first lines of all commands come from registries that import nothing; a command itself is imported
when it is asked for. So no command waits for what only others need: Ray takes seconds to import.
"""

from functools import cached_property
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

import click
from click.shell_completion import CompletionItem

from ebbtide.cli import own_commands
from ebbtide.cli.command_plugins import GROUP, CommandMissing, list_room_commands, load_command
from ebbtide.cli.listed_command import ListedCommand, Section
from ebbtide.cli.terminal.errors import CommandFailed
from ebbtide.cli.terminal.json_errors import exit_code_of, print_json_error, wants_json
from ebbtide.cli.terminal.output import print_problems, warn
from ebbtide.config.errors import ConfigErrors
from ebbtide.config.suggestions import nearest

_WORDS = "ebbtide.words"  # in the context's meta: the command line

_WORDS = "ebbtide.words"  # in the context's meta: the command line


class Ebbtide(click.Group):
    """A group of listed commands; bad configuration becomes exit code 2."""

    @cached_property
    def listed(self) -> dict[str, ListedCommand]:
        """All commands by name, section by section; says on stderr which rooms' are missing, and why."""
        own = {command.name: command for command in own_commands.COMMANDS}
        rooms = list_room_commands(entry_points(group=GROUP), taken=own)
        for fault in rooms.faults:
            warn(fault)
        found = sorted({**rooms.listed, **own}.values(), key=lambda command: command.position)
        return {command.name: command for command in found}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, section by section."""
        return list(self.listed)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, imported now.

        Raises:
            CommandFailed: it is listed and cannot be imported.
        """
        own = {command.name: command for command in own_commands.COMMANDS}
        listed = own.get(cmd_name) or self.listed.get(cmd_name)  # ours are there, whatever becomes of the rooms
        if listed is None:
            return None
        try:
            return load_command(listed)
        except CommandMissing as error:
            if ctx.resilient_parsing:  # a shell completes: nothing is offered, and nothing said
                return None
            raise CommandFailed(str(error)) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, and a wrong name is told which right one is near."""
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            near = nearest(name, self.listed)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {near!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A table for each section."""
        for section in Section:
            rows = [(one.name, one.help) for one in self.listed.values() if one.section is section]
            if rows:
                with formatter.section(section.value):
                    width = max(map(len, self.listed))  # the same in all sections, so that their texts align
                    formatter.write_dl([(name.ljust(width), help_line) for name, help_line in rows])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names from the registries: click's own way would import every command that fits."""
        names = [CompletionItem(n, help=one.help) for n, one in self.listed.items() if n.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

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
