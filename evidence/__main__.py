"""``python -m evidence``: what is fresh, stale and missing; see ``make evidence``."""

import json
import subprocess
import sys

import click
from rich.console import Console

from evidence import carried, pages
from evidence.closure import NoSuchModule
from evidence.digest import behind, digest_of
from evidence.report import as_json, as_table, found_all
from evidence.results import RESULTS
from evidence.standing import Standing


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """What was measured, on which code, and what must be measured again."""
    if context.invoked_subcommand is None:
        context.invoke(show)


@main.command()
@click.argument("names", nargs=-1, type=click.Choice([one.name for one in RESULTS]))
@click.option("--list", "listing", is_flag=True, help="Name each case that is stale or missing.")
@click.option("--json", "json_", is_flag=True, help="For scripts: all cases by how they stand.")
def show(names: tuple[str, ...] = (), listing: bool = False, json_: bool = False) -> None:
    """What is fresh, stale and missing, per result, and how long the rest would take."""
    all_found = found_all(names)
    if json_:
        click.echo(json.dumps(as_json(all_found), indent=1))
        return
    Console().print(as_table(all_found))
    for one in all_found if listing else ():
        for row in (*one.those(Standing.STALE), *one.those(Standing.MISSING)):
            of = f" (of {row.stamp.commit}, {row.stamp.date})" if row.stamp else ""
            click.echo(f"{one.result.name}: {row.standing.value}: {row.case.name}{of}")


@main.command()
@click.argument("before")
@click.option("--after", default="HEAD", show_default=True)
@click.option("--why", required=True, help="What the commits between them did.")
@click.option("--proof", required=True, help="How it was shown that nothing else changed.")
def carry(before: str, after: str, why: str, proof: str) -> None:
    """State that the code of AFTER does what that of BEFORE did, so that rows of BEFORE stay fresh."""
    kinds = [case.processes for one in RESULTS for case in one.cases()]
    try:
        earlier, later = (_git("rev-parse", "--short=12", f"{commit}^{{commit}}") for commit in (before, after))
        statement = carried.state(earlier, later, why, proof, kinds)
    except subprocess.CalledProcessError as error:
        raise click.ClickException(str(error.stderr or error)) from error
    carried.record(statement)
    click.echo(f"{len(statement.digests)} digests are carried over; commit evidence/{carried.PATH.name}")


@main.command(name="pages")
def pages_() -> None:
    """Make the page of Markdown beside each result anew."""
    for path in pages.write():
        click.echo(path.relative_to(carried.ROOT))


@main.command(hidden=True)
def digests() -> None:
    """Of the sets of processes that stdin has as JSON; "" where one is not known."""
    found = []
    for kinds in json.load(sys.stdin):
        try:
            found.append(digest_of(kinds))
        except NoSuchModule:
            found.append("")
    click.echo(json.dumps(found))


@main.command(name="behind")
@click.argument("processes", nargs=-1, required=True)
def behind_(processes: tuple[str, ...]) -> None:
    """The modules behind kinds of processes, one on each line."""
    click.echo("\n".join(behind(processes)))


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=carried.ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
