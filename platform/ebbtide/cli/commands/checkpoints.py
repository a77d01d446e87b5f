"""``ebbtide checkpoints``: what a job has committed, whether it is whole, and a copy of it for other tools.

What reads checkpoints is imported when it has something to do: torch comes with it, which takes two seconds to import,
and help and completion would wait for that.
"""

import getpass
import re
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.filesize import decimal

from ebbtide.cli.commands.model_store import FirstUse, StoreOptions, as_command_error, store_options
from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.cli.terminal.output import json_option, print_json, print_table
from ebbtide.cli.terminal.transfer_bar import TransferBar
from ebbtide.ledger.errors import LedgerUnusable
from ebbtide.ledger.reader import identity, survey
from ebbtide.storage.bandwidth.rate_scheduler import TrafficClass
from ebbtide.storage.checkpoints.run_directory.run_paths import DECISIONS, CheckpointId, RunPaths, run_paths
from ebbtide.storage.checkpoints.run_directory.run_ports import TrainingPorts, run_leases
from ebbtide.storage.checkpoints.run_directory.run_survey import newest_of
from ebbtide.storage.leases.object_leases import this_process
from ebbtide.storage.objects.store_limits import limits_of
from ebbtide.system.interrupts import terminated_is_interrupted

if TYPE_CHECKING:
    from ebbtide.storage.checkpoints.manager.checkpoint_manager import Listed, RunCheckpoints


@click.group()
def checkpoints() -> None:
    """The committed states of training jobs."""


@checkpoints.command("list")
@click.argument("job")
@store_options
@json_option
def list_(*, job: str, where: StoreOptions, as_json: bool) -> None:
    """Show what JOB has committed, the newest first; the first that counts is where it goes on."""
    with as_command_error():
        found = _checkpoints(_paths(where, job)).list()
    if as_json:
        print_json({"job": job, "checkpoints": [_row(one) for one in found]})
        return
    if not found:
        click.echo(f"job {job} has committed nothing yet")
        return
    columns = ("CHECKPOINT", "SIZE", "COMMITTED", "COUNTS", "DAMAGE")
    print_table(columns, [_cells(one) for one in found], below=["DAMAGE"], optional=["SIZE"])


def _row(one: "Listed") -> dict[str, object]:
    about = None if one.about is None else asdict(one.about)
    facts = {key: value for key, value in asdict(one).items() if key != "written_s"} | {"written_at_s": one.written_s}
    return {**facts, "id": str(one.id), "epoch": one.id.epoch, "step": one.id.step, "about": about}


def _cells(one: "Listed") -> tuple[object, ...]:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.written_s)) if one.written_s else ""
    size = decimal(one.size_bytes) if one.size_bytes else ""
    counts = "yes" if one.counts else "no: its gang was replaced"
    return str(one.id), size, at, counts, f"DAMAGED: {one.problem}" if one.problem else ""


@checkpoints.command("verify")
@click.argument("job")
@click.option("--at", "which", default=None, help="Which, such as e3/step-100 or 100; default: the newest.")
@store_options
@json_option
@click.pass_context
def verify(ctx: click.Context, *, job: str, which: str | None, where: StoreOptions, as_json: bool) -> None:
    """Read a checkpoint of JOB and compare every chunk with its hashes. Exit code 1: it is damaged."""
    from ebbtide.storage.checkpoints.manager.verification import verify as damage_of  # noqa: PLC0415 - see above

    with as_command_error():
        paths = _paths(where, job)
        wanted = _wanted(paths, which)
        damage = damage_of(_checkpoints(paths), wanted)
    if as_json:
        print_json({"job": job, "checkpoint": str(wanted), "damage": [str(one) for one in damage]})
    else:
        for one in damage:
            click.echo(f"{job} {wanted}: damaged: {one}")
        if not damage:
            click.echo(f"{job} {wanted}: whole")
    if damage:  # guard: damage is an exit code
        ctx.exit(CommandFailed.exit_code)


