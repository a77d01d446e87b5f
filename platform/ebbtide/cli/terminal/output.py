"""What commands print: JSON for programs, tables for people; results on stdout, everything else on stderr.

The shape of all JSON is made here, once; `docs/json.md` describes it.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn, TypeVar

import click
from rich.console import Console

from ebbtide.cli.terminal.tables import Listing
from ebbtide.config.errors import ConfigProblem

CommandT = TypeVar("CommandT", bound=Callable[..., object])

PIPE_COLUMNS = 1_000_000  # not a terminal: no line is wrapped, and none is padded
JSON_WANTED = "ebbtide.json"  # in the context's meta: the user has asked for JSON, errors too


def json_option(command: CommandT) -> CommandT:
    """Adds ``--json``; the command gets it as ``as_json``."""

    def wanted(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
        if value:
            ctx.meta[JSON_WANTED] = True
        return value

    return click.option(
        "--json", "as_json", is_flag=True, is_eager=True, callback=wanted, help="Print JSON for programs."
    )(command)


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on stdout, each time in it as ISO 8601 too."""
    click.echo(json.dumps(document(value), indent=2, ensure_ascii=False, default=str))


def document(value: Mapping[str, Any]) -> dict[str, Any]:
    """The whole answer of a command, as it is printed; `docs/json.schema.json` says what each one has."""
    found: dict[str, Any] = with_iso_times(value)
    return found


def print_json_line(value: Mapping[str, Any]) -> None:
    """The same on one line, for commands that go on printing objects."""
    click.echo(json.dumps(with_iso_times(value), ensure_ascii=False, default=str))


def with_iso_times(value: Any) -> Any:
    """Beside each ``*_at_s``, seconds since 1970, the same time as ``*_at``: ISO 8601 in UTC; null where none is."""
    if isinstance(value, Mapping):
        found: dict[Any, Any] = {}
        for name, part in value.items():
            if isinstance(name, str) and (name == "at_s" or name.endswith("_at_s")):
                found[name.removesuffix("_s")] = _iso(part)
            found[name] = with_iso_times(part)
        return found
    if isinstance(value, list | tuple):
        return [with_iso_times(part) for part in value]
    return value


def _iso(at_s: object) -> str | None:
    if not isinstance(at_s, int | float) or not at_s:
        return None
    try:
        return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, OSError, ValueError):  # no year that a calendar has
        return None


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Raises BrokenPipeError, as click does: rich would end the process, whatever is still to be said."""
        raise  # rich calls this while it handles that error


def console() -> Console:
    """A console on stdout; in a pipe it neither colours nor cuts."""
    on_terminal = is_terminal()
    return _Console(
        file=sys.stdout, width=None if on_terminal else PIPE_COLUMNS, force_terminal=on_terminal, highlight=False
    )


def leave_stdout() -> None:
    """For a stdout that failed: what is in its buffer would fail again, with a traceback, when the process ends."""
    sys.stdout = None  # as Python itself has it where there is none


def is_terminal() -> bool:
    """Whether a person sees stdout. Python has none where the shell closed it (``>&-``)."""
    return sys.stdout is not None and sys.stdout.isatty()


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str = "",
    below: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """A table on stdout; ``below`` and ``optional`` as of a `Listing`. Cells are plain text: brackets are no markup."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    console().print(Listing(title, columns, cells, below, optional))


def print_problems(problems: Sequence[ConfigProblem]) -> None:
    """One line each on stderr, as editors and terminals turn into links, then their number."""
    for problem in problems:
        click.echo(str(problem), err=True)
    click.echo(f"{len(problems)} problem{'s' if len(problems) != 1 else ''}", err=True)


def warn(message: str) -> None:
    """One line on stderr that does not end the command."""
    click.echo(f"ebbtide: {message}", err=True)
