"""``ebbtide validate``: every problem of a file at once."""

import os
from pathlib import Path

import click

from ebbtide.cli.terminal.errors import BadInput
from ebbtide.cli.terminal.output import json_option, print_json, print_problems, warn
from ebbtide.config.checks.hub_models import hub_models
from ebbtide.config.checks.machine_checks import world_problems
from ebbtide.config.checks.room_checks import Look, room_problems
from ebbtide.config.errors import ConfigErrors, ConfigProblem, ordered
from ebbtide.config.loading.pool_file_loader import LoadedFile, load_file


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--offline", is_flag=True, help="Look at the file alone: no models, entrypoints, secrets or directories.")
@json_option
@click.pass_context
def validate(ctx: click.Context, *, file: Path, offline: bool, as_json: bool) -> None:
    """Check FILE and everything it names; change nothing.

    Engine arguments are checked against the vLLM that is installed here; with --offline, and where none is, against the
    version that ebbtide installs by default.

    Prints each problem as file:line:column. Exit code 2 when there is one.
    """
    try:
        loaded = load_file(file)
        found = [] if offline else [*world_problems(loaded, environ=os.environ), *_absent_models(loaded)]
        problems = ordered([*found, *room_problems(loaded, Look(offline=offline, note=warn))])
    except ConfigErrors as error:
        problems = error.problems
    if as_json:
        print_json({"file": str(file), "valid": not problems, "problems": [problem.as_json() for problem in problems]})
    elif problems:
        print_problems(problems)
    else:
        click.echo(f"{file}: valid{' (the file alone)' if offline else ''}")
    if problems:
        ctx.exit(BadInput.exit_code)


def _absent_models(loaded: LoadedFile) -> list[ConfigProblem]:
    if next(hub_models(loaded), None) is None:
        return []
    # The store takes 0.3 s to import, and most files name no model of a hub.
    from ebbtide.cli.commands.hub_imports import missing_problems  # noqa: PLC0415

    return missing_problems(loaded)
