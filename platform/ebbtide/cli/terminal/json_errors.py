"""Errors as one JSON object on stderr, for a caller that gave ``--json``; made once, for all commands."""

import json
import re
from collections.abc import Sequence
from typing import Any

import click

from ebbtide.cli.terminal.errors import BadInput
from ebbtide.cli.terminal.output import JSON_WANTED
from ebbtide.config.errors import ConfigErrors

_COMMAND = re.compile(r"`(ebbtide [^`]+)`")
_CLASSES = {2: "bad_input", 1: "failed"}


def wants_json(ctx: click.Context, words: Sequence[str], error: Exception) -> bool:
    """Whether the user asked for JSON; also in words that could not be understood."""
    if ctx.find_root().meta.get(JSON_WANTED):
        return True
    if not isinstance(error, click.UsageError) or "--json" not in words:
        return False
    command = error.ctx.command if error.ctx is not None else _named(ctx, words)
    takes = [one for one in command.params if "--json" in one.opts]
    return not any(isinstance(one, click.Option) and not one.is_flag for one in takes)  # `simulate --json FILE`


def _named(ctx: click.Context, words: Sequence[str]) -> click.Command:
    """The command that the words begin with, as far as they name one."""
    command = ctx.command
    for word in words:
        if word.startswith("-") or not isinstance(command, click.Group):
            break
        command = command.get_command(ctx, word) or command
    return command


def exit_code_of(error: click.ClickException | ConfigErrors) -> int:
    """As without ``--json``."""
    return BadInput.exit_code if isinstance(error, ConfigErrors) else error.exit_code


def print_json_error(error: click.ClickException | ConfigErrors) -> None:
    """One line on stderr: the last one, after whatever was said on the way."""
    click.echo(json.dumps(as_json(error), ensure_ascii=False), err=True)


def as_json(error: click.ClickException | ConfigErrors) -> dict[str, Any]:
    """``error.class``: usage, config, bad_input or failed; ``remedy``: a command that helps, null if none is known."""
    found: dict[str, Any]
    if isinstance(error, ConfigErrors):
        first = error.problems[0]
        found = {
            "class": "config",
            "message": str(first) if len(error.problems) == 1 else f"{first}; and {len(error.problems) - 1} more",
            "remedy": first.hint,
            "problems": [problem.as_json() for problem in error.problems],
        }
    else:
        message = error.format_message()
        usage = error if isinstance(error, click.UsageError) else None
        told = _COMMAND.findall(message)
        help_ = f"{usage.ctx.command_path} --help" if usage is not None and usage.ctx is not None else None
        remedy = told[-1] if told else help_
        kind = "usage" if usage is not None else _CLASSES.get(error.exit_code, "failed")
        found = {"class": kind, "message": message, "remedy": remedy}
    return {"error": found, "exit_code": exit_code_of(error)}
