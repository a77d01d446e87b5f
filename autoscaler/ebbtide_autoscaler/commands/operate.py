"""``ebbtide freeze | unfreeze | drain | undrain | cancel``: what a person asks of a running pool."""

from typing import Any

import click

from ebbtide.cli.terminal.causes import cause
from ebbtide.cli.terminal.completion_names import complete_jobs, complete_nodes
from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.cli.terminal.interruption import interruptible
from ebbtide.cli.terminal.output import json_option
from ebbtide.config.sections.pool_section import PoolMode
from ebbtide.pool.plural import many
from ebbtide_autoscaler.cluster.node_names import Node, choose, cluster_nodes
from ebbtide_autoscaler.commands.calls import LIMIT, NO_WAIT, ask, look_at, pool_status, saved, tell, user, was_so
from ebbtide_autoscaler.commands.target_pool import POOL, join_pool, say
from ebbtide_autoscaler.lifecycle.progress import NotInTime, until_done


@click.command()
@click.option("--reason", default="", help="Why; shown by `ebbtide status` and kept in the ledger.")
@POOL
@json_option
def freeze(reason: str, pool: str | None, as_json: bool) -> None:
    """Stop all decisions: nothing is granted, parked, started or drained until `ebbtide unfreeze`.

    Everything that runs goes on, requests are served, and moves that were begun are finished. It outlives a restart
    of the arbiter, and of the whole pool.
    """
    join_pool(pool)
    why = f"{reason or 'no reason given'} ({user()})"
    answer = ask("freeze", why)
    already = was_so(answer)
    why = answer["frozen"] if already else why
    tell(as_json, {"frozen": why, "already": already}, f"frozen{' already' if already else ''}: {why}")


@click.command()
@POOL
@json_option
def unfreeze(pool: str | None, as_json: bool) -> None:
    """Decide again after `ebbtide freeze`."""
    join_pool(pool)
    already = was_so(ask("unfreeze"))
    line = "no person has frozen the pool: decisions are made already" if already else "decisions are made again"
    tell(as_json, {"frozen": "", "already": already}, line)


@click.command()
@click.argument("node", shell_complete=complete_nodes)
@click.option("--reason", default="", help="Why; shown by `ebbtide status` and kept in the ledger.")
@click.option("--yes", is_flag=True, help="Also if it is the only node of the pool.")
@NO_WAIT
@LIMIT
@POOL
@json_option
def drain(node: str, reason: str, yes: bool, no_wait: bool, limit_s: float, pool: str | None, as_json: bool) -> None:
    """Empty NODE (start of its id, or its machine's name) and grant nothing there until `ebbtide undrain`.

    Replicas finish their requests, jobs stop at a safe point and restart elsewhere. Waits until the node is empty.
    """
    join_pool(pool)
    found = pool_status()
    if found is None:
        raise CommandFailed("the arbiter does not answer: nothing was changed; see `ebbtide status`")
    mine = [one["node"] for one in found["nodes"]]
    chosen = _choose(node, mine)
    if mine == [chosen.id] and not yes:
        raise BadInput(
            f"{chosen.label} is the pool's only node: all endpoints and jobs would wait until `ebbtide undrain`. "
            "Say --yes if that is meant"
        )
    already = was_so(ask("drain_node", chosen.id, f"{reason or 'no reason given'} ({user()})"))
    again = " already" if already else ""
    facts = {"node": chosen.id, "already": already}
    if no_wait:
        tell(as_json, facts | {"empty": None}, f"{chosen.label} drains{again}; see `ebbtide status`")
        return
    try:
        with interruptible(f"{chosen.label} goes on draining; `ebbtide undrain {node}` takes that back"):
            until_done(
                pool_status,
                done=lambda s: not left_on(s, chosen.id),
                words=lambda s: _words(s, chosen),
                say=say,
                limit_s=limit_s,
            )
    except NotInTime as error:
        raise CommandFailed(
            f"{chosen.label} is not empty after {limit_s:g} s, and goes on draining: {error}"
        ) from error
    was = "was drained already, and " if already else ""
    tell(as_json, facts | {"empty": True}, f"{chosen.label} {was}is empty; `ebbtide undrain` gives it back")


