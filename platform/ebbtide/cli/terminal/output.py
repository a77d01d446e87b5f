"""What commands print: JSON for programs, tables for people; results on stdout, everything else on stderr."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ebbtide.config.errors import ConfigProblem

CommandT = TypeVar("CommandT", bound=Callable[..., object])

PIPE_COLUMNS = 400  # not a terminal: wide enough that no cell is cut, so that grep works


def json_option(command: CommandT) -> CommandT:
    """Adds ``--json``; the command gets it as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(command)


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Raises BrokenPipeError, as click does: rich would end the process, whatever is still to be said."""
        raise  # rich calls this while it handles that error


def console() -> Console:
    """A console on stdout; in a pipe it neither colours nor cuts."""
    return _Console(file=sys.stdout, width=None if _on_terminal() else PIPE_COLUMNS, highlight=False)


def leave_stdout() -> None:
    """For a stdout that failed: what is in its buffer would fail again, with a traceback, when the process ends."""
    sys.stdout = None  # as Python itself has it where there is none


def _on_terminal() -> bool:
    """Python has no stdout where the shell closed it (``>&-``)."""
    return sys.stdout is not None and sys.stdout.isatty()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """A table on stdout. Cells are plain text: brackets in them are no markup."""
    on = console()
    table = Table(title=title, box=None, pad_edge=False, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=not _on_terminal())
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    on.print(table)


def print_problems(problems: Sequence[ConfigProblem]) -> None:
    """One line each on stderr, as editors and terminals turn into links, then their number."""
    for problem in problems:
        click.echo(str(problem), err=True)
    click.echo(f"{len(problems)} problem{'s' if len(problems) != 1 else ''}", err=True)


def warn(message: str) -> None:
    """One line on stderr that does not end the command."""
    click.echo(f"ebbtide: {message}", err=True)
