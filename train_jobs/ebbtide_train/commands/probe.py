"""``ebbtide probe``: which ways off its slots hold for a workload, and why the others do not. It touches nothing."""

from dataclasses import dataclass
from pathlib import Path

import click

from ebbtide.cli.commands.doctor import ByteSize
from ebbtide.cli.terminal.completion_names import complete_jobs
from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.cli.terminal.output import json_option, print_json
from ebbtide.cli.terminal.probe_table import print_report
from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.cluster_join import ClusterUnreachable, join
from ebbtide.client.cluster_record import ClusterRecord, NoPool, load_cluster
from ebbtide.config.loading.pool_file_loader import load, load_file
from ebbtide.diagnostics.host.machine_reader import Machine
from ebbtide.diagnostics.probe.node_reading import NodeAsk, NodeReading, read_node
from ebbtide.diagnostics.probe.probe_report import Place, Target, report
from ebbtide.diagnostics.probe.rehearsal import Act, RehearsalFailed
from ebbtide.diagnostics.probe.rehearsal_acts import rehearse, tracked_bytes
from ebbtide.system.runtime_dir import helper_socket, runtime_dir
from ebbtide_train.commands.probe_node import read_there
from ebbtide_train.commands.probe_session import session_tree
from ebbtide_train.commands.probe_target import NotProbed, OnNode, in_file, running
from ebbtide_train.submission.job_selection import pick

ASK_S = 5.0


@dataclass(frozen=True, slots=True)
class Asked:
    """The workload, where it is or would be, and the pool's shared directory ("" if none is named)."""

    target: Target
    places: tuple[OnNode, ...]
    shared_dir: str


@click.command()
@click.argument("workload", shell_complete=complete_jobs)
@click.option("--pool", default=None, help="Name of the pool; default: the one brought up last.")
@click.option("--rehearse", "with_acts", is_flag=True, help="Also let a process made for it park here and come back.")
@click.option(
    "--bytes", "size", type=ByteSize(), help="To rehearse with.  [default: 1GiB, or a quarter of what is free]"
)
@json_option
@click.pass_context
def probe(
    ctx: click.Context, workload: str, *, pool: str | None, with_acts: bool, size: int | None, as_json: bool
) -> None:
    """Say which ways off its slots hold for WORKLOAD on each of its nodes, what they cost, and why others do not hold.

    WORKLOAD is a job or session of the pool, or FILE:JOB for a job that was not submitted: then this machine stands for
    the pool's nodes. The workload itself is never touched. Exit code 1: a node could not be read, or an act of the
    rehearsal failed.
    """
    if size is not None and not with_acts:
        raise BadInput("--bytes says how much to rehearse with: it needs --rehearse")
    file, _, job = workload.rpartition(":")
    asked = _of_file(Path(file), job, pool) if file else _of_pool(workload, pool)
    # Before the reading, so that the verdict rests on what was measured.
    acts = _rehearsed(asked, size) if with_acts else ()
    places = [_read(asked, place, here=bool(file)) for place in asked.places]
    found = report(asked.target, places, acts)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        print_report(found)
    if found.choice is None or any(act.failed for act in acts):
        ctx.exit(CommandFailed.exit_code)


def _of_pool(name: str, pool: str | None) -> Asked:
    try:
        record = load_cluster(pool)
        join(record)
    except NoPool as error:
        raise BadInput(f"{error}; or name a job of a file: ebbtide probe FILE:JOB") from error
    except ClusterUnreachable as error:
        raise CommandFailed(str(error)) from error
    status = ArbiterLink().call("status", timeout_s=ASK_S)
    if status is None or "jobs" not in status:
        raise CommandFailed("the arbiter does not answer, so nobody knows where it runs; see `ebbtide status`")
    try:
        target, places = running(status, name, session_tree(record.shared_dir, name))
    except NotProbed as error:
        raise BadInput(str(error)) from error
    except OSError as error:
        raise CommandFailed(str(error)) from error
    return Asked(target, places, record.shared_dir)


def _of_file(file: Path, job: str, pool: str | None) -> Asked:
    config = load_file(file).config
    section = pick(config, job)
    if pool is not None and pool != config.pool.name:
        raise BadInput(f"{file} is of pool {config.pool.name}, not of {pool}")
    described = config.pool
    if described.shared_dir is None:  # the file only submits: the pool's own file knows more
        described = load(Path(_record(file, config.pool.name).config_file)).pool
    target, place = in_file(section, config.pool.name, described.host_memory_per_node)
    return Asked(target, (place,), str(described.shared_dir or ""))


def _record(file: Path, pool: str) -> ClusterRecord:
    try:
        return load_cluster(pool)
    except NoPool as error:
        raise BadInput(f"{file} only submits jobs to pool {pool}: {error}") from error


def _rehearsed(asked: Asked, size: int | None) -> tuple[Act, ...]:
    machine = Machine()
    try:
        moved = tracked_bytes(size, machine)
    except RehearsalFailed as error:
        raise BadInput(str(error)) from error
    try:
        return rehearse(moved, asked.shared_dir, runtime_dir(asked.target.pool), machine)
    except OSError as error:
        raise CommandFailed(f"what was measured cannot be kept: {error}") from error


def _read(asked: Asked, place: OnNode, *, here: bool) -> Place:
    ask = NodeAsk(
        pids=place.ranks,
        world=sum(one.workers for one in asked.places),
        is_session=asked.target.kind == "session",
        shared_dir=asked.shared_dir,
        runtime_dir=str(runtime_dir(asked.target.pool)),
        helper=str(helper_socket(asked.target.pool)),
    )
    reading: NodeReading | str = read_node(ask) if here else read_there(place.node, ask)
    return Place(
        node=place.node,
        ranks=place.ranks,
        workers=place.workers,
        budget_bytes=place.budget_bytes,
        reading=reading,
    )