def _choose(node: str, mine: list[str]) -> Node:
    try:
        return choose(node, [node_ for node_ in cluster_nodes() if node_.id in mine])
    except ValueError as error:
        raise BadInput(str(error)) from error


def left_on(status: dict[str, Any], node: str) -> list[str]:
    """What is still on a node: occupants, and gangs that are parked there."""
    found = []
    for slot in status["slots"]:
        if slot["node"] == node and slot["state"] != "lost":
            found += [slot["occupant"]] if slot["occupant"] else []
            found += slot["parked"]
    return sorted(set(found))


def _words(status: dict[str, Any], node: Node) -> str:
    left = left_on(status, node.id)
    states = {one["job"]: one["state"] for one in status["jobs"]}
    states |= {seat["seat"]: seat["state"] for one in status["endpoints"] for seat in one["seats"]}
    still = status["arbiter"]["frozen"]
    why = f"; nothing moves: {still}" if still else ""
    if status["arbiter"]["mode"] == PoolMode.OBSERVE:
        why = "; the pool only observes, so nothing leaves by itself"
    each = [f"{name} is {states.get(name, 'there')}" for name in left]
    return f"{node.label}: {', '.join(each)}{why}" if each else ""


@click.command()
@click.argument("node", shell_complete=complete_nodes)
@POOL
@json_option
def undrain(node: str, pool: str | None, as_json: bool) -> None:
    """Use NODE again after `ebbtide drain`."""
    join_pool(pool)
    found = pool_status() or {"nodes": []}
    chosen = _choose(node, [one["node"] for one in found["nodes"]])
    already = was_so(ask("undrain_node", chosen.id))
    line = f"{chosen.label} was not drained: it is used already" if already else f"{chosen.label} is used again"
    tell(as_json, {"node": chosen.id, "already": already}, line)


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@NO_WAIT
@LIMIT
@POOL
@json_option
def cancel(job: str, no_wait: bool, limit_s: float, pool: str | None, as_json: bool) -> None:
    """End JOB for good at its next safe point; its last checkpoint stays.

    Waits until it is over and its slots are free. A rank that does not come to a safe point within the job's grace is
    killed; the steps that this costs are shown. A job whose driver was lost is over at once.
    """
    join_pool(pool)
    already = was_so(ask("cancel_job", job, f"cancelled by {user()}"))
    if no_wait:
        now = look_at(job)
        if now is not None and now["state"] == "ended":
            _tell_end(as_json, now, already)
        else:
            facts = {"job": job, "state": "cancelling", "already": already}
            again = " is being cancelled already, and" if already else ""
            tell(as_json, facts, f"job {job}{again} will end at its next safe point")
        return
    try:
        with interruptible(f"job {job} is cancelled all the same, at its next safe point"):
            last = until_done(
                lambda: look_at(job),
                done=lambda j: j["state"] == "ended" and not j["occupies"],
                words=_job_words,
                say=say,
                limit_s=limit_s,
            )
    except NotInTime as error:
        raise CommandFailed(f"job {job} is not over after {limit_s:g} s: {error}") from error
    _tell_end(as_json, last, already)


def _tell_end(as_json: bool, job: dict[str, Any], already: bool) -> None:
    facts = {key: job[key] for key in ("job", "state", "step", "durable_step", "outcome")} | {"already": already}
    free = f"; {many(len(job['occupies']), 'slot', 'is')} being proven free" if job["occupies"] else ""
    over = f"is over already: {cause(job['outcome'] or '')}" if already else f"is over: {cause(job['outcome'] or '')}"
    line = f"job {job['job']} {over}; step {job['step']}, {saved(job)}{free}"
    tell(as_json, facts, line)


def _job_words(job: dict[str, Any]) -> str:
    if job["state"] == "ended":
        return (
            f"job {job['job']} has ended; {many(len(job['occupies']), 'slot', 'is')} being proven free"
            if job["occupies"]
            else ""
        )
    return f"job {job['job']} is {job['state']}"
