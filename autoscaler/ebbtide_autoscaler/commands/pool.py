"""``ebbtide up | down | env``.

`lifecycle` is imported when it has something to do: Ray comes with it, and help and completion would wait for that.
"""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.cli.terminal.interruption import interruptible
from ebbtide.cli.terminal.output import json_option, print_json
from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.cluster_join import ClusterUnreachable
from ebbtide.client.cluster_record import ClusterRecord, NoPool, RecordUnreadable, home, load_cluster
from ebbtide.config.checks.hub_models import hub_models, with_hub_models
from ebbtide.config.checks.machine_checks import model_fault, world_problems
from ebbtide.config.checks.room_checks import Look, room_problems
from ebbtide.config.errors import ConfigErrors
from ebbtide.config.loading.pool_file_loader import load_file
from ebbtide.config.pool_file import PoolFile
from ebbtide.config.sections.scalars import is_stored_model
from ebbtide.system.direct_addresses import without_proxy
from ebbtide.system.interrupts import terminated_is_interrupted
from ebbtide_autoscaler.cluster.local_cluster import RayStartFailed, end_strangers, unrecorded
from ebbtide_autoscaler.commands.calls import tell, user
from ebbtide_autoscaler.commands.settle import settle
from ebbtide_autoscaler.commands.target_pool import POOL, join_pool, say, the_pool
from ebbtide_autoscaler.lifecycle.config_diff import Change, changes, conflicts
from ebbtide_autoscaler.lifecycle.jobs_leaving import how_to_go_on
from ebbtide_autoscaler.lifecycle.pool_lock import Busy, alone
from ebbtide_autoscaler.lifecycle.pool_presence import PoolPresence, look_for
from ebbtide_autoscaler.lifecycle.rollout import failures_before

COLOURS = {"+": "green", "-": "red", "!": "red"}


def read_pool_file(file: Path, *, import_models: bool = False, quiet: bool = False) -> PoolFile:
    """A pool's file that is sound here.

    Args:
        file: where it is.
        import_models: bring in models of the hub that the pool's store does not have.
        quiet: no lines about that.

    Raises:
        BadInput: it is not, or describes no pool.
    """
    from ebbtide_autoscaler.lifecycle import up as bring_up  # noqa: PLC0415 - see the first lines of this module

    loaded = load_file(file)
    problems = world_problems(loaded, environ=os.environ, starting=True)
    problems += room_problems(loaded, Look(starting=True, note=say))
    if problems:
        raise ConfigErrors(problems)
    if loaded.config.is_submission:
        raise BadInput(f"{file} describes no pool (it has no pool.shared_dir): submit it to one with `ebbtide submit`")
    if next(hub_models(loaded), None) is not None:
        from ebbtide.cli.commands.hub_imports import bring_in, missing_problems  # noqa: PLC0415 - the store comes with it

        if import_models:
            bring_in(loaded, quiet=quiet)
            if problems := room_problems(loaded, Look(starting=True, note=lambda line: None)):  # of models that came
                raise ConfigErrors(problems)
        elif absent := missing_problems(loaded):
            raise ConfigErrors(absent)
    return bring_up.with_digests(with_hub_models(loaded).config, os.environ)


def pending_changes(config: PoolFile, standing: PoolPresence) -> tuple[Change, ...]:
    """What it changes in the pool, if that is up."""
    from ebbtide_autoscaler.lifecycle import up as bring_up  # noqa: PLC0415

    before = bring_up.in_force() if standing.state == "up" else None
    return changes(before, bring_up.as_json(config))


