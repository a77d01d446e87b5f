"""A command that watches what it has handed to the pool, and is ended: what it watched goes on, and that is said."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from ebbtide.system.interrupts import Terminated, terminated_is_interrupted

SIGNALLED = 128  # a shell's exit code for a process that a signal ended is this and the signal's number


class WatchEnded(Exception):
    """The watching was ended; ``exit_code`` is how the command ends."""

    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.exit_code = exit_code


@contextmanager
def watching(what: str, name: str) -> Iterator[None]:
    """Ctrl-C in here is how a person ends the watching, with 0; SIGTERM and SIGHUP end the command as they do others.

    Args:
        what: is watched, for people.
        name: of it in the pool.

    Raises:
        WatchEnded: it was said that it goes on.
    """
    try:
        with terminated_is_interrupted():
            yield
    except KeyboardInterrupt as interrupted:
        line = f"{what} goes on in the pool: `ebbtide logs {name} --follow` follows it, `ebbtide cancel {name}` ends it"
        click.echo(line, err=True)
        raise WatchEnded(SIGNALLED + interrupted.number if isinstance(interrupted, Terminated) else 0) from None
