"""The Ray shell of training against an arbiter that obeys the test: real Ray, real workers, a tiny model on the CPU."""

import json
import os
import signal
from pathlib import Path

import pytest

from ebbtide.agent.slot_lock import probe
from ebbtide.client.messages import ControllerPhase, RankPhase, SlotRef, Want
from ebbtide_train.session.step_log import step_lines
from tests.train_jobs.conftest import START_S, FakePool, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

SETTINGS = json.dumps({"workers": [1, 3], "global_batch": 6, "micro_batch": 2, "checkpoint_every_s": 3600})


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_job_parks_in_place_stops_restarts_with_other_sizes_and_survives_a_killed_rank(fake_pool: FakePool) -> None:
    """One life of a job.

    1. It waits until it is granted, then starts on two slots and holds both locks.
    2. It parks in place, holds no lock, and resumes in the same processes.
    3. It stops with its checkpoint committed, and starts again with three workers, at the next step.
    4. It parks; a parked rank is killed; the controller reports that no gang is left and does not start one ...
    5. ... until it is granted one slot; it goes on from the commit, and finishes.
    """
    pool = fake_pool
    driver = pool.submit("tide", json.dumps({"steps": 200, "step_s": 0.05}), SETTINGS)

    waiting = wait_until(lambda: pool.controller("tide"), what="the controller")
    assert (waiting.phase, waiting.lease_epoch) == (ControllerPhase.NO_GANG, 0)
    first = pool.grant("tide", 0, 1)
    ranks = pool.ranks("tide", RankPhase.RUNNING, 2)
    pids = {rank: report.pid for rank, report in ranks.items()}
    pool.seen_by_driver()
    report = pool.controller("tide")
    assert (report.phase, report.lease_epoch) == (ControllerPhase.GANG, first.epoch)
    slots = [SlotRef(pool.node, index) for index in range(3)]
    assert [probe(pool.lock_dir, slot).pid for slot in slots[:2]] == [pids[0], pids[1]]  # type: ignore[union-attr]

    pool.call("want", "tide", Want.PARK)
    pool.ranks("tide", RankPhase.PARKED, 2)
    pool.seen_by_driver()
    assert [probe(pool.lock_dir, slot) for slot in slots] == [None, None, None]
    resumed = pool.call("resume", "tide")
    again = pool.ranks("tide", RankPhase.RUNNING, 2)
    assert {rank: report.pid for rank, report in again.items()} == pids
    assert {report.lease_epoch for report in again.values()} == {resumed.epoch}
    assert pool.controller("tide").lease_epoch == first.epoch  # the gang is still the one started then

    pool.call("want", "tide", Want.STOP)
    stopped = wait_until(
        lambda: (r := pool.controller("tide")).phase is ControllerPhase.NO_GANG and r, what="the gang to stop"
    )
    assert (stopped.lease_epoch, stopped.failures) == (first.epoch, 0)
    assert not any(alive(pid) for pid in pids.values())
    last = pool.call("job", "tide").ranks
    assert {r.phase for r in last.values()} <= {RankPhase.STOPPED, RankPhase.RUNNING}
    assert last[0].durable_step == last[0].step > 0

    second = pool.grant("tide", 0, 1, 2)
    three = pool.ranks("tide", RankPhase.RUNNING, 3)
    assert {r.lost_steps for r in three.values()} == {0}
    pool.call("want", "tide", Want.PARK)
    parked = pool.ranks("tide", RankPhase.PARKED, 3)
    wait_until(lambda: pool.call("job", "tide").ranks[0].durable_step == parked[0].step, what="the spill")
    os.kill(parked[1].pid, signal.SIGKILL)
    lost = wait_until(
        lambda: (r := pool.controller("tide")).phase is ControllerPhase.NO_GANG and r, what="the gang to be given up"
    )
    assert (lost.lease_epoch, lost.failures) == (second.epoch, 1)
    assert "its process died" in lost.last_error
    assert not any(alive(r.pid) for r in parked.values())

    heard = len(pool.call("job", "tide").controllers)
    told_s = pool.call("job", "tide").told_s
    wait_until(lambda: pool.call("job", "tide").told_s > told_s + 1.0, what="more reports")
    assert len(pool.call("job", "tide").controllers) == heard  # all the same: still no gang

    third = pool.grant("tide", 2)
    pool.ranks("tide", RankPhase.RUNNING, 1)
    later = pool.call("job", "tide").controllers[heard:]
    assert {r.lease_epoch for r in later if r.phase is ControllerPhase.GANG} == {third.epoch}
    printed, _ = driver.communicate(timeout=START_S)
    assert driver.returncode == 0, printed
    job = pool.call("job", "tide")
    assert (job.outcome, job.ranks[0].phase) == ("finished", RankPhase.DONE)
    assert "job tide: running on 2 slots" in printed
    assert "job tide: parked" in printed

    lines = step_lines(pool.shared_dir / "train" / "tide")
    seen = sorted((line.step, line.rank) for line in lines)
    assert len(seen) == len(set(seen)), "a step was repeated"
    assert {step for step, _ in seen} == set(range(200))


