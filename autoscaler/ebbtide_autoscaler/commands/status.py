"""``ebbtide status``: the pool at a glance, once or live; from the ledger alone when the arbiter does not answer."""

from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from ebbtide.cli.terminal.output import console, json_option, print_json, print_json_line
from ebbtide_autoscaler.commands.status_source import age_words, glance, look
from ebbtide_autoscaler.commands.status_tables import render
from ebbtide_autoscaler.commands.status_watch import keep_on_screen
from ebbtide_autoscaler.commands.target_pool import POOL, the_pool


@click.command()
@click.option("--watch", is_flag=True, help="Keep the table on the screen, twice a second, until Ctrl-C.")
@click.option("--all", "everything", is_flag=True, help="Also the jobs that ended over ten minutes ago.")
@POOL
@json_option
def status(pool: str | None, watch: bool, everything: bool, as_json: bool) -> None:
    """Show who holds each slot, how each endpoint and job does, and what they wait for."""
    record = the_pool(pool)

    def screen(found: dict[str, Any]) -> RenderableType:
        tables, age = render(found, everything=everything), age_words(found)
        return Group(tables, Text(f"\n{age}", style="dim")) if age else tables

    if watch:
        # First what lies on this machine, however old: until the arbiter answers, Ray is imported and joined.
        left = glance(record)
        asking = Text(f"pool {record.pool}: its arbiter is asked, at {record.address}")
        keep_on_screen(
            lambda: look(record),
            print_json_line if as_json else None,
            screen,
            first=asking if left is None else screen(left),
        )
    elif as_json:
        print_json(look(record))
    else:
        console().print(screen(look(record)))
