"""``ebbtide status --watch``: the tables on the screen, again and again, until Ctrl-C."""

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from rich.console import RenderableType
from rich.live import Live

from ebbtide.cli.terminal.output import console, is_terminal, leave_stdout

AGAIN_S = 0.5
AGAIN_PIPED_S = 2.0  # a file that grows is read by a program or much later


def keep_on_screen(
    look: Callable[[], dict[str, Any]],
    as_line: Callable[[Mapping[str, Any]], None] | None,
    render: Callable[[dict[str, Any]], RenderableType],
    *,
    first: RenderableType,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns at Ctrl-C, and when stdout has no reader any more.

    Args:
        look: the status now; may take seconds, the first time most.
        as_line: prints it as a line of JSON each time; None: tables.
        render: the tables, which are made for the width that the terminal has by then.
        first: shown at once, until the first look has an answer.
        sleep: for tests.
    """
    with suppress(KeyboardInterrupt):
        try:
            if sys.stdout is None:  # the shell closed it
                return
            if as_line is not None or not is_terminal():
                _again_and_again(look, as_line or (lambda found: console().print(render(dict(found)))), sleep)
            _live(look, render, first, sleep)
        except BrokenPipeError:
            leave_stdout()


def _again_and_again(
    look: Callable[[], dict[str, Any]], show: Callable[[Mapping[str, Any]], None], sleep: Callable[[float], None]
) -> None:
    while True:
        show(look())
        sys.stdout.flush()
        sleep(AGAIN_PIPED_S)


def _live(
    look: Callable[[], dict[str, Any]],
    render: Callable[[dict[str, Any]], RenderableType],
    first: RenderableType,
    sleep: Callable[[float], None],
) -> None:
    with Live(first, console=console(), refresh_per_second=4, screen=False) as live:
        live.refresh()
        while True:
            live.update(render(look()), refresh=True)
            sleep(AGAIN_S)
