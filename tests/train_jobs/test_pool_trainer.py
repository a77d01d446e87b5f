"""The Ray shell of training against an arbiter that obeys the test: real Ray, real workers, a tiny model on the CPU."""

import json
import os
import re
import signal

import pytest
from ray.util.placement_group import placement_group_table

from ebbtide.agent.slot_locks.slot_lock import probe
from ebbtide.client.messages import ControllerPhase, DesiredState, RankPhase, SlotRef
from ebbtide_train.session.checkpoints.checkpoint_ref import durable_step
from ebbtide_train.session.step_log import step_lines
from tests.builders.training import SETTINGS
from tests.train_jobs.conftest import FakePool, alive

pytestmark = [pytest.mark.ray, pytest.mark.shares_cluster, pytest.mark.timeout(600)]


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

    waiting = pool.until("tide", lambda: pool.controller("tide"), "its controller")
    assert (waiting.phase, waiting.lease_epoch) == (ControllerPhase.NO_GANG, 0)
    first = pool.grant("tide", 0, 1)
    ranks = pool.ranks("tide", RankPhase.RUNNING, 2)
    pids = {rank: report.pid for rank, report in ranks.items()}
    pool.seen_by_driver()
    report = pool.controller("tide")
    assert (report.phase, report.lease_epoch) == (ControllerPhase.GANG, first.epoch)
    slots = [SlotRef(pool.node, index) for index in range(3)]
    assert [probe(pool.lock_dir, slot).pid for slot in slots[:2]] == [pids[0], pids[1]]  # type: ignore[union-attr]

    pool.call("want", "tide", DesiredState.PARK)
    pool.ranks("tide", RankPhase.PARKED, 2)
    pool.seen_by_driver()
    assert [probe(pool.lock_dir, slot) for slot in slots] == [None, None, None]
    resumed = pool.call("resume", "tide")
    again = pool.ranks("tide", RankPhase.RUNNING, 2)
    assert {rank: report.pid for rank, report in again.items()} == pids
    assert {report.lease_epoch for report in again.values()} == {resumed.epoch}
    assert pool.controller("tide").lease_epoch == first.epoch  # the gang is still the one started then

    pool.call("want", "tide", DesiredState.STOP)
    stopped = pool.no_gang("tide", first.epoch)
    assert stopped.failures == 0
    assert not any(alive(pid) for pid in pids.values())
    last = pool.call("job", "tide").ranks
    assert {r.phase for r in last.values()} <= {RankPhase.STOPPED, RankPhase.RUNNING}
    assert last[0].durable_step == last[0].step > 0

    second = pool.grant("tide", 0, 1, 2)
    three = pool.ranks("tide", RankPhase.RUNNING, 3)
    assert {r.lost_steps for r in three.values()} == {0}
    pool.call("want", "tide", DesiredState.PARK)
    parked = pool.ranks("tide", RankPhase.PARKED, 3)
    pool.spilled("tide")
    os.kill(parked[1].pid, signal.SIGKILL)
    lost = pool.no_gang("tide", second.epoch)
    assert lost.failures == 1
    assert "its process died" in lost.last_error
    assert not any(alive(r.pid) for r in parked.values())

    heard = len(pool.call("job", "tide").controllers)
    told_s = pool.call("job", "tide").told_s
    pool.until("tide", lambda: pool.call("job", "tide").told_s > told_s + 1.0, "more reports")
    assert len(pool.call("job", "tide").controllers) == heard  # all the same: still no gang

    third = pool.grant("tide", 2)
    pool.ranks("tide", RankPhase.RUNNING, 1)
    later = pool.call("job", "tide").controllers[heard:]
    assert {r.lease_epoch for r in later if r.phase is ControllerPhase.GANG} == {third.epoch}
    printed = pool.finish(driver, "tide")
    assert driver.returncode == 0, printed
    job = pool.call("job", "tide")
    assert (job.outcome, job.ranks[0].phase) == ("finished", RankPhase.DONE)
    assert "job tide: running on 2 slots" in printed
    assert "job tide: parked" in printed

    lines = step_lines(pool.shared_dir / "train" / "tide")
    seen = sorted((line.step, line.rank) for line in lines)
    assert len(seen) == len(set(seen)), "a step was repeated"
    assert {step for step, _ in seen} == set(range(200))


