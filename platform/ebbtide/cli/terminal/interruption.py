"""What a person is told who interrupts a command: what is left, in one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click

from ebbtide.cli.terminal.errors import CommandFailed


@dataclass(slots=True)
class Stage:
    """How far the command is. ``left``: how things stand if it is interrupted now."""

    left: str


@contextmanager
def interruptible(left: str) -> Iterator[Stage]:
    """Ctrl-C in here, a signal that was turned into it, and a "no" become an error that says what is ``left``.

    Raises:
        CommandFailed: it was interrupted.
    """
    stage = Stage(left)
    try:
        yield stage
    except KeyboardInterrupt:
        raise CommandFailed(f"interrupted: {stage.left}") from None
    except click.Abort:
        raise CommandFailed(stage.left) from None
