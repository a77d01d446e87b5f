"""``ebbtide plan``: what a changed file would do, or what is about to happen."""

import re
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.cli.terminal.output import json_option, print_json, print_table
from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide_autoscaler.commands.pool import pending_changes, read_pool_file, show
from ebbtide_autoscaler.commands.target_pool import POOL, join_pool, say
from ebbtide_autoscaler.lifecycle.config_diff import conflicts
from ebbtide_autoscaler.lifecycle.pool_presence import look_for

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
AHEAD_MAX_S = 86_400.0  # the forecast looks four hours ahead, and what is beyond is as there


def _until_s(hour: int, minute: int) -> float:
    """Seconds until clocks here show that next; they may be set meanwhile, and show some times twice or not at all."""
    now_s = time.time()
    today = datetime.fromtimestamp(now_s).replace(hour=hour, minute=minute, second=0, microsecond=0)
    times = [(today + timedelta(days=days)).replace(fold=fold) for days in (0, 1, 2) for fold in (0, 1)]
    shown = [at.timestamp() for at in times if datetime.fromtimestamp(at.timestamp()) == at]
    return min(at_s for at_s in shown if at_s > now_s) - now_s


class _When(click.ParamType[float]):
    name = "WHEN"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds from now."""
        ahead = re.fullmatch(r"\+(\d+(?:\.\d+)?)([smh])", str(value))
        if ahead:
            found = float(ahead[1]) * UNITS[ahead[2]]
            if found > AHEAD_MAX_S:
                self.fail("at most a day ahead: what is expected beyond that is only what was there before", param, ctx)
        elif re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", str(value)):
            found = _until_s(int(value[:2]), int(value[3:]))
        else:
            self.fail(f"{value!r} is no time: write +30m, +2h, or a time of day such as 18:00", param, ctx)
        return found


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--at", "ahead_s", type=_When(), help="What is about to happen by then: +30m, +2h, 18:00.")
@POOL
@json_option
def plan(file: Path | None, ahead_s: float | None, pool: str | None, as_json: bool) -> None:
    """Show what `ebbtide up FILE` would change and restart, or what demand will bring about; change nothing."""
    if (file is None) == (ahead_s is None):
        raise BadInput("give a FILE to see what `ebbtide up` would change, or --at to see what is about to happen")
    if ahead_s is not None:
        _foresee(pool, ahead_s, as_json)
    elif file is not None:
        _compare(file, as_json)


def _foresee(pool: str | None, ahead_s: float, as_json: bool) -> None:
    join_pool(pool)
    found = ArbiterLink().call("foresee", time.time() + ahead_s, timeout_s=5.0)
    if found is None:
        raise CommandFailed("the arbiter does not answer; it may be starting again")
    if as_json:
        print_json(found)
        return
    at = datetime.fromtimestamp(found["at_s"]).strftime("%H:%M:%S")
    print_table(
        ("endpoint", "asked now", "then", "more in 5 %", "off by", "replicas", "then", "slots"),
        [_row(one) for one in found["endpoints"]],
        title=f"expected at {at}, requests at once",
        optional=["off by", "more in 5 %"],
    )
    for line in filter(None, map(_unheard, found["endpoints"])):
        click.echo(line)
    heard = any(one["known"] for one in found["endpoints"])
    if heard and all(one["most"] is None for one in found["endpoints"]):
        click.echo("nothing is expected yet: it takes two hours of traffic; demand is taken to stay as it is")
    for move in found["moves"]:
        who = move.get("seat") or move.get("job")
        click.echo(f"{move['kind'].replace('_', ' ')} {who}: {move['reason']}")
    if not found["moves"]:
        click.echo("nothing would move")


def _unheard(one: dict[str, Any]) -> str:
    """What is not known of an endpoint's demand; empty: all of it is."""
    if not one["known"]:
        return f"{one['endpoint']}: its demand is not known, for its gateways are silent; it keeps its replicas"
    if one["unheard_s"]:
        silent = f"a gateway has been silent for {one['unheard_s']:.0f} s, its part is not in these numbers"
        return f"{one['endpoint']}: {silent}; nothing is taken away"
    return ""


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    unknown = "-"
    return (
        one["endpoint"],
        unknown if one["now"] is None else f"{one['now']:g}",
        unknown if one["then"] is None else f"{one['then']:g}",
        unknown if one["most"] is None else f"{one['most']:g}",
        unknown if one["error"] is None else f"{one['error']:.0%}",
        str(one["replicas"]),
        str(one["replicas_then"]),
        f"{one['slots']:+d}" if one["slots"] else "0",
    )


def _compare(file: Path, as_json: bool) -> None:
    from ebbtide_autoscaler.lifecycle.up import UpRefused, look_at_machine  # noqa: PLC0415 - Ray comes with it

    config = read_pool_file(file)
    standing = look_for(config.pool.name)
    found = pending_changes(config, standing)
    starts_here = standing.state in ("none", "gone") and config.pool.ray_address is None
    try:
        size = look_at_machine(config) if starts_here else ""
    except UpRefused as error:
        raise BadInput(f"on this machine `ebbtide up {file}` would be refused: {error}") from error
    if as_json:
        print_json({"pool": config.pool.name, "changes": [change.as_json() for change in found]})
    else:
        show(found)
    if size:
        say(size)
    if standing.state in ("gone", "silent", "vacant"):
        say(f"{standing.why}; so this is compared with nothing")
    if conflicts(found):
        raise BadInput("what is marked ! cannot change while the pool runs; `ebbtide down` first, or name another pool")
