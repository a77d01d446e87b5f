"""What commands print: JSON for programs, tables for people; results on stdout, everything else on stderr."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

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


def console() -> Console:
    """A console on stdout; in a pipe it neither colours nor cuts."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else PIPE_COLUMNS, highlight=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """A table on stdout. Cells are plain text: brackets in them are no markup."""
    on = console()
    table = Table(title=title, box=None, pad_edge=False, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=not sys.stdout.isatty())
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
