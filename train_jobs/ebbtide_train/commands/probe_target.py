"""Which workload ``ebbtide probe`` is asked about: a running one by the arbiter's status, or a job of a file."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ebbtide.config.sections.job_section import JobSection
from ebbtide.diagnostics.probe.fact import Fact, hindering
from ebbtide.diagnostics.probe.probe_report import Target
from ebbtide.snapshot.tiers import Means
from ebbtide_train.commands.probe_session import SessionTree

_CONFIG = hindering(Means.EVICT)
_LIVING = frozenset({"running", "starting", "resuming"})


class NotProbed(ValueError):
    """It is unknown, over, or none of ours to park; one sentence."""


@dataclass(frozen=True, slots=True)
class OnNode:
    """Where a workload is: pids by rank (none while it does not run), workers, and what is left of the budget."""

    node: str
    ranks: Mapping[int, int]
    workers: int
    budget_bytes: int | None


def running(
    status: Mapping[str, Any], name: str, session: SessionTree | None = None
) -> tuple[Target, tuple[OnNode, ...]]:
    """A workload of the pool and the nodes that it is on; for one that waits, all nodes that it could get.

    Args:
        status: the arbiter's.
        name: of the workload.
        session: if it is one.

    Raises:
        NotProbed: there is no such workload, it has ended, or it is no job and no session.
    """
    for job in status.get("jobs", ()):
        if job["job"] == name:
            return _job(status, job) if session is None else _session(status, job, session)
    for endpoint in status.get("endpoints", ()):
        if name == endpoint["endpoint"] or any(name == seat["seat"] for seat in endpoint["seats"]):
            raise NotProbed(
                f"{name} is served: what its replicas do when they leave (they drain, then park if they are to be kept "
                "warm, else end) stands in `ebbtide status --json`; probe a job or a session"
            )
    for slot in status.get("slots", ()):
        if slot.get("foreign") and name in (slot["slot"], slot["foreign"]):
            raise NotProbed(f"{name} is none of this pool's: slot {slot['slot']} is foreign ({slot['foreign']})")
    raise NotProbed(
        f"there is no job or session {name} in this pool; `ebbtide status` shows them, FILE:JOB takes a file's"
    )


def _job(status: Mapping[str, Any], job: Mapping[str, Any]) -> tuple[Target, tuple[OnNode, ...]]:
    if job["state"] == "ended":
        raise NotProbed(f"{job['job']} has ended: {job.get('outcome') or 'without a word'}")
    undone_steps = max(0, job["step"] - job["durable_step"])
    target = Target(
        kind="job",
        name=job["job"],
        pool=status["pool"],
        state=job["state"],
        worker_bytes=job["tracked_bytes"] or job["host_bytes_per_worker"],
        grace_s=job["grace_s"],
        kill_loses_s=undone_steps * job["step_s"],
        step_s=job["step_s"],
        facts=(
            *_declared(job["in_place"], job["host_bytes_per_worker"], "the job as it was submitted"),
            *_reported(job["tracked_bytes"], job["in_place_hindered"] or ""),
        ),
    )
    node_of = {slot["slot"]: slot["node"] for slot in status["slots"]}
    ranks = {rank: (node_of[slot], job["pids"].get(str(rank))) for rank, slot in enumerate(job["slots"])}
    mine = {node for node, _ in ranks.values()}
    is_parked = job["state"] == "parked"
    found = []
    for node in status["nodes"]:
        if mine and node["node"] not in mine:
            continue
        pids = {rank: pid for rank, (where, pid) in ranks.items() if where == node["node"] and pid is not None}
        workers = sum(where == node["node"] for where, _ in ranks.values())
        left = node["host_bytes"] - node["parked_bytes"]
        left += workers * job["host_bytes_per_worker"] if is_parked else 0  # what it has is its own already
        found.append(OnNode(node["node"], pids, workers or job["workers_min"], left))
    if not found:
        raise NotProbed(f"job {job['job']} waits, and the pool has no node: start a Ray worker node, then probe again")
    return target, tuple(found)


def _session(
    status: Mapping[str, Any], job: Mapping[str, Any], session: SessionTree
) -> tuple[Target, tuple[OnNode, ...]]:
    """The arbiter counts it as a job. The tensors of its tree are unknown; its leader is probed, not its supervisor."""
    as_job, places = _job(status, job)
    target = replace(as_job, kind="session", worker_bytes=0, kill_loses_s=None, step_s=0.0, facts=(_no_restart(),))
    lives = job["state"] in _LIVING and session.leader
    return target, tuple(
        replace(place, ranks={0: session.leader} if lives else {}, budget_bytes=None) for place in places
    )


def _no_restart() -> Fact:
    what, remedy = "a session has no checkpoint to begin again from", "run it as a job, with safe points"
    return Fact("session.restart", what, "what a session is", False, hindering(Means.RESTART), remedy)


def in_file(section: JobSection, pool: str, budget_bytes: int) -> tuple[Target, OnNode]:
    """A job that was not submitted, on a node like this one; all its workers there."""
    target = Target(
        kind="job",
        name=section.name,
        pool=pool,
        state="in a file",
        worker_bytes=section.host_memory_per_worker,
        grace_s=section.grace_s,
        kill_loses_s=section.checkpoint_every_s,
        facts=_declared(section.in_place, section.host_memory_per_worker, "the file"),
    )
    return target, OnNode("", {}, section.workers.min, budget_bytes)


def _declared(in_place: bool, worker_bytes: int, where: str) -> tuple[Fact, ...]:
    size = Fact(
        "job.host_memory", f"one worker needs {worker_bytes} bytes of host memory, as declared", where, worker_bytes
    )
    if in_place:
        return (size,)
    what, remedy = "the job is told not to park in place (in_place: false)", "remove in_place: false"
    return size, Fact("job.in_place", what, where, False, _CONFIG, remedy)


def _reported(tracked_bytes: int, hindered: str) -> tuple[Fact, ...]:
    """What its ranks say of themselves; nothing before they have looked."""
    where, found = "the reports of its ranks", list[Fact]()
    if tracked_bytes:
        what = f"one worker tracks {tracked_bytes} bytes, as measured"
        found.append(Fact("job.tracked", what, where, tracked_bytes))
    if hindered:
        what = f"its ranks could not park in place when they last looked: {hindered}"
        remedy = "mend that; until then it stops and restarts, which loses nothing"
        found.append(Fact("job.in_place_hindered", what, where, hindered, _CONFIG, remedy))
    return tuple(found)
