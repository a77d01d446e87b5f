"""``python -m ebbtide_train.run FILE [--job NAME]``: one job of a file, as a driver.

``ebbtide submit`` starts it inside a Ray job; by hand it runs in the foreground. Exit 0 = the job finished, 1 = it
failed or was cancelled, 2 = the file or the job is wrong and nothing was submitted.
"""

import sys
from pathlib import Path

import click
from ray.train import TrainingFailedError

from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.cli.terminal.output import print_problems
from ebbtide.config.checks.entrypoint import entrypoint_fault
from ebbtide.config.errors import ConfigErrors
from ebbtide.config.loading.pool_file_loader import load
from ebbtide_train.errors import JobLost, NoArbiter, PoolProblem
from ebbtide_train.pool_trainer import PoolTrainer
from ebbtide_train.session.errors import Cancelled
from ebbtide_train.submission.job_selection import pick


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--job", "name", default=None, help="Which job of the file; needed if there are several.")
@click.option(
    "--working-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Instead of the job's working_dir.",
)
@click.option("--fresh", is_flag=True, help="Begin at step 0; what one of its name has saved is kept aside.")
def main(file: Path, name: str | None, working_dir: Path | None, fresh: bool) -> None:
    """Run one job of FILE on the pool, in the foreground."""
    try:
        section = pick(load(file), name)
    except ConfigErrors as error:
        print_problems(error.problems)
        sys.exit(BadInput.exit_code)
    if working_dir is not None:
        section = section.model_copy(update={"working_dir": working_dir.absolute()})
    fault = entrypoint_fault(section.entrypoint, working_dir=section.working_dir)
    if fault is not None:
        raise BadInput(f"job {section.name}: {fault[0]}{f'; {fault[1]}' if fault[1] else ''}")
    try:
        PoolTrainer(None, job=section, fresh=fresh).fit()
    except NoArbiter as error:
        raise CommandFailed(str(error)) from error
    except PoolProblem as error:
        raise BadInput(str(error)) from error
    except JobLost as error:
        raise CommandFailed(str(error)) from error
    except (Cancelled, TrainingFailedError):  # the last line that was printed says why
        sys.exit(CommandFailed.exit_code)


if __name__ == "__main__":
    main(prog_name="python -m ebbtide_train.run")