def test_an_authors_exception_fails_the_job_when_it_comes_again_at_the_same_step(fake_pool: FakePool) -> None:
    pool = fake_pool
    settings = json.dumps({**json.loads(SETTINGS), "max_failures": 9})
    driver = pool.submit("wrong", json.dumps({"steps": 50, "raise_at": 3}), settings)
    first = pool.grant("wrong", 0, 1)
    failed = pool.no_gang("wrong", first.epoch)
    assert failed.failures == 1
    assert re.match(
        r"rank 0( and 1 more)?: RuntimeError: the author's own mistake \(pool_driver\.py:\d+\)", failed.last_error
    )
    pool.grant("wrong", 0, 1)
    printed = pool.finish(driver, "wrong")
    assert driver.returncode == 1
    job = pool.call("job", "wrong")
    first_line, _, tail = job.detail.partition("\n")
    assert job.outcome == "failed" and "not tried again: it failed alike at step 3 before" in first_line
    assert tail.startswith("-- rank ") and "in train" in tail and len(tail) <= 2000
    assert "the author's own mistake" in printed


def test_a_mistake_before_the_first_step_ends_the_job_though_its_peers_complain_first(
    fake_pool: FakePool,
) -> None:
    pool = fake_pool
    driver = pool.submit("early", json.dumps({"steps": 50, "raise_early": 1}), SETTINGS)
    pool.grant("early", 0, 1, 2)
    printed = pool.finish(driver, "early")
    first_line = pool.call("job", "early").detail.partition("\n")[0]
    assert driver.returncode == 1, printed
    assert re.match(r"rank 1: KeyError: 'mine' \(pool_driver\.py:\d+\)", first_line), first_line
    assert first_line.endswith("not tried again: it failed before its first step")


@pytest.mark.parametrize(
    ("train", "says"),
    [
        ("returns", "SessionMisuse: the train function returned and never asked for its session: nothing was trained"),
        ("exits", "SystemExit: 3 (pool_driver.py:"),
    ],
)
def test_a_function_that_never_trains_fails_at_once_with_the_remedy(fake_pool: FakePool, train: str, says: str) -> None:
    driver = fake_pool.submit(f"odd-{train}", json.dumps({"train": train}), SETTINGS)
    fake_pool.grant(f"odd-{train}", 0)
    printed = fake_pool.finish(driver, f"odd-{train}")
    assert driver.returncode == 1
    assert fake_pool.call("job", f"odd-{train}").detail.startswith(f"rank 0: {says}"), printed


def test_a_finished_job_is_not_trained_twice_unless_it_begins_anew(fake_pool: FakePool) -> None:
    """It finishes; again: nothing is trained; with more steps: it goes on; fresh: it begins at 0, the old is kept."""
    pool, run_dir = fake_pool, fake_pool.shared_dir / "train" / "again"
    for steps, fresh, says in (
        (4, False, "at step 4 of 4"),
        (4, False, "already at step 4 of 4: nothing was trained"),
        (6, False, "at step 6 of 6"),
        (3, True, "at step 3 of 3"),
    ):
        driver = pool.submit("again", json.dumps({"steps": steps, "step_s": 0.0, "fresh": fresh}), SETTINGS)
        pool.until("again", lambda: pool.controller("again"), "its controller")
        pool.grant("again", 0)
        printed = pool.finish(driver, "again")
        assert driver.returncode == 0, printed
        job = pool.call("job", "again")
        assert job.outcome == "finished" and job.detail.startswith(says), job.detail
        if not fresh:
            assert sorted(line.step for line in step_lines(run_dir)) == list(range(steps))
    [kept] = [path for path in run_dir.parent.iterdir() if path.name.startswith("again@")]
    assert sorted(line.step for line in step_lines(kept)) == list(range(6))
    assert sorted(line.step for line in step_lines(run_dir)) == list(range(3))


