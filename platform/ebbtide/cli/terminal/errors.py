"""How a command ends when it does not end well.

::

    click.ClickException
    ├── BadInput        exit 2: the user's file or argument is wrong, and nothing was changed
    ├── CommandFailed   exit 1: the input is right, and it could not be done
    └── click.UsageError (click's own)  exit 2

All are printed on stderr without a traceback; a traceback on the terminal is always a bug of ours.
"""

import click


class BadInput(click.ClickException):
    """The user's input is wrong; nothing was changed."""

    exit_code = 2


class CommandFailed(click.ClickException):
    """What was asked for could not be done."""

    exit_code = 1