def show(found: Sequence[Change]) -> None:
    """A line for each change, with what it does."""
    if not found:
        click.echo("nothing to change")
    for change in found:
        click.secho(str(change), fg=COLOURS.get(change.what, "yellow"), nl=False)
        click.echo(f"  ({change.effect})")


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--rollback", is_flag=True, help="Put the file that was in force before the present one back, not FILE.")
@click.option("--yes", is_flag=True, help="Do not ask before a rollback.")
@click.option("--no-wait", is_flag=True, help="Do not wait until endpoints run what the file says.")
@click.option("--import", "import_", is_flag=True, help="First import models of the Hugging Face hub that FILE names.")
@POOL
@json_option
def up(
    file: Path | None, rollback: bool, yes: bool, no_wait: bool, import_: bool, pool: str | None, as_json: bool
) -> None:
    """Bring the pool of FILE up, or make a running one agree with it.

    Starts a Ray cluster on this machine unless the file names one to join. In a running pool only what changed
    restarts; `ebbtide plan FILE` shows it beforehand. Waits until endpoints that changed or always have a replica
    run what the file says, and ends with 1 when one of them has failed to start twice. After the loss of the whole
    cluster it starts a new one, and endpoints and jobs come back from the shared directory.
    """
    from ebbtide_autoscaler.lifecycle import up as bring_up  # noqa: PLC0415

    if rollback == (file is not None):
        raise BadInput("give either a FILE or --rollback")
    with interruptible("nothing was changed") as stage, terminated_is_interrupted():
        given = None if file is None else read_pool_file(file, import_models=import_, quiet=as_json)
        with _alone(the_pool(pool).pool if given is None else given.pool.name):
            if given is None or file is None:
                record = join_pool(pool)
                config, standing = _before(record), PoolPresence("up", record)
                path = Path(record.config_file)
            else:
                config, path = given, file.resolve()
                standing = look_for(config.pool.name)
            found = pending_changes(config, standing)
            _refuse(conflicts(found))
            if rollback:
                _ask(found, yes=yes, as_json=as_json)
            before = failures_before(config, ArbiterLink().call("status") or {}) if standing.state == "up" else {}
            stage.left = _left(standing, path)
            record = bring_up.up(config, path, standing, say=say)
        stage.left = "the pool is up with this file, and goes on by itself; see `ebbtide status`"
        left = {} if no_wait else settle(config, before, had_another_file=_has_another(), say=say)
    if as_json:
        print_json(
            {
                "pool": record.pool,
                "gateway": record.gateway_url,
                "address": record.address,
                "changes": [change.as_json() for change in found],
                "unsettled": left,
            }
        )
        return
    click.echo(f"pool {record.pool} is up: {record.gateway_url}/v1")
    if standing.state != "up":
        click.echo('Next: ebbtide status; and for plain Ray tools in this shell: eval "$(ebbtide env)"')


def _left(standing: PoolPresence, file: Path) -> str:
    """What an `up` that is interrupted leaves."""
    if standing.state in ("up", "vacant"):
        return f"what ran before goes on, with the old file or with this one; `ebbtide up {file}` again finishes it"
    return "the pool is not up, and nothing that was started is left running"


@contextmanager
def _alone(pool: str) -> Iterator[None]:
    """No other `up` or `down` of this pool meanwhile; what fails in here is an error of the command."""
    from ebbtide_autoscaler.lifecycle.up import UpFailed  # noqa: PLC0415

    try:
        with terminated_is_interrupted(), alone(pool):
            yield
    except (ValueError, ClusterUnreachable, NoPool) as error:
        raise BadInput(str(error)) from error
    except (UpFailed, RayStartFailed, Busy, OSError) as error:
        raise CommandFailed(str(error)) from error


def _refuse(bad: Sequence[Change]) -> None:
    if bad:
        raise BadInput(
            "the pool runs already and cannot take: "
            + "; ".join(str(change) for change in bad)
            + ". `ebbtide down` first, or name another pool"
        )


def _before(record: ClusterRecord) -> PoolFile:
    """The file that was in force before the present one."""
    kept = ArbiterLink().call("configs", timeout_s=10.0)
    if kept is None:
        raise CommandFailed("the arbiter does not answer: nothing was changed; see `ebbtide status`")
    if len(kept) < 2:
        raise BadInput(f"the pool {record.pool} has had no other file in force: there is nothing to go back to")
    config = PoolFile.model_validate_json(kept[-2])
    for endpoint in config.endpoints:
        elsewhere = endpoint.engine_class is not None or is_stored_model(endpoint.model)
        fault = None if elsewhere else model_fault(endpoint.model)
        if fault:
            raise BadInput(f"endpoint {endpoint.name} of the file before cannot be served any more: {fault}")
    return config


