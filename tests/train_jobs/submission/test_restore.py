"""A job that Ray's job service runs outlives its driver and its cluster; told to stop, it leaves with a checkpoint."""

import asyncio
import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray.job_submission import JobSubmissionClient

from ebbtide.client.job_actuator import CannotRestore
from ebbtide.client.messages import DesiredState, RankPhase, RankReport
from ebbtide.pool.ids import JobName
from ebbtide_train.actuator import TrainActuator
from ebbtide_train.session.checkpoints.checkpoint_ref import durable_step
from ebbtide_train.submission.archive import Archive
from ebbtide_train.submission.dashboard import dashboard_url
from ebbtide_train.submission.stop_wait import stop_wait_env
from tests.builders.training import SETTINGS
from tests.train_jobs.conftest import DRIVER, START_S, FakePool, alive, running_pool, wait_until

# In short: driver x resuming of the kill table, and the last of tests/integration/test_operating.py.
pytestmark = [pytest.mark.ray, pytest.mark.hunt, pytest.mark.timeout(900)]

TIDE = JobName("tide")
ARGS = {"steps": 100_000, "step_s": 0.05}
GRACE_S = 60  # to leave with a commit, on a busy machine; Ray leaves a driver that is stopped 3 s by default


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outlives the clusters."""
    return tmp_path_factory.mktemp("shared")


def service() -> JobSubmissionClient:
    return JobSubmissionClient(dashboard_url())


def started(ask: Callable[[], str]) -> str:
    """The submission id that ``ask`` gives; asks again while the job service has just begun, as the arbiter does."""
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            return ask()
        except (RuntimeError, ConnectionError) as error:
            if "nothing was kept" in str(error) or time.monotonic() > deadline_s:
                raise
        time.sleep(0.3)


def submit(pool: FakePool, folder: Path) -> str:
    """`ray job submit` of a script."""
    folder.mkdir()
    shutil.copy(DRIVER, folder / "job.py")
    settings = json.dumps({**json.loads(SETTINGS), "grace_s": GRACE_S})
    env = {"EBBTIDE_RAY_ADDRESS": pool.env["RAY_ADDRESS"], **stop_wait_env(GRACE_S)}
    return started(
        lambda: service().submit_job(
            entrypoint=f"python job.py {TIDE} '{json.dumps(ARGS)}' '{settings}'",
            runtime_env={"working_dir": str(folder), "env_vars": env},
        )
    )


def restore(shared: Path) -> str:
    return started(lambda: asyncio.run(TrainActuator(shared).restore(TIDE)))


def driver_of(pool: FakePool) -> psutil.Process:
    """The job's driver; several processes have its command: the shell that Ray starts it by as well."""
    for process in reversed(processes_of(pool)):
        with suppress(psutil.NoSuchProcess):
            if process.cmdline()[1:3] == ["job.py", str(TIDE)]:
                return process
    raise AssertionError(f"no driver of {TIDE} runs")


def processes_of(pool: FakePool) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(pool.temp_dir in part for part in process.info["cmdline"] or ()):
            with suppress(psutil.NoSuchProcess):
                found += [process, *process.children(recursive=True)]
    return found


def until(pool: FakePool, submission_id: str, holds: Callable[[], Any], what: str) -> Any:
    """Wait for it; a driver that ends instead is quoted."""

    def ended() -> bool:
        return service().get_job_status(submission_id) not in ("PENDING", "RUNNING")

    def story() -> str:
        info = service().get_job_info(submission_id)
        return f"{info.status} {info.message}\n{service().get_job_logs(submission_id)[-3000:]}\n{pool.story(TIDE)}"

    answer = wait_until(lambda: holds() or ended(), what=what, story=story)
    assert answer is not True or holds(), f"it ended before {what}\n{story()}"
    return answer


