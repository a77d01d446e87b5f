"""``ebbtide submit``."""

import asyncio
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.cli.terminal.output import json_option, print_json
from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.cluster_join import ClusterUnreachable, join
from ebbtide.client.cluster_record import ClusterRecord, NoPool, load_cluster
from ebbtide.client.ray_auth import adopt
from ebbtide.config.checks.machine_checks import world_problems
from ebbtide.config.errors import ConfigErrors
from ebbtide.config.loading.pool_file_loader import load_file
from ebbtide.config.pool_file import PoolFile
from ebbtide.config.sections.job_section import JobSection
from ebbtide_train.arbiter_client.state_lines import aside_lines, first_line, job_view
from ebbtide_train.commands.watching import WatchEnded, watching
from ebbtide_train.submission.job_selection import pick
from ebbtide_train.submission.room import cpu_fault, slot_fault
from ebbtide_train.submission.training_job import Standing, Submitted, failure, standing, submit, watch

if TYPE_CHECKING:  # Ray takes half a second to import, for which help and completion would wait
    from ray.job_submission import JobSubmissionClient

LAST_WORD_S = 10.0  # from the end of a driver's log to the pool's record of how the job ended: milliseconds


@click.command("submit")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--job", "name", default=None, help="Which job of the file; needed if there are several.")
@click.option(
    "--follow/--no-follow",
    default=None,
    help="Print the job's log to its end; or return at once. Default: say what it waits for until it runs.",
)
@click.option("--fresh", is_flag=True, help="Begin at step 0; what one of its name has saved is kept aside.")
@json_option
def submit_command(file: Path, name: str | None, follow: bool | None, fresh: bool, as_json: bool) -> None:
    """Submit one job of FILE to the running pool that the file names.

    Submitted again under the same name it goes on from its last checkpoint. Ends with 1 if the job fails, or is
    cancelled, while this command watches: until it has run for some seconds, and further than where it crashed if
    it did, or with --follow to its end.
    """
    loaded = load_file(file)
    section = pick(loaded.config, name)
    # Of the file only this job matters here: its models and secrets are the pool's.
    place = f"jobs[{loaded.config.jobs.index(section)}]"
    faults = [fault for fault in world_problems(loaded, environ=os.environ) if fault.path.startswith(place)]
    if faults:
        raise ConfigErrors(faults)
    record = _pool_of(loaded.config)
    link = ArbiterLink()
    status = link.call("status")
    view = job_view(status, section.name)
    if view is not None and view["state"] != "ended":
        raise BadInput(f"job {section.name} is {view['state']} already: `ebbtide cancel {section.name}`, or rename it")
    if fault := slot_fault(section, status) or _lacks_cpus(section):
        raise BadInput(fault)
    service = _service(record)
    aside = link.call("how_aside", section.spec())
    try:
        submitted = submit(service, section, record, fresh=fresh, before=view)
    except RuntimeError as error:
        raise CommandFailed(f"Ray's job service at {record.dashboard_url} refused the job: {error}") from error
    click.echo(f"job {section.name} submitted as {submitted.submission_id}", err=as_json)
    for line in aside_lines(section.name, aside):
        _say(line)
    now = None
    try:
        with watching(f"job {section.name}", section.name):
            now = None if follow is False else watch(service, link, submitted, say=_say, steady=not follow)
            if now is not None and now.aside is not None and now.aside["words"] != (aside or {}).get("words"):
                for line in aside_lines(
                    section.name, now.aside
                ):  # by its own size, as `why` has it when it steps aside
                    _say(line)
            if follow:
                asyncio.run(_stream(service, submitted.submission_id, as_json=as_json))
                now = watch(service, link, submitted, say=lambda _: None, to_the_end=True)
            if now is not None and now.over and not now.outcome:
                now = _with_outcome(service, link, submitted, now)
    except WatchEnded as ended:
        if as_json:
            print_json(_facts(submitted, now) | {"steps_aside": aside})
        sys.exit(ended.exit_code)
    why = failure(service, submitted, now) if now is not None else ""
    if as_json:
        print_json(_facts(submitted, now) | {"steps_aside": aside})
    if why:
        raise CommandFailed(why)


def _lacks_cpus(section: JobSection) -> str:
    import ray  # noqa: PLC0415 - joined by now; as above

    return cpu_fault(section, ray.nodes()) if ray.is_initialized() else ""


def _facts(submitted: Submitted, now: Standing | None) -> dict[str, Any]:
    return {
        "job": submitted.job,
        "submission_id": submitted.submission_id,
        "state": "submitted" if now is None else now.state,
        "ray_status": None if now is None else now.ray_status,
        "outcome": None if now is None else first_line(now.outcome) or None,
    }


def _with_outcome(service: "JobSubmissionClient", link: ArbiterLink, submitted: Submitted, now: Standing) -> Standing:
    """The driver tells the pool how its job ended just before it ends itself; one that never registered does not."""
    deadline_s = time.monotonic() + LAST_WORD_S
    while not now.outcome and now.state != "submitted" and time.monotonic() < deadline_s:
        time.sleep(0.2)
        now = standing(service, link, submitted)
    return now


def _pool_of(config: PoolFile) -> ClusterRecord:
    try:
        record = load_cluster(config.pool.name)
    except NoPool as error:
        raise BadInput(str(error)) from error
    try:
        join(record)
    except ClusterUnreachable as error:
        raise CommandFailed(str(error)) from error
    return record


def _service(record: ClusterRecord) -> "JobSubmissionClient":
    from ebbtide_train.submission.dashboard import job_service  # noqa: PLC0415 - as above

    adopt(record.env)  # the token goes into the client's headers when it is made
    try:
        # A cluster that `up` joined has no dashboard on record, but knows where its own is.
        return job_service(record.dashboard_url)
    except (ConnectionError, RuntimeError) as error:
        raise CommandFailed(f"Ray's job service {record.dashboard_url} does not answer: {error}") from error


async def _stream(service: "JobSubmissionClient", submission_id: str, *, as_json: bool) -> None:
    logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.WARNING)  # it tells that the log is over
    async for part in service.tail_job_logs(submission_id):
        click.echo(part, nl=False, err=as_json)


def _say(line: str) -> None:
    click.echo(line, err=True)
