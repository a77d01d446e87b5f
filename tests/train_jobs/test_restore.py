"""A job that Ray's job service runs outlives its driver and its cluster; told to stop, it leaves with a checkpoint."""

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray.job_submission import JobSubmissionClient

from ebbtide.client.jobs import CannotRestore
from ebbtide.client.messages import RankPhase, Want
from ebbtide.pool.ids import JobName
from ebbtide_train.actuator import TrainActuator
from ebbtide_train.archive import Archive
from ebbtide_train.dashboard import dashboard_url
from ebbtide_train.session.ref import read_ref
from tests.train_jobs.conftest import DRIVER, START_S, FakePool, running_pool, wait_until
from tests.train_jobs.test_pool_trainer import SETTINGS, alive

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

TIDE = JobName("tide")
ORPHANS_S = 5.0  # no process of a job may hold a slot longer than this after its driver was killed


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture
def pool(shared: Path) -> Iterator[FakePool]:
    """A cluster with a dashboard, and so with a job service; the shared directory outlives it."""
    with running_pool(shared, dashboard=True) as pool:
        yield pool


def submit(pool: FakePool, folder: Path, name: str, args: dict[str, object], **env: str) -> tuple[Any, str]:
    """`ray job submit` of a script; gives the service and the id."""
    folder.mkdir()
    shutil.copy(DRIVER, folder / "job.py")
    service = JobSubmissionClient(dashboard_url())
    wait_until(lambda: has_agent(service), what="the job service to have an agent")
    submission_id = service.submit_job(
        entrypoint=f"python job.py {name} '{json.dumps(args)}' '{SETTINGS}'",
        runtime_env={"working_dir": str(folder), "env_vars": {"EBBTIDE_RAY_ADDRESS": pool.env["RAY_ADDRESS"], **env}},
    )
    wait_until(lambda: pool.call("job", name), what=f"{name} to register")
    return service, submission_id


def has_agent(service: JobSubmissionClient) -> bool:
    """On a busy machine the dashboard answers seconds before it can take a job."""
    try:
        service.submit_job(entrypoint="true")
    except RuntimeError as error:
        if "No available agent" in str(error):
            return False
        raise
    return True


def driver_of(submission_id: str, name: str) -> psutil.Process:
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "job.py" in command and name in command:
            return process
    raise AssertionError(f"no driver of {name} ({submission_id}) runs")


def processes_of(pool: FakePool) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(pool.temp_dir in part for part in process.info["cmdline"] or ()):
            with suppress(psutil.NoSuchProcess):
                found += [process, *process.children(recursive=True)]
    return found


def registered(holds: Callable[[], Any], service: Any, submission_id: str) -> None:
    """Wait for it; a driver that ends instead, or takes too long, is quoted."""
    deadline_s = time.monotonic() + START_S
    while not holds():
        status = service.get_job_status(submission_id)
        late = time.monotonic() > deadline_s
        assert status in ("PENDING", "RUNNING") and not late, f"{status}: {service.get_job_logs(submission_id)}"
        time.sleep(0.1)


def restore(shared: Path) -> str:
    """As the arbiter does: ask again when it could not be done now."""
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            return asyncio.run(TrainActuator(shared).restore(TIDE))
        except CannotRestore as error:
            if "No available agent" not in str(error) or time.monotonic() > deadline_s:
                raise
        time.sleep(1.0)


def test_a_job_comes_back_after_its_driver_was_killed(pool: FakePool, shared: Path, tmp_path: Path) -> None:
    """1. Submitted by `ray job submit`; it runs on two slots, parks, and its state is committed.
    2. Its driver is killed: within 5 s no process of it is left; while it lived it was not restored.
    3. Restored, asked for twice: one new driver, which goes on from the commit and says that it was restored.
    4. The whole cluster is killed.
    """
    service, submission_id = submit(pool, tmp_path / "code", "tide", {"steps": 400, "step_s": 0.05})
    pool.grant("tide", 0, 1)
    ranks = pool.ranks("tide", RankPhase.RUNNING, 2)
    pool.call("want", "tide", Want.PARK)
    parked = pool.ranks("tide", RankPhase.PARKED, 2)
    wait_until(lambda: pool.call("job", "tide").ranks[0].durable_step == parked[0].step, what="the spill")
    before = pool.call("job", "tide").incarnation
    controllers = pool.controllers()

    driver_of(submission_id, "tide").kill()
    gone = [*(rank.pid for rank in ranks.values()), *(process.pid for process in controllers)]
    wait_until(lambda: not any(alive(pid) for pid in gone), what="its processes to go", timeout_s=ORPHANS_S)
    wait_until(lambda: service.get_job_status(submission_id) == "FAILED", what="Ray to notice", timeout_s=30)

    assert asyncio.run(TrainActuator(shared).restorable()) == {"tide"}
    restored = restore(shared)
    assert restore(shared) == restored
    registered(lambda: pool.call("job", "tide").incarnation != before, service, restored)
    assert pool.call("details", "tide")["restored"] is True
    pool.grant("tide", 1)
    found = pool.ranks("tide", RankPhase.RUNNING, 1)
    assert found[0].durable_step >= parked[0].step and found[0].lost_steps == 0
    drivers = [one for one in service.list_jobs() if one.status == "RUNNING" and one.submission_id]
    assert [one.submission_id for one in drivers] == [restored]
    kept = Archive(shared).read("tide")
    assert kept is not None and (kept.submission_id, kept.refusal) == (restored, "")

    for process in processes_of(pool):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def test_a_job_comes_back_on_another_cluster_and_what_was_kept_goes_when_it_ends(pool: FakePool, shared: Path) -> None:
    ref = read_ref(shared / "train" / "tide")
    assert ref is not None and ref.step > 0
    restored = restore(shared)
    registered(lambda: pool.call("job", "tide"), JobSubmissionClient(dashboard_url()), restored)
    pool.grant("tide", 0)
    registered(lambda: pool.call("job", "tide").ranks, JobSubmissionClient(dashboard_url()), restored)
    found = pool.ranks("tide", RankPhase.RUNNING, 1)
    assert found[0].step >= ref.step
    pool.call("cancel", "tide")
    wait_until(lambda: pool.call("job", "tide").outcome, what="the job to end")
    assert pool.call("job", "tide").outcome == "cancelled"
    wait_until(lambda: Archive(shared).read("tide") is None, what="its archive to go", timeout_s=10)
    with pytest.raises(CannotRestore, match="nothing was kept"):
        restore(shared)


def test_a_job_that_ray_stops_leaves_with_its_state_committed(pool: FakePool, shared: Path, tmp_path: Path) -> None:
    service, submission_id = submit(pool, tmp_path / "code", "stopped", {"steps": 10_000, "step_s": 0.05})
    pool.grant("stopped", 0)
    ranks = pool.ranks("stopped", RankPhase.RUNNING, 1)
    wait_until(lambda: pool.call("job", "stopped").ranks[0].step > 5, what="a few steps", timeout_s=START_S)
    service.stop_job(submission_id)  # SIGTERM, and SIGKILL 3 s later
    wait_until(lambda: not alive(ranks[0].pid), what="its rank to go", timeout_s=20)
    last = pool.call("job", "stopped").ranks[0]
    ref = read_ref(shared / "train" / "stopped")
    assert ref is not None and ref.step == last.step > 5
    wait_until(lambda: pool.call("job", "stopped").outcome, what="the driver's last word", timeout_s=20)
    job = pool.call("job", "stopped")
    assert (job.outcome, job.detail) == (
        "cancelled",
        "its driver was told to stop; everything it did is committed",
    )
    assert Archive(shared).read("stopped") is None