def _has_another() -> bool:
    """Whether another file was in force before."""
    return len(ArbiterLink().call("configs", timeout_s=10.0) or ()) > 1


def _ask(found: Sequence[Change], *, yes: bool, as_json: bool) -> None:
    if not as_json:
        show(found)
    if yes or not found:
        return
    if as_json or not sys.stdin.isatty():
        raise BadInput("a rollback asks first; give --yes where nobody can answer")
    click.confirm("Put this into force?", abort=True)


@click.command()
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="How long jobs have to step aside; by default their own `grace_s`, and 30 s more.",
)
@click.option("--now", is_flag=True, help="Do not let jobs step aside: they repeat what is not in a checkpoint.")
@POOL
@json_option
def down(grace_s: float | None, now: bool, pool: str | None, as_json: bool) -> None:
    """Take the pool down: jobs, gateway, replicas, fences, and the Ray cluster if `up` started it.

    Jobs first publish their checkpoint at their next safe point, sessions become images: after the next `ebbtide up`
    they go on from there. Ctrl-C while this waits for them leaves the pool up. What is on the shared directory stays:
    ledger, checkpoints, models. A pool that is down already stays so.
    """
    from ebbtide_autoscaler.lifecycle import down as take_down  # noqa: PLC0415
    from ebbtide_autoscaler.lifecycle.job_drain import StillUp, drain_jobs  # noqa: PLC0415

    if now and grace_s is not None:
        raise BadInput("give either --grace or --now")

    try:
        record = load_cluster(pool)
    except NoPool as error:
        name = _down_already(pool, error)
        which = f"pool {name} is" if name else "no pool is on record here: all are"
        tell(as_json, {"pool": name, "down": True, "already": True}, f"{which} down already")
        return

    def drain() -> Iterator[str]:
        try:
            jobs = {} if now else drain_jobs(ArbiterLink(), by=user(), grace_s=grace_s, say=say)
        except StillUp as error:
            raise CommandFailed(str(error)) from error
        stage.left = "the pool is half down; `ebbtide down` again ends the rest"
        return how_to_go_on(jobs, record.config_file)

    with interruptible("nothing was changed") as stage, _alone(record.pool):
        take_down.down(record, say=say, drain=drain)
    tell(as_json, {"pool": record.pool, "down": True, "already": False}, "down")


def _down_already(pool: str | None, why: NoPool) -> str | None:
    """Nothing is on record; what an `up` left that was killed before it wrote a record is ended.

    Raises:
        BadInput: there has been no pool of that name here, or its record cannot be read.
    """
    try:
        left = unrecorded(pool)
    except NoPool as error:  # there is no home directory
        raise BadInput(str(error)) from error
    for name in left:
        with _alone(name):
            say(f"pool {name}: ended {end_strangers(name)} processes of an `ebbtide up` that did not come to its end")
    if isinstance(why, RecordUnreadable) or (pool and not left and not (home() / pool).exists()):
        raise BadInput(str(why)) from why
    return pool or (left[0] if len(left) == 1 else None)


@click.command()
@POOL
@json_option
def env(pool: str | None, as_json: bool) -> None:
    """Print the variables by which plain Ray tools find the pool: eval "$(ebbtide env)"."""
    record = the_pool(pool)
    ours = without_proxy(os.environ, (record.address, record.dashboard_url, record.gateway_url))
    found = {**record.env, "EBBTIDE_GATEWAY_URL": record.gateway_url, **ours}
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        click.echo(f"export {name}={shlex.quote(value)}")
    if sys.stdout.isatty():
        click.echo('run: eval "$(ebbtide env)"', err=True)
