"""Handing one job of a file to Ray's job service, and watching it until it runs or ends.

The job's ``working_dir`` travels as Ray uploads it; beside its files lies a small file with only this job in it, so
that neither the pool's keys nor paths that exist only here travel along. What is uploaded is a folder of links: nothing
is written into the user's own directory.
"""

import json
import os
import secrets
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ebbtide.client.cluster_record import ClusterRecord
from ebbtide.config.sections.job_section import JobSection
from ebbtide_train.arbiter_client.link import Link
from ebbtide_train.arbiter_client.pool_connection import ADDRESS_VARIABLE
from ebbtide_train.arbiter_client.state_lines import describe, first_line, is_news, job_view
from ebbtide_train.submission.steady_run import SteadyRun
from ebbtide_train.submission.stop_wait import stop_wait_env

FILE_NAME = "ebbtide-job"  # JSON inside, which is YAML; no suffix that the directory's .gitignore might leave out
LOOK_EVERY_S = 0.5
OVER = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
SKEW_S = 5.0  # clocks of two nodes of a cluster differ by less; an earlier record of that name is older by far


class JobService(Protocol):
    """The part of ``ray.job_submission.JobSubmissionClient`` that is used here."""

    def submit_job(
        self,
        *,
        entrypoint: str,
        submission_id: str,
        runtime_env: dict[str, Any],
        metadata: dict[str, str],
    ) -> str:
        """Start the entrypoint on the cluster's head node."""

    def get_job_status(self, job_id: str) -> Any:
        """A string-like status."""

    def get_job_logs(self, job_id: str) -> str:
        """All that it has printed."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job that Ray has taken."""

    job: str
    submission_id: str
    at_s: float
    earlier_ended_at_s: float | None = None  # when the run before it of that name ended, as the pool had it then


def submission_text(section: JobSection, pool: str) -> str:
    """A file with this one job, for ``ebbtide_train.run``."""
    job = section.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"working_dir"})
    return json.dumps({"pool": {"name": pool}, "jobs": [job]}, indent=2)


@contextmanager
def upload_folder(section: JobSection, pool: str) -> Iterator[Path]:
    """A folder that looks like the job's working_dir, and has the job's file in it."""
    with tempfile.TemporaryDirectory(prefix="ebbtide-submit-") as name:
        folder = Path(name)
        if section.working_dir is not None:
            for entry in section.working_dir.iterdir():
                (folder / entry.name).symlink_to(entry.resolve())
        file = folder / FILE_NAME
        file.unlink(missing_ok=True)
        file.write_text(submission_text(section, pool))
        yield folder


def submit(
    service: JobService,
    section: JobSection,
    record: ClusterRecord,
    *,
    fresh: bool = False,
    before: Mapping[str, Any] | None = None,
) -> Submitted:
    """Submit one job; ``fresh``: from step 0, whatever one of its name has done; ``before``: the
    pool's view of the job of that name now, None if it knows none.

    Raises:
        RuntimeError: Ray's job service refused or does not answer (its own error).
    """
    at_s = time.time()
    with upload_folder(section, record.pool) as folder:
        submission_id = service.submit_job(
            entrypoint=f"python -m ebbtide_train.run {FILE_NAME} --working-dir . --job {shlex.quote(section.name)}"
            + " --fresh" * fresh,
            submission_id=f"{section.name}-{secrets.token_hex(4)}",
            runtime_env={
                "working_dir": str(folder),
                "excludes": _excludes(section, record),
                # Ray overwrites RAY_ADDRESS there by what it finds on the machine: possibly another cluster.
                "env_vars": {ADDRESS_VARIABLE: record.address, **stop_wait_env(section.grace_s)},
            },
            metadata={"ebbtide_job": section.name, "submitted_by": os.environ.get("USER", "unknown")},
        )
    ended_at_s = before.get("since_at_s") if before is not None and before["state"] == "ended" else None
    return Submitted(section.name, submission_id, at_s, ended_at_s)


