"""Submitting lost jobs again through Ray's job service: the arbiter's hands in this room.

Nothing is remembered here. The id of a submission follows from the job, the lost driver's incarnation and a number,
and Ray refuses an id that it has seen: so asking twice, or by two arbiters, starts one driver. The number rises only
when the submission before it has ended without a driver that registered (which would have changed the incarnation).

Not guaranteed: that a driver which was lost for good reasons comes up; the arbiter counts how often it is tried.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import ray

from ebbtide.client.job_actuator import CannotRestore
from ebbtide.pool.ids import JobName
from ebbtide_train.arbiter_client.pool_connection import ADDRESS_VARIABLE
from ebbtide_train.submission.archive import Archive, Submission, Unkept
from ebbtide_train.submission.current_submission import RESTORED_VARIABLE
from ebbtide_train.submission.dashboard import NoDashboard, job_service

LIVES = frozenset({"PENDING", "RUNNING"})
READ_S = 2.0  # a listing of a few small files; a shared directory that takes longer hangs


class JobService(Protocol):
    """The part of ``ray.job_submission.JobSubmissionClient`` that is used here; errors are RuntimeError."""

    def submit_job(
        self, *, entrypoint: str, submission_id: str, runtime_env: dict[str, Any], metadata: dict[str, str]
    ) -> str:
        """Start the entrypoint."""

    def get_job_status(self, job_id: str) -> Any:
        """A string-like status; raises RuntimeError if there is no such job."""

    def stop_job(self, job_id: str) -> bool:
        """SIGTERM, and SIGKILL a little later."""


class TrainActuator:
    """See ``ebbtide.client.job_actuator.JobActuator``."""

    def __init__(
        self,
        shared_dir: str | Path,
        *,
        service: Callable[[], JobService] = job_service,
        address: Callable[[], str] = lambda: str(ray.get_runtime_context().gcs_address),
    ) -> None:
        self._archive = Archive(Path(shared_dir))
        self._service, self._address = service, address
        self._reading: asyncio.Task[frozenset[JobName]] | None = None

    async def restorable(self) -> frozenset[JobName]:
        """Jobs that can be submitted again.

        Raises:
            OSError: the shared directory does not answer within 2 s; only one look at it hangs at a time.
        """
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(asyncio.to_thread(self._archive.restorable))
        try:
            return await asyncio.wait_for(asyncio.shield(self._reading), READ_S)
        except TimeoutError as error:
            raise OSError("the shared directory does not answer") from error

    async def restore(self, job: JobName) -> str:
        """Submit the job again.

        Raises:
            CannotRestore: nothing was submitted.
        """
        return await asyncio.to_thread(self._restore, job)

    async def forget(self, job: JobName) -> None:
        """Remove what was kept of the job."""
        await asyncio.to_thread(self._archive.forget, job)

    def _restore(self, job: JobName) -> str:
        try:
            kept = self._archive.read(job)
            if kept is None:
                raise CannotRestore(f"job {job} cannot be restored: nothing was kept of its submission")
            if kept.refusal:
                raise CannotRestore(f"job {job} cannot be restored: {kept.refusal}")
            zipped = self._archive.working_dir(kept)
            return self._submit(self._service(), kept, zipped)
        except (Unkept, NoDashboard, OSError, RuntimeError) as error:  # of Ray's job service: RuntimeError
            if isinstance(error, CannotRestore):
                raise
            raise CannotRestore(f"job {job} cannot be restored: {error}") from error

    def _submit(self, service: JobService, kept: Submission, zipped: Path | None) -> str:
        if _status(service, kept.submission_id) in LIVES:
            service.stop_job(kept.submission_id)  # silent for long enough to be lost: it may hang, and never end
            raise CannotRestore(f"job {kept.job}: its old driver {kept.submission_id} still runs and is being stopped")
        submission_id = ""
        for number in range(1, kept.max_restores + 1):
            submission_id = f"{kept.job}-{kept.incarnation}-restore{number}"
            status = _status(service, submission_id)
            if status in LIVES:
                return submission_id
            if not status:
                break
        else:
            raise CannotRestore(
                f"job {kept.job}: {kept.max_restores} submissions have ended before the job was registered; see "
                f"`ray job logs {submission_id}`"
            )
        env = dict(kept.runtime_env)
        env["env_vars"] = {
            **env.get("env_vars", {}),
            ADDRESS_VARIABLE: self._address(),
            RESTORED_VARIABLE: "1",
        }
        if zipped is not None:
            env["working_dir"] = str(zipped)
        return service.submit_job(
            entrypoint=kept.entrypoint,
            submission_id=submission_id,
            runtime_env=env,
            metadata={**kept.metadata, "ebbtide_job": kept.job, "submitted_by": "ebbtide"},
        )


def _status(service: JobService, submission_id: str) -> str:
    """Ray's word for where that submission stands; empty if it knows no such submission."""
    if not submission_id:
        return ""
    try:
        status = service.get_job_status(submission_id)
    except RuntimeError as error:
        if "does not exist" in str(error):
            return ""
        raise
    return str(getattr(status, "value", status))