def test_a_job_comes_back_once_after_its_driver_was_killed(shared: Path, tmp_path: Path) -> None:
    """1. Submitted by `ray job submit`; it runs, parks, and its state is committed.
    2. Its driver is killed: no process of it is left; while it lived it was not restored.
    3. Restored, asked for twice: one new driver, which registers and says that it was restored.
    4. The whole cluster is killed.
    """
    with running_pool(shared, dashboard=True) as pool:
        first = submit(pool, tmp_path / "code")
        until(pool, first, lambda: pool.call("job", TIDE), "the job to register")
        pool.grant(TIDE, 0)
        rank = pool.ranks(TIDE, RankPhase.RUNNING, 1)[0]
        pool.call("want", TIDE, DesiredState.PARK)
        parked = pool.ranks(TIDE, RankPhase.PARKED, 1)[0]
        pool.spilled(TIDE)
        before = pool.call("job", TIDE).incarnation
        gone = [rank.pid, *(process.pid for process in pool.controllers())]
        assert len(gone) == 2

        driver_of(pool).kill()
        pool.until(TIDE, lambda: not any(alive(pid) for pid in gone), "its processes to go")
        wait_until(
            lambda: service().get_job_status(first) == "FAILED",
            what="Ray to notice",
            story=lambda: str(service().get_job_info(first)),
        )

        assert asyncio.run(TrainActuator(shared).restorable()) == {TIDE}
        restored = restore(shared)
        assert restore(shared) == restored
        until(pool, restored, lambda: pool.call("job", TIDE).incarnation != before, "the job to register again")
        assert pool.call("details", TIDE)["restored"] is True
        drivers = [one.submission_id for one in service().list_jobs() if one.status == "RUNNING" and one.submission_id]
        assert drivers == [restored]
        kept = until(
            pool,
            restored,
            lambda: (k := Archive(shared).read(TIDE)) and k.submission_id == restored and k,
            "its archive",
        )
        assert kept.refusal == ""
        assert durable_step(shared / "train" / TIDE) == parked.step > 0
        for process in processes_of(pool):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def lost_and_brought_back(pool: FakePool, shared: Path, submission_id: str) -> tuple[RankReport, str]:
    """The pool takes a driver for dead that lives: it is stopped, what it kept stays, and another takes its place."""
    before = pool.call("job", TIDE)
    pool.call("lose", TIDE)
    with suppress(CannotRestore):  # "still runs and is being stopped", unless it has ended by itself already
        asyncio.run(TrainActuator(shared).restore(TIDE))
    wait_until(
        lambda: service().get_job_status(submission_id) not in ("PENDING", "RUNNING"),
        what="the driver to end",
        story=lambda: service().get_job_logs(submission_id)[-3000:],
    )
    assert Archive(shared).read(TIDE) is not None, service().get_job_logs(submission_id)[-3000:]
    again = restore(shared)
    until(pool, again, lambda: pool.call("job", TIDE).incarnation != before.incarnation, "the job to register again")
    pool.grant(TIDE, 0)
    rank = pool.ranks(TIDE, RankPhase.RUNNING, 1)[0]
    step = rank.step
    pool.until(TIDE, lambda: pool.call("job", TIDE).ranks[0].step > step + 5, "a few steps")
    return rank, again


def test_a_job_comes_back_on_another_cluster_and_told_to_stop_it_leaves_with_its_state_committed(shared: Path) -> None:
    """What was kept of it goes when it has ended."""
    before = durable_step(shared / "train" / TIDE)
    assert before > 0
    with running_pool(shared, dashboard=True) as pool:
        restored = restore(shared)
        until(pool, restored, lambda: pool.call("job", TIDE), "the job to register")
        pool.grant(TIDE, 0)
        rank = pool.ranks(TIDE, RankPhase.RUNNING, 1)[0]
        assert (rank.durable_step, rank.lost_steps) == (before, 0)
        pool.until(TIDE, lambda: pool.call("job", TIDE).ranks[0].step > before + 5, "a few steps")
        rank, restored = lost_and_brought_back(pool, shared, restored)
        service().stop_job(restored)  # SIGTERM, and SIGKILL after its grace
        pool.until(TIDE, lambda: not alive(rank.pid), "its rank to go")
        last = pool.call("job", TIDE).ranks[0]
        assert durable_step(shared / "train" / TIDE) == last.step > before + 5
        pool.until(TIDE, lambda: pool.call("job", TIDE).outcome, "its driver's last word")
        job = pool.call("job", TIDE)
        assert (job.outcome, job.detail) == (
            "cancelled",
            "its driver was told to stop; everything it did is committed",
        )
        pool.until(TIDE, lambda: Archive(shared).read(TIDE) is None, "its archive to go")
        with pytest.raises(CannotRestore, match="nothing was kept"):
            restore(shared)