def _excludes(section: JobSection, record: ClusterRecord) -> list[str]:
    """Patterns of what never travels: a shared directory that lies inside the working_dir, with all checkpoints."""
    if section.working_dir is None:
        return []
    inside, shared = section.working_dir.resolve(), Path(record.shared_dir).resolve()
    return [f"/{shared.relative_to(inside)}"] if shared != inside and shared.is_relative_to(inside) else []


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a submitted job stands: ``state`` of the pool's job, or ``submitted`` before the pool knows it."""

    state: str
    line: str
    ray_status: str
    outcome: str = ""  # of a job that the pool knows to be over, in the words of its driver
    step: int = 0  # finished ones
    aside: Mapping[str, Any] | None = None  # how it would step aside; None: not known

    @property
    def over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state == "ended" or self.ray_status in OVER

    @property
    def failed(self) -> bool:
        """Whether it is over and known not to have finished."""
        finished = self.outcome.startswith("finished") if self.outcome else self.ray_status not in ("FAILED", "STOPPED")
        return self.over and not finished


def standing(service: JobService, link: Link, submitted: Submitted) -> Standing:
    """Look once."""
    ray_status = str(getattr(status := service.get_job_status(submitted.submission_id), "value", status))
    view: Mapping[str, Any] | None = job_view(link.call("status"), submitted.job)
    if view is not None and view["state"] == "ended":
        ended_at_s = view.get("since_at_s", 0.0)
        # The record of an earlier run stands until the new driver registers, some seconds after it was submitted.
        earlier = ended_at_s < submitted.at_s - SKEW_S or ended_at_s == submitted.earlier_ended_at_s
        view = None if earlier else view
    if view is None:
        return Standing("submitted", f"its driver is {ray_status.lower()}", ray_status)
    outcome, step = str(view.get("outcome") or ""), int(view.get("step") or 0)
    return Standing(view["state"], describe(view), ray_status, outcome, step, view.get("steps_aside"))


def failure(service: JobService, submitted: Submitted, now: Standing) -> str:
    """Why a job that is over did not finish, in one line that begins with the cause; empty: it finished.

    One that was cancelled has not finished either.
    """
    if not now.over:
        return ""
    if now.outcome:
        outcome, _, detail = now.outcome.partition(": ")
        if outcome == "finished":
            return ""
        said = f"{submitted.job} was cancelled" if outcome == "cancelled" else f"{submitted.job} {_PAST[outcome]}"
        return f"job {said}: {first_line(detail)}; more: `ebbtide logs {submitted.job}`"
    if now.ray_status not in OVER or now.ray_status == "SUCCEEDED":
        return ""
    printed = [line for line in service.get_job_logs(submitted.submission_id).splitlines() if line.strip()]
    last = printed[-1].strip() if printed else f"Ray says that its driver has {now.ray_status.lower()}"
    said = last.removeprefix("Error: ").removeprefix("ebbtide: ")
    said = said.removeprefix(f"job {submitted.job} failed: ").removeprefix(f"job {submitted.job}: failed: ")
    return f"job {submitted.job} failed: {said}; more: `ebbtide logs {submitted.job}`"


_PAST = {"failed": "failed", "lost": "was lost"}


def watch(
    service: JobService,
    link: Link,
    submitted: Submitted,
    *,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    to_the_end: bool = False,
    steady: bool = True,
) -> Standing:
    """Say each change until the job has got under way or is over; how it failed is left to the caller to say.

    Args:
        to_the_end: until it is over.
        steady: not before it has run for a while (see `SteadyRun`); without, until it is first seen to run.
    """
    said, run = "", SteadyRun()
    while True:
        now = standing(service, link, submitted)
        if is_news(now.line, said) and not now.failed:
            say(f"job {submitted.job}: {now.line}")
        said = now.line
        runs = run.look(now.state, now.step, clock()) or (now.state == "running" and not steady)
        if now.over or (runs and not to_the_end):
            return now
        sleep(LOOK_EVERY_S)
