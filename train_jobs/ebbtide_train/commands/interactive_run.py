"""``ebbtide run``: any command as an interactive session of the pool."""

import getpass
import os
import re
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ebbtide.cli.terminal.completion_names import complete_files
from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.cli.terminal.output import json_option, print_json
from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.cluster_join import ClusterUnreachable, join
from ebbtide.client.cluster_record import ClusterRecord, NoPool, load_cluster
from ebbtide.client.ray_auth import adopt
from ebbtide_train.arbiter_client.state_lines import job_view
from ebbtide_train.commands.watching import WatchEnded, watching
from ebbtide_train.interactive.session_folder import SessionFolder
from ebbtide_train.submission.interactive_job import follow, hand_over
from ebbtide_train.submission.interactive_request import GRACE_S, Request
from ebbtide_train.submission.training_job import OVER, Standing, Submitted, watch

if TYPE_CHECKING:  # Ray takes half a second to import, for which help and completion would wait
    from ray.job_submission import JobSubmissionClient


# What comes after COMMAND's first word is COMMAND's, even if an option of ours has the same name.
@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=complete_files)
@click.option("--name", default=None, help="Name of the session. Default: made of the command's.")
@click.option("--gpus", default=1, show_default=True, help="GPUs; one for now.")
@click.option("--detach", is_flag=True, help="Return as soon as it runs.")
@click.option("--owner", default=None, help="Who is told before it is parked as idle; a mail address. Default: you.")
@click.option("--idle-after", "idle_after_s", type=float, default=None, help="Seconds; 0: never. Default: the pool's.")
@click.option("--grace", "grace_s", default=GRACE_S, show_default=True, help='Seconds from "step aside" to kill.')
@click.option("--host-memory", default="1 MiB", show_default=True, help="Host memory while it is parked on a GPU node.")
@click.option("--pool", default=None, help="Name of the pool; default: the one brought up last.")
@json_option
def run_command(
    command: tuple[str, ...],
    name: str | None,
    gpus: int,
    detach: bool,
    owner: str | None,
    idle_after_s: float | None,
    grace_s: float,
    host_memory: str,
    pool: str | None,
    as_json: bool,
) -> None:
    """Run COMMAND as an interactive session: a notebook server, a script, any process tree, on one slot of the pool.

    It starts in this directory, which must be there on every node, without a terminal. It can be parked and resumed
    (`ebbtide park`, `ebbtide resume`) and then goes on as if nothing had been. Prints what it prints until it ends;
    Ctrl-C leaves it running, `ebbtide cancel` ends it.
    """
    if gpus != 1:
        raise BadInput(f"--gpus {gpus}: a session has one GPU; run one session for each")
    request = _request(command, name, owner, idle_after_s=idle_after_s, grace_s=grace_s, host_memory=host_memory)
    record = _joined(pool)
    link = ArbiterLink()
    view = job_view(link.call("status"), request.name)
    if view is not None and view["state"] != "ended":
        raise BadInput(f"{request.name} is {view['state']} already: `ebbtide cancel {request.name}`, or --name another")
    service = _service(record)
    try:
        submitted = hand_over(service, request, record)
    except RuntimeError as error:
        raise CommandFailed(f"Ray's job service at {record.dashboard_url} refused the session: {error}") from error
    place = SessionFolder(Path(record.shared_dir) / "train" / request.name)
    if not as_json:
        _say(f"session {request.name} prints to {place.output}; touch {place.touch} to keep it or to have it back")
    now = _watch(service, link, submitted, place, detach=detach)
    if as_json:
        print_json(_facts(submitted, place, now))
    _end(submitted, now, view=job_view(link.call("status"), request.name))


def _request(command: tuple[str, ...], name: str | None, owner: str | None, **given: object) -> Request:
    base = re.sub(r"[^a-z0-9._-]+", "-", Path(command[0]).name.lower()).strip("-._") or "session"
    try:
        return Request.of(
            name=name or f"{base[:40]}-{secrets.token_hex(2)}",
            command=command,
            cwd=os.getcwd(),
            owner=owner or _user(),
            **given,
        )
    except ValueError as error:
        raise BadInput(str(error)) from error


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return f"user {os.getuid()}"


def _joined(pool: str | None) -> ClusterRecord:
    try:
        record = load_cluster(pool)
        join(record)
    except NoPool as error:
        raise BadInput(str(error)) from error
    except ClusterUnreachable as error:
        raise CommandFailed(str(error)) from error
    return record


def _service(record: ClusterRecord) -> "JobSubmissionClient":
    from ebbtide_train.submission.dashboard import job_service  # noqa: PLC0415 - as above

    adopt(record.env)  # the token goes into the client's headers when it is made
    try:
        return job_service(record.dashboard_url)
    except (ConnectionError, RuntimeError) as error:
        raise CommandFailed(f"Ray's job service {record.dashboard_url} does not answer: {error}") from error


def _watch(
    service: "JobSubmissionClient", link: ArbiterLink, submitted: Submitted, place: SessionFolder, *, detach: bool
) -> Standing:
    try:
        with watching(f"session {submitted.job}", submitted.job):
            if detach:
                return watch(service, link, submitted, say=_say)
            return follow(service, link, submitted, place.output, write=_write, say=_say)
    except WatchEnded as ended:
        sys.exit(ended.exit_code)


def _write(piece: bytes) -> None:
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def _facts(submitted: Submitted, place: SessionFolder, now: Standing) -> dict[str, Any]:
    return {
        "session": submitted.job,
        "submission_id": submitted.submission_id,
        "state": now.state,
        "ray_status": now.ray_status,
        "log": str(place.output),
        "touch": str(place.touch),
    }


def _end(submitted: Submitted, now: Standing, *, view: Any) -> None:
    outcome = str((view or {}).get("outcome") or "")
    failed = now.ray_status in OVER and now.ray_status != "SUCCEEDED"
    if failed or (now.state == "ended" and not outcome.startswith("finished")):
        raise CommandFailed(f"session {submitted.job} has {outcome or now.ray_status.lower()}")


def _say(line: str) -> None:
    click.echo(line, err=True)
