"""``python -m evidence.guards``: match guards with tests, take them out, write the page; see ``make guards``."""

import sys
from pathlib import Path

import click

from evidence.guards import trial
from evidence.guards.check import complaints
from evidence.guards.comments import Guard, guards_of
from evidence.guards.mutations import mutations
from evidence.guards.proofs import proofs_of

ROOT = Path(__file__).parents[2]


@click.group()
def main() -> None:
    """Guards of the promises and the tests that miss them."""


@main.command()
@click.option("--only", default="", help="Guards of files, or with names, that have this in them.")
def check(only: str) -> None:
    """Say what does not match between guards and tests; exit code 1 if anything does not."""
    found = [line for line in complaints(ROOT) if only in line]
    for line in found:
        click.echo(line)
    if not found:
        click.echo(f"{len(guards_of(ROOT))} guards, each with a test")
    sys.exit(bool(found))


@main.command()
@click.option("--only", default="", help="Guards of files, or with names, that have this in them.")
@click.option("-v", "--verbose", is_flag=True, help="Also what pytest printed where a guard was not missed.")
def run(only: str, verbose: bool) -> None:
    """Take guards out one by one; exit code 1 if a test does not miss one."""
    tests: dict[str, list[str]] = {}
    for proof in proofs_of(ROOT):
        tests.setdefault(proof.guard, []).append(proof.test)
    trial.load_libraries()
    bad = 0
    for guard in guards_of(ROOT):
        if (only in guard.file or only in guard.name) and guard.name in tests:
            bad += not _tried(guard, tests[guard.name], verbose=verbose)
    sys.exit(bool(bad))


def _tried(guard: Guard, tests: list[str], *, verbose: bool) -> bool:
    source = (ROOT / guard.file).read_text()
    good = True
    for mutation in mutations(source, guard.line):
        with trial.product_with(ROOT, {guard.file: mutation.source}) as product:
            for test in tests:
                outcome = trial.run(product, ROOT, [test])
                good = good and outcome.verdict.proves
                said = f"{outcome.verdict.value:8}{outcome.seconds:5.1f} s  {mutation.how:18} {guard.name}"
                click.echo(f"{said}  ({guard.file}:{guard.line}, {test})")
                if verbose and not outcome.verdict.proves:
                    click.echo(outcome.printed)
    return good


if __name__ == "__main__":
    main()