@pytest.mark.hunt  # short: driver x resuming of the kill table
def test_a_killed_driver_leaves_no_worker_and_the_next_run_goes_on_from_the_commit(fake_pool: FakePool) -> None:
    pool = fake_pool
    args = json.dumps({"steps": 300, "step_s": 0.05})
    driver = pool.submit("orphan", args, SETTINGS)
    pool.grant("orphan", 0, 1)
    ranks = pool.ranks("orphan", RankPhase.RUNNING, 2)
    pool.call("want", "orphan", DesiredState.PARK)
    parked = pool.ranks("orphan", RankPhase.PARKED, 2)
    pool.spilled("orphan")
    driver.kill()
    pool.until("orphan", lambda: not any(alive(r.pid) for r in ranks.values()), "its workers to go")

    again = pool.submit("orphan", args, SETTINGS)
    pool.until("orphan", lambda: pool.controller("orphan"), "the new controller")
    pool.grant("orphan", 1)
    found = pool.ranks("orphan", RankPhase.RUNNING, 1)
    assert found[0].durable_step >= parked[0].step and found[0].lost_steps == 0
    pool.call("cancel", "orphan")
    assert "cancelled" in pool.finish(again, "orphan")
    assert again.returncode == 1
    assert pool.call("job", "orphan").outcome == "cancelled"


@pytest.mark.hunt  # short: Train controller x stopping of the kill table
def test_a_controller_that_is_killed_in_the_middle_of_a_move_leaves_no_rank_and_the_job_goes_on_from_its_commit(
    fake_pool: FakePool,
) -> None:
    """Its driver submits the job again each time, by itself. Steps are long: the rank has not obeyed when it dies."""
    pool, name, slot = fake_pool, "beheaded", SlotRef(fake_pool.node, 0)
    settings = json.dumps({**json.loads(SETTINGS), "max_failures": 10})
    driver = pool.submit(name, json.dumps({"steps": 10_000, "step_s": 0.4}), settings)
    run_dir = pool.shared_dir / "train" / name
    durable = 0
    for move in ("parking", "parked", "resuming", "stopping"):
        pool.grant(name, 0)
        rank = pool.ranks(name, RankPhase.RUNNING, 1)[0]
        assert rank.durable_step == durable and rank.step >= durable, f"before the controller died {move}"
        pool.until(name, lambda: pool.call("job", name).ranks[0].step > rank.step, "a step")  # noqa: B023
        controller, incarnation = pool.controllers()[-1], pool.call("job", name).incarnation
        if move in ("parked", "resuming"):
            pool.call("want", name, DesiredState.PARK)
            parked = pool.ranks(name, RankPhase.PARKED, 1)
            pool.spilled(name)
            assert durable_step(run_dir) == parked[0].step
        if move == "resuming":
            pool.call("resume", name)
        elif move != "parked":
            pool.call("want", name, DesiredState.PARK if move == "parking" else DesiredState.STOP)
        controller.kill()
        pool.until(name, lambda: pool.call("job", name).incarnation != incarnation, "to be submitted again")  # noqa: B023
        pool.until(name, lambda: not alive(rank.pid), f"its rank to go, {move}")  # noqa: B023
        assert probe(pool.lock_dir, slot) is None, move
        assert durable_step(run_dir) >= durable, "a commit went back"
        durable = durable_step(run_dir)
    pool.grant(name, 0)
    assert pool.ranks(name, RankPhase.RUNNING, 1)[0].durable_step == durable > 0
    left = [entry["name"] for entry in placement_group_table().values() if entry["state"] != "REMOVED"]
    assert len([one for one in left if one.startswith("gang:")]) == 1, "a dead controller's gang keeps its CPUs"
    pool.call("cancel", name)
    printed = pool.finish(driver, name)
    assert printed.count("its Train controller died") >= 4, printed
    assert pool.call("job", name).outcome == "cancelled"
    losses: dict[int, set[str]] = {}
    for line in step_lines(run_dir):
        losses.setdefault(line.step, set()).add(line.loss)
    assert set(losses) == set(range(len(losses)))
    assert all(len(found) == 1 for found in losses.values()), "a repeated step gave another loss"


def test_a_job_that_waits_can_be_cancelled(fake_pool: FakePool) -> None:
    pool = fake_pool
    driver = pool.submit("idle", json.dumps({"steps": 3}), SETTINGS)
    pool.seen_by_driver()
    pool.call("cancel", "idle")
    printed = pool.finish(driver, "idle")
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
    assert pool.no_gang("stuck", lease.epoch).failures == 1
    assert not alive(rank.pid)
    driver.terminate()
    pool.finish(driver, "stuck")
    assert pool.call("job", "stuck").outcome == "cancelled"