def test_an_authors_exception_is_retried_and_then_fails_the_job(fake_pool: FakePool) -> None:
    pool = fake_pool
    settings = json.dumps({**json.loads(SETTINGS), "max_failures": 1})
    driver = pool.submit("wrong", json.dumps({"steps": 50, "raise_at": 3}), settings)
    first = pool.grant("wrong", 0)
    failed = wait_until(
        lambda: (r := pool.controller("wrong")) and r.failures == 1 and r.phase is ControllerPhase.NO_GANG and r,
        what="the first failure",
    )
    assert failed.lease_epoch == first.epoch
    assert failed.last_error == "rank 0: RuntimeError: the author's own mistake"
    pool.grant("wrong", 0)
    printed, _ = driver.communicate(timeout=START_S)
    assert driver.returncode == 1
    job = pool.call("job", "wrong")
    first_line, _, tail = job.detail.partition("\n")
    assert (job.outcome, first_line) == ("failed", "rank 0: RuntimeError: the author's own mistake")
    assert tail.startswith("-- rank 0 --") and "in train" in tail and len(tail) <= 2000
    assert "the author's own mistake" in printed


def test_a_killed_driver_leaves_no_worker_and_the_next_run_goes_on_from_the_commit(fake_pool: FakePool) -> None:
    pool = fake_pool
    args = json.dumps({"steps": 300, "step_s": 0.05})
    driver = pool.submit("orphan", args, SETTINGS)
    pool.grant("orphan", 0, 1)
    ranks = pool.ranks("orphan", RankPhase.RUNNING, 2)
    pool.call("want", "orphan", Want.PARK)
    parked = pool.ranks("orphan", RankPhase.PARKED, 2)
    wait_until(lambda: pool.call("job", "orphan").ranks[0].durable_step == parked[0].step, what="the spill")
    driver.kill()
    wait_until(lambda: not any(alive(r.pid) for r in ranks.values()), what="its workers to go", timeout_s=10.0)

    again = pool.submit("orphan", args, SETTINGS)
    wait_until(lambda: pool.controller("orphan"), what="the new controller")
    pool.grant("orphan", 1)
    found = pool.ranks("orphan", RankPhase.RUNNING, 1)
    assert found[0].durable_step >= parked[0].step and found[0].lost_steps == 0

    # A killed controller takes its gang with it, and the driver submits the job again.
    before = pool.call("job", "orphan").incarnation
    pool.controllers()[0].kill()
    wait_until(lambda: pool.call("job", "orphan").incarnation != before, what="the job to be submitted again")
    wait_until(lambda: not alive(found[0].pid), what="its gang to go", timeout_s=10.0)
    wait_until(pool.controllers, what="another controller")
    pool.call("cancel", "orphan")
    printed, _ = again.communicate(timeout=START_S)
    assert again.returncode == 1
    assert pool.call("job", "orphan").outcome == "cancelled"
    assert "cancelled" in printed


def test_a_job_that_waits_can_be_cancelled(fake_pool: FakePool) -> None:
    pool = fake_pool
    driver = pool.submit("idle", json.dumps({"steps": 3}), SETTINGS)
    looked = pool.call("looked")
    wait_until(lambda: pool.call("looked") > looked + 1, what="the driver to look why its job waits")
    pool.call("cancel", "idle")
    printed, _ = driver.communicate(timeout=START_S)
    assert driver.returncode == 1
    assert "ebbtide: job idle: waits: nobody has granted anything" in printed
    assert "ebbtide_train.session.errors.Cancelled" in printed
    assert pool.call("job", "idle").outcome == "cancelled"


def test_a_gang_is_killed_when_the_arbiter_says_so(fake_pool: FakePool) -> None:
    pool = fake_pool
    driver = pool.submit("stuck", json.dumps({"steps": 10_000, "step_s": 60}), SETTINGS)  # never at a safe point
    lease = pool.grant("stuck", 0)
    rank = pool.ranks("stuck", RankPhase.RUNNING, 1)[0]
    pool.call("kill_gang", "stuck")
    gone = wait_until(
        lambda: (r := pool.controller("stuck")).phase is ControllerPhase.NO_GANG and r, what="the gang to be killed"
    )
    assert (gone.lease_epoch, gone.failures) == (lease.epoch, 1)
    assert not alive(rank.pid)
    driver.terminate()
    driver.communicate(timeout=START_S)
    assert pool.call("job", "stuck").outcome == "cancelled"
