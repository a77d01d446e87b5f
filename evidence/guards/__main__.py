"""``python -m evidence.guards``: match guards with tests, take them out, write the page; see ``make guards``."""

import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

from evidence.again import in_turn
from evidence.guards import trial
from evidence.guards.check import complaints
from evidence.guards.comments import Guard, guards_of
from evidence.guards.mutations import mutations
from evidence.guards.page import PAGE, page
from evidence.guards.proofs import proofs_of
from evidence.guards.record import Tried, as_row, proven, save
from evidence.guards.trial import Outcome, Verdict
from evidence.result_file import load
from evidence.results import module_of
from evidence.stamps import Begun

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
@click.option("--minutes", type=float, default=None, help="So long, guards that are missing or stale in --out's file.")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Where the result goes, guard by guard.")
@click.option("-v", "--verbose", is_flag=True, help="Also what pytest printed where a guard was not missed.")
def run(only: str, minutes: float | None, out: Path | None, verbose: bool) -> None:
    """Take guards out one by one; exit code 1 if a test does not notice one."""
    tests: dict[str, list[str]] = {}
    for proof in proofs_of(ROOT):
        tests.setdefault(proof.guard, []).append(proof.test)
    guards = {guard.name: guard for guard in guards_of(ROOT)}
    chosen = [name for name, one in guards.items() if (only in one.file or only in name) and name in tests]
    old = json.loads(out.read_text()) if out is not None and out.exists() else {}
    trial.load_libraries(ROOT)
    missed: list[str] = []
    for name in in_turn("guards", old, chosen, minutes, tell=lambda _: None):
        guard, begun = guards[name], Begun.now((module_of(guards[name].file),))
        row = as_row(guard, _tried(guard, tests[name], verbose=verbose))
        missed += [name] * (not proven(row))
        if out is not None:
            save(row, begun.ended(), guards, out)
    for name in missed:
        click.echo(f"not noticed: {name}")
    sys.exit(bool(missed))


@main.command(name="page")
@click.option("--check", is_flag=True, help="Write nothing; exit code 1 if the page is not of the present guards.")
def page_(check: bool) -> None:
    """Write docs/guards.md."""
    text = page(guards_of(ROOT), proofs_of(ROOT), load("guards"))
    path = ROOT / PAGE
    if not check:
        path.write_text(text)
    elif not path.exists() or path.read_text() != text:
        click.echo(f"{PAGE} is not of the present guards: python -m evidence.guards page writes it")
        sys.exit(1)


def _tried(guard: Guard, tests: list[str], *, verbose: bool) -> Iterator[Tried]:
    """Each test first as the product is, where it must pass, then without the guard, in each way."""
    source = (ROOT / guard.file).read_text()
    for test in tests:
        if _passes(test):
            for mutation in mutations(source, guard.line):
                with trial.product_with(ROOT, {guard.file: mutation.source}) as product:
                    yield _told(guard, mutation.how, test, trial.run(product, ROOT, [test]), verbose=verbose)
        else:
            yield Tried("as it is", test, Verdict.BROKEN, 0.0)
            click.echo(f"fails as the product is: {test}")


@cache
def _passes(test: str) -> bool:
    with trial.product_with(ROOT, {}) as product:
        return trial.run(product, ROOT, [test]).verdict is Verdict.PASSED


def _told(guard: Guard, how: str, test: str, outcome: Outcome, *, verbose: bool) -> Tried:
    said = f"{outcome.verdict.value:8}{outcome.seconds:5.1f} s  {how:18} {guard.name}"
    click.echo(f"{said}  ({guard.file}:{guard.line}, {test})")
    if verbose and not outcome.verdict.proves:
        click.echo(outcome.printed)
    return Tried(how, test, outcome.verdict, outcome.seconds)


if __name__ == "__main__":
    main()
