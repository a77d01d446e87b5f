"""``ebbtide park | resume``: a person puts a job aside, and lets it go on."""

from collections.abc import Callable
from typing import Any

import click

from ebbtide.cli.terminal.completion_names import complete_jobs
from ebbtide.cli.terminal.errors import CommandFailed
from ebbtide.cli.terminal.interruption import interruptible
from ebbtide.cli.terminal.output import json_option
from ebbtide.pool.plural import many
from ebbtide_autoscaler.commands.calls import LIMIT, ask, look_at, saved, tell, user, was_so
from ebbtide_autoscaler.commands.target_pool import POOL, join_pool, say
from ebbtide_autoscaler.lifecycle.progress import NotInTime, until_done

WAIT = click.option("--wait/--no-wait", default=True, help="Wait until it is done, which is the default; or return.")
ASIDE = ("parked", "waiting")  # a job that has left its slots, in place or by a restart
Job = dict[str, Any]


@click.command()
@click.argument("name", shell_complete=complete_jobs)
@click.option("--reason", default="", help="Why; shown by `ebbtide status` and kept in the ledger.")
@click.option("--image", is_flag=True, help="Keep nothing of it in memory, only files: it can go on from any node.")
@WAIT
@LIMIT
@POOL
@json_option
def park(name: str, reason: str, image: bool, wait: bool, limit_s: float, pool: str | None, as_json: bool) -> None:
    """Put the job NAME aside at its next safe point, and keep it there until `ebbtide resume NAME`.

    It loses no step: it parks in place where it can, its state in host memory, and publishes a checkpoint and leaves
    otherwise. Its slots are free for others. Waits until it is aside. It outlives a restart of the arbiter, and of the
    whole pool; `ebbtide cancel` ends the job all the same. With --image a session becomes an image of its processes on
    the shared filesystem, and a training job publishes its checkpoint and ends its processes, also if it is parked.
    """
    join_pool(pool)
    answer = ask("park_job", name, reason or "no reason given", user(), image)
    with interruptible(f"job {name} steps aside all the same; `ebbtide resume {name}` takes that back"):
        found = (
            _wait(name, _is_off_node if image else _is_aside, _parks, limit_s, "is not aside yet")
            if wait
            else look_at(name)
        )
    if wait and found is not None:
        _must(found["held"] is not None or found["state"] == "ended", f"job {name} was released meanwhile")
        _must(found["state"] != "ended", f"job {name} is over and was not parked: {found['outcome']}")
    held = answer["held"] or {}
    _tell(as_json, name, answer, found, _parks, f"held already by {held.get('by')}: {held.get('reason')}")


@click.command()
@click.argument("name", shell_complete=complete_jobs)
@WAIT
@LIMIT
@POOL
@json_option
def resume(name: str, wait: bool, limit_s: float, pool: str | None, as_json: bool) -> None:
    """Let the job NAME go on after `ebbtide park NAME`.

    It gets slots like any other job that waits, and goes on where it was. Waits until it runs.
    """
    join_pool(pool)
    answer = ask("resume_job", name, user())
    with interruptible(f"job {name} goes on all the same, when it gets its slots; see `ebbtide status`"):
        found = _wait(name, _goes_on, _resumes, limit_s, "does not run yet") if wait else look_at(name)
    if wait and found is not None:
        _must(found["held"] is None, f"job {name} is held again: {found['waits']}")
        _must(found["state"] != "ended", f"job {name} is over and did not go on: {found['outcome']}")
    _tell(as_json, name, answer, found, _resumes, "no person holds it: it was free to go on already")


def _wait(name: str, done: Callable[[Job], bool], words: Callable[[Job], str], limit_s: float, not_yet: str) -> Job:
    def on_the_way(job: Job) -> str:
        return "" if done(job) else words(job)  # how it ended is for the caller to tell

    try:
        return until_done(lambda: look_at(name), done=done, words=on_the_way, say=say, limit_s=limit_s)
    except NotInTime as error:
        raise CommandFailed(f"job {name} {not_yet}; given up waiting for it after {limit_s:g} s: {error}") from error


def _must(holds: bool, else_why: str) -> None:
    if not holds:
        raise CommandFailed(else_why)


def _is_aside(job: Job) -> bool:
    return job["held"] is None or (
        job["state"] in (*ASIDE, "ended")
        # guard: the command that parks a job waits until its slots are free
        and not job["occupies"]
    )


def _is_off_node(job: Job) -> bool:
    return _is_aside(job) and (job["held"] is None or job["state"] != "parked")


def _goes_on(job: Job) -> bool:
    return job["held"] is not None or job["state"] in ("running", "ended")


def _parks(job: Job) -> str:
    """How far it is on its way aside."""
    name, state = job["job"], job["state"]
    if job["held"] is None:
        return ""
    if state in ASIDE and job["occupies"]:
        return f"job {name} is {state}, and on its way off its slots"
    if state == "parked" and job["held"].get("off_node"):
        return f"job {name} is parked in place, and goes into files now{_still(job)}"
    if state == "parked":
        return f"job {name} is parked in place after step {job['step']}, {saved(job)}"
    if state == "waiting":
        return f"job {name} is aside without a process of its own, at step {job['durable_step']}"
    then = ": it steps aside at its next safe point" if state in ("starting", "running", "resuming") else ""
    return f"job {name} is {state}{then}{_still(job)}"


def _resumes(job: Job) -> str:
    """How far it is on its way back."""
    if job["held"] is not None:
        return ""
    if job["state"] == "running":
        slots = len(job["slots"])
        return f"job {job['job']} runs on {many(slots, 'slot')}, {many(job['step'], 'step')} done"
    waits = job["waits"] if job["state"] in ASIDE else None  # it begins with its state, and tells of a freeze too
    return f"job {job['job']}: {waits}" if waits else f"job {job['job']} is {job['state']}{_still(job)}"


def _still(job: Job) -> str:
    still = job["arbiter"]["frozen"]
    return f"; nothing moves: {still}" if still else ""


def _tell(
    as_json: bool, name: str, answer: Job, found: Job | None, words: Callable[[Job], str], already_words: str
) -> None:
    already = was_so(answer)
    again = f" ({already_words})" if already else ""
    facts = {"job": name, "already": already, "held": answer["held"]}
    if found is None:  # taken in, and nobody says how it comes along
        tell(as_json, {**facts, "state": None}, f"job {name}: taken in{again}; see `ebbtide status`")
        return
    facts |= {"held": found["held"], **{key: found[key] for key in ("state", "step", "durable_step")}}
    tell(as_json, facts, (words(found) or f"job {name} is {found['state']}") + again)
