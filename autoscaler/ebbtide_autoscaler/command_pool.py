"""``ebbtide up | plan | down | cancel | env``."""

import os
import shlex
import sys
from pathlib import Path

import click

from ebbtide.cli.errors import BadInput, CommandFailed
from ebbtide.cli.output import json_option, print_json
from ebbtide.client.cluster import ClusterRecord, NoPool, load_cluster
from ebbtide.client.join import ClusterUnreachable, join
from ebbtide.client.link import ArbiterLink
from ebbtide.config.check import check
from ebbtide.config.load import load_file
from ebbtide.config.root import PoolFile
from ebbtide_autoscaler import bring_up
from ebbtide_autoscaler.changes import Change, changes, conflicts
from ebbtide_autoscaler.local_ray import RayStartFailed

FILE = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
POOL = click.option("--pool", default=None, help="Name of the pool; default: the one brought up last.")


def the_pool(name: str | None) -> ClusterRecord:
    """The record of a running pool.

    Raises:
        BadInput: there is none.
    """
    try:
        return load_cluster(name)
    except NoPool as error:
        raise BadInput(str(error)) from error


def joined(name: str | None) -> ClusterRecord:
    """The same, and this process has joined its cluster.

    Raises:
        ClickException: nobody answers there.
    """
    record = the_pool(name)
    try:
        join(record)
    except ClusterUnreachable as error:
        raise CommandFailed(str(error)) from error
    return record


def _checked(file: Path) -> PoolFile:
    loaded = load_file(file)
    check(loaded, environ=os.environ, starting=True)
    if loaded.config.is_submission:
        raise BadInput(f"{file} describes no pool (it has no pool.shared_dir): submit it to one with `ebbtide submit`")
    return bring_up.with_digests(loaded.config, os.environ)


def _changes(config: PoolFile) -> tuple[Change, ...]:
    before = bring_up.in_force() if bring_up.running(config.pool.name) is not None else None
    return changes(before, bring_up.as_json(config))


@click.command()
@FILE
@json_option
def plan(file: Path, as_json: bool) -> None:
    """Show what `ebbtide up FILE` would change; change nothing."""
    found = _changes(_checked(file))
    if as_json:
        print_json([{"what": c.what, "path": c.path, "before": c.before, "after": c.after} for c in found])
    elif not found:
        click.echo("nothing to change")
    for change in () if as_json else found:
        colour = {"+": "green", "-": "red", "!": "red"}.get(change.what, "yellow")
        click.secho(str(change), fg=colour)
    if conflicts(found):
        raise BadInput("what is marked ! cannot change while the pool runs; `ebbtide down` first, or name another pool")


@click.command()
@FILE
@json_option
def up(file: Path, as_json: bool) -> None:
    """Bring the pool of FILE up, or make a running one agree with it.

    Starts a Ray cluster on this machine unless the file names one to join.
    """
    config = _checked(file)
    found = _changes(config)
    bad = conflicts(found)
    if bad:
        raise BadInput(
            "the pool runs already and cannot take: "
            + "; ".join(str(change) for change in bad)
            + ". `ebbtide down` first, or name another pool"
        )
    try:
        record = bring_up.up(config, file.resolve(), say=lambda line: click.echo(line, err=True))
    except (ValueError, ClusterUnreachable) as error:
        raise BadInput(str(error)) from error
    except (bring_up.UpFailed, RayStartFailed) as error:
        raise CommandFailed(str(error)) from error
    if as_json:
        print_json({"pool": record.pool, "gateway": record.gateway_url, "address": record.address})
        return
    click.echo(f"pool {record.pool} is up: {record.gateway_url}/v1")
    click.echo('Next: ebbtide status; and for plain Ray tools in this shell: eval "$(ebbtide env)"')


@click.command()
@POOL
def down(pool: str | None) -> None:
    """Take the pool down: gateway, replicas, fences, and the Ray cluster if `up` started it.

    What is on the shared directory stays: ledger, checkpoints, models.
    """
    bring_up.down(the_pool(pool), say=lambda line: click.echo(line, err=True))
    click.echo("down")


@click.command()
@click.argument("job")
@POOL
def cancel(job: str, pool: str | None) -> None:
    """End JOB for good at its next safe point; its last checkpoint stays."""
    joined(pool)
    try:
        ArbiterLink().call("cancel_job", job, f"cancelled by {os.environ.get('USER', 'a user')}")
    except ValueError as error:
        raise BadInput(str(error)) from error
    click.echo(f"job {job} will end at its next safe point")


@click.command()
@POOL
def env(pool: str | None) -> None:
    """Print the variables by which plain Ray tools find the pool: eval "$(ebbtide env)"."""
    record = the_pool(pool)
    for name, value in {**record.env, "EBBTIDE_GATEWAY_URL": record.gateway_url}.items():
        click.echo(f"export {name}={shlex.quote(value)}")
    if sys.stdout.isatty():
        click.echo('run: eval "$(ebbtide env)"', err=True)
