"""Submitting lost jobs again: one driver at a time, however often it is asked for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebbtide.client.job_actuator import CannotRestore, JobActuator
from ebbtide.pool.ids import JobName
from ebbtide_train.actuator import TrainActuator
from ebbtide_train.submission.archive import Archive, Submission
from ebbtide_train.submission.dashboard import NoDashboard

TIDE = JobName("tide")
GIVEN = Submission(
    job="tide",
    incarnation="abc",
    kind="script",
    entrypoint="python train.py",
    submission_id="first",
    runtime_env={"pip": ["einops"], "env_vars": {"MODE": "fast"}},
    metadata={"who": "me"},
)


class Jobs:
    """Ray's job service."""

    def __init__(self, **statuses: str) -> None:
        self.statuses = statuses
        self.submitted: list[dict[str, Any]] = []
        self.stopped: list[str] = []

    def submit_job(self, **given: Any) -> str:
        assert given["submission_id"] not in self.statuses, "Ray refuses an id that it has seen"
        self.submitted.append(given)
        self.statuses[given["submission_id"]] = "PENDING"
        return str(given["submission_id"])

    def get_job_status(self, job_id: str) -> str:
        if job_id not in self.statuses:
            raise RuntimeError(f"Request failed with status code 404: Job {job_id} does not exist.")
        return self.statuses[job_id]

    def stop_job(self, job_id: str) -> bool:
        self.stopped.append(job_id)
        return True


def actuator(shared: Path, jobs: Jobs, **changed: Any) -> TrainActuator:
    (shared / "code").mkdir(parents=True, exist_ok=True)
    (shared / "code" / "train.py").write_text("pass\n")
    Archive(shared).keep(replace(GIVEN, **changed), shared / "code")
    return TrainActuator(shared, service=lambda: jobs, address=lambda: "10.0.0.1:6379")


async def test_a_lost_job_is_submitted_as_it_was_to_the_present_cluster(tmp_path: Path) -> None:
    jobs = Jobs(first="FAILED")
    found: JobActuator = actuator(tmp_path, jobs)
    assert await found.restorable() == {"tide"}
    assert await found.restore(TIDE) == "tide-abc-restore1"
    assert jobs.submitted == [
        {
            "entrypoint": "python train.py",
            "submission_id": "tide-abc-restore1",
            "runtime_env": {
                "pip": ["einops"],
                "env_vars": {"MODE": "fast", "EBBTIDE_RAY_ADDRESS": "10.0.0.1:6379", "EBBTIDE_RESTORED": "1"},
                "working_dir": str(tmp_path / "jobs" / "tide" / "working_dir.zip"),
            },
            "metadata": {"who": "me", "ebbtide_job": "tide", "submitted_by": "ebbtide"},
        }
    ]


async def test_asking_twice_starts_one_driver(tmp_path: Path) -> None:
    jobs = Jobs()  # a new cluster: it has never heard of the old driver
    found = actuator(tmp_path, jobs)
    assert await found.restore(TIDE) == await found.restore(TIDE)
    jobs.statuses["tide-abc-restore1"] = "RUNNING"
    again = TrainActuator(tmp_path, service=lambda: jobs, address=lambda: "10.0.0.1:6379")  # of another arbiter
    assert await again.restore(TIDE) == "tide-abc-restore1"
    assert len(jobs.submitted) == 1


async def test_a_driver_that_never_registered_is_tried_again_so_often_and_no_more(tmp_path: Path) -> None:
    jobs = Jobs(first="FAILED")
    found = actuator(tmp_path, jobs, max_restores=2)
    for number in (1, 2):
        assert await found.restore(TIDE) == f"tide-abc-restore{number}"
        jobs.statuses[f"tide-abc-restore{number}"] = "FAILED"
    with pytest.raises(CannotRestore, match=r"2 submissions have ended.*ray job logs tide-abc-restore2"):
        await found.restore(TIDE)
    assert len(jobs.submitted) == 2


@pytest.mark.parametrize("status", ["RUNNING", "PENDING"])
async def test_no_second_driver_beside_an_old_one_that_lives(tmp_path: Path, status: str) -> None:
    jobs = Jobs(first=status)
    with pytest.raises(CannotRestore, match="old driver first still runs and is being stopped"):
        await actuator(tmp_path, jobs).restore(TIDE)
    assert (jobs.submitted, jobs.stopped) == ([], ["first"])


async def test_a_job_service_that_does_not_answer_is_no_proof_that_the_old_driver_is_gone(tmp_path: Path) -> None:
    jobs = Jobs()

    def broken(job_id: str) -> str:
        raise RuntimeError("Request failed with status code 500: timed out")

    jobs.get_job_status = broken  # type: ignore[method-assign]
    with pytest.raises(CannotRestore, match="timed out"):
        await actuator(tmp_path, jobs).restore(TIDE)
    assert jobs.submitted == []


async def test_what_cannot_be_restored_says_why(tmp_path: Path) -> None:
    jobs = Jobs()
    found = actuator(tmp_path, jobs, refusal="its driver was started by hand")
    assert await found.restorable() == frozenset()
    with pytest.raises(CannotRestore, match="started by hand"):
        await found.restore(TIDE)
    with pytest.raises(CannotRestore, match="nothing was kept"):
        await found.restore(JobName("other"))

    def nowhere() -> Jobs:
        raise NoDashboard("no dashboard: start Ray with one")

    Archive(tmp_path).keep(GIVEN, None)
    with pytest.raises(CannotRestore, match="no dashboard"):
        await TrainActuator(tmp_path, service=nowhere).restore(TIDE)
    assert jobs.submitted == []


async def test_a_job_that_has_ended_for_good_is_forgotten(tmp_path: Path) -> None:
    found = actuator(tmp_path, Jobs())
    await found.forget(TIDE)
    assert await found.restorable() == frozenset()
