"""What becomes of each job while a pool is being taken down, as the arbiter's status tells it. Pure.

A job has left when all that it has done is on the shared filesystem and its slots are free. A session that refuses to
leave (nothing can make an image of it) does not try again, so it is not waited for.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ebbtide.cli.terminal.causes import cause
from ebbtide.pool.plural import many

COMES_UP = {"starting": "starts", "resuming": "comes back"}
ON_ITS_WAY = frozenset({*COMES_UP, "running", "parking", "parked", "stopping"})

Status = Mapping[str, Any]
"""The arbiter's, as `service.pool_view` makes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingJob:
    """One job that had slots, or was parked, when the pool began to go down.

    Attributes:
        step: finished steps, the most that it was seen with.
        durable_step: of these, the ones on the shared filesystem.
        crashes: that it had when it was seen first.
        crashed: it has had another one since, for the reason in ``refused``.
        refused: why it has not left yet, as it says itself.
        comes_back: its submission is kept, so that the next `up` submits it again.
    """

    name: str
    state: str
    step: int = 0
    durable_step: int = 0
    grace_s: float = 0.0
    crashes: int = 0
    crashed: bool = False
    interactive: bool = False
    refused: str = ""
    comes_back: bool = False

    @property
    def stays(self) -> bool:
        """Whether it is on its way and will not leave by itself."""
        return self.interactive and bool(self.refused)

    @property
    def awaited(self) -> bool:
        """Whether there is something to wait for."""
        return self.state in ON_ITS_WAY and not self.stays and not self.crashed

    @property
    def repeats(self) -> int:
        """Finished steps that are lost if it ends now."""
        return max(0, self.step - self.durable_step) if self.crashed or self.state in ON_ITS_WAY else 0


def follow(known: Mapping[str, LeavingJob], status: Status) -> dict[str, LeavingJob]:
    """What is known after another look."""
    told = {job["job"]: job for job in status["jobs"]}
    fresh = {name: _begin(job) for name, job in told.items() if name not in known and job["state"] in ON_ITS_WAY}
    return {name: _go_on(one, told.get(name)) for name, one in ({**known, **fresh}).items()}


def _begin(job: Status) -> LeavingJob:
    grace_s, crashes = job.get("grace_s", 0.0), job.get("crashes", 0)
    return LeavingJob(name=job["job"], state=job["state"], grace_s=grace_s, crashes=crashes)


def _go_on(one: LeavingJob, job: Status | None) -> LeavingJob:
    if job is None:  # forgotten: it ended long ago
        return replace(one, state="ended")
    crashed = one.crashed or job.get("crashes", 0) > one.crashes
    said = job.get("park_refused") or (job.get("commit_error") if job["state"] == "stopping" else "")
    return replace(
        one,
        state=job["state"],
        step=max(one.step, job["step"]),
        durable_step=job["durable_step"],
        crashed=crashed,
        interactive=one.interactive or job.get("interactive", False),
        refused=cause(job.get("last_error") or "") if crashed else said or "",
        comes_back=job.get("restorable", False),
    )


def waits_for(one: LeavingJob) -> str:
    """What it still has to do before it has left."""
    if one.state in COMES_UP:
        return f"{COMES_UP[one.state]}; it can be asked to step aside when it runs"
    if one.refused:
        return f"its checkpoint cannot be published yet: {one.refused}"
    if one.interactive:
        return "becomes an image on the shared filesystem"
    if one.state == "parked":
        return "publishes its checkpoint"
    return "comes to its next safe point and publishes its checkpoint"


def how_it_went(one: LeavingJob) -> str:
    """How it stands when the wait is over, in a sentence."""
    what, unit = ("session", "its image") if one.interactive else ("job", f"step {one.durable_step}")
    who = f"{what} {one.name}"
    if one.state == "ended":
        return f"{who} has ended by itself"
    if one.crashed or one.state in ON_ITS_WAY:
        return f"{who} {_ends(one)}"
    return f"{who} has stepped aside at {unit}, all of it on the shared filesystem"


def _ends(one: LeavingJob) -> str:
    ends = "has crashed on its way" if one.crashed else "is ended with the pool"
    why = f" ({one.refused})" if one.refused else ""
    if one.interactive:
        back = f"it goes back to its image {one.durable_step}" if one.durable_step else "there is no image of it"
        return f"{ends}{why}: what it has in memory is lost, and {back}"
    if not one.repeats:
        return f"{ends}{why}: it goes on from step {one.durable_step}, and repeats none"
    return f"{ends}{why}: it goes on from step {one.durable_step}, and repeats {many(one.repeats, 'step')} at least"


def how_to_go_on(jobs: Mapping[str, LeavingJob], config_file: str) -> Iterator[str]:
    """What a person does to let them go on."""
    left = [one for one in jobs.values() if one.state != "ended"]
    back = [one for one in left if one.comes_back]
    if back:
        yield f"`ebbtide up {config_file}` lets go on: {', '.join(map(_from, back))}"
    for one in left:
        if not one.comes_back:
            yield f"{_from(one)}: submit it again after `ebbtide up`; the pool has not kept how that was done"


def _from(one: LeavingJob) -> str:
    return one.name if one.interactive else f"{one.name} from step {one.durable_step}"