@checkpoints.command("use")
@click.argument("job")
@click.option("--at", "which", required=True, help="Which, such as e3/step-100 or 100.")
@store_options
@json_option
def use(*, job: str, which: str, where: StoreOptions, as_json: bool) -> None:
    """Decide that JOB goes on from an older checkpoint, at its next start: the steps since then are lost.

    For a job whose newest checkpoint is damaged. Refused if the chosen one is damaged too, or while the job runs.
    """
    from ebbtide.storage.checkpoints.manager.resume_decision import resume_from  # noqa: PLC0415

    with as_command_error():
        paths = _paths(where, job)
        wanted = _wanted(paths, which)
        who = f"{getpass.getuser()} on {this_process()}"
        decided = resume_from(_checkpoints(paths), wanted, who=who, now_s=time.time(), ledger=_ledger(where))
    if as_json:
        instead_of = None if decided.instead_of is None else str(decided.instead_of)
        print_json({"job": job, "checkpoint": str(wanted), "instead_of": instead_of, "lost_steps": decided.lost_steps})
        return
    click.echo(f"job {job} goes on from {wanted} at its next start, and not from {decided.instead_of}")
    click.echo(f"{decided.lost_steps} finished steps are lost; that is on record in {paths.directory / DECISIONS}")


@checkpoints.command("export")
@click.argument("job")
@click.argument("destination")
@click.option("--at", "which", default=None, help="Which, such as e3/step-100 or 100; default: the newest.")
@store_options
@json_option
def export(*, job: str, destination: str, which: str | None, where: StoreOptions, as_json: bool) -> None:
    """Write a checkpoint of JOB to DESTINATION, a directory or URL, as stock torch.distributed.checkpoint reads it.

    Every chunk is checked while it is read, and nothing is overwritten. The job may run meanwhile.
    """
    from ebbtide.storage.checkpoints.dcp.dcp_export import export as write  # noqa: PLC0415

    with as_command_error(), terminated_is_interrupted(), TransferBar(quiet=as_json) as bar:
        paths = _paths(where, job)
        wanted = _wanted(paths, which)
        try:
            done = write(
                _checkpoints(paths, TrafficClass.PREFETCH),
                wanted,
                destination,
                progress=lambda count, total: bar.show("exporting", count, total),
            )
        except KeyboardInterrupt:
            raise CommandFailed(
                "stopped; what was written is no whole checkpoint, and nobody takes it for one"
            ) from None
    if as_json:
        print_json({"job": job, "checkpoint": str(wanted), **asdict(done)})
        return
    click.echo(f"{job} {wanted}: {len(done.files)} files, {decimal(done.written_bytes)} written to {done.where}")


def _paths(where: StoreOptions, job: str) -> RunPaths:
    paths = run_paths(where.root().parent, job)
    if not paths.directory.is_dir():  # guard: a job that never ran is refused on the command line
        raise BadInput(f"no job {job} has run in this pool: there is no directory {paths.directory}{_others(paths)}")
    return paths


def _ledger(where: StoreOptions) -> str:
    """The identity of the pool's ledger; empty if there is none, or it cannot be read."""
    directory = where.root().parent / "ledger"
    try:
        return identity(directory, survey(directory))
    except (LedgerUnusable, OSError):
        return ""


def _others(paths: RunPaths) -> str:
    there = paths.directory.parent
    names = sorted(one.name for one in there.iterdir() if one.is_dir()) if there.is_dir() else []
    return f"; there are: {', '.join(names[:10])}" if names else ""


def _wanted(paths: RunPaths, which: str | None) -> CheckpointId:
    # guard: a number of any length is refused on the command line
    if which is not None and not re.fullmatch("[0-9]{1,18}", which):
        return CheckpointId.parse(which)
    if which is not None:
        found = [one for one in _checkpoints(paths).lineage() if one.step == int(which)]
        if not found:  # guard: a step that does not count is refused on the command line
            raise BadInput(f"no checkpoint of step {which} counts; see: ebbtide checkpoints list {paths.run}")
        return found[0]
    newest = newest_of(paths)
    if newest is None:
        raise BadInput(f"job {paths.run} has committed nothing yet")
    return newest


def _checkpoints(paths: RunPaths, kind: TrafficClass = TrafficClass.SCRUB) -> "RunCheckpoints":
    from ebbtide.storage.checkpoints.manager.checkpoint_manager import RunCheckpoints  # noqa: PLC0415

    transport = FirstUse(paths.directory, kind, limits_of(paths.shared_dir).bytes_per_s)
    return RunCheckpoints(
        paths,
        TrainingPorts(
            transport,
            leases=run_leases(paths),  # guard: what a command on checkpoints reads is held meanwhile
        ),
    )
