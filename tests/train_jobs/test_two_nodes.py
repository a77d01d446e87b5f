"""A gang on two nodes, and its ranks killed in every state; the far rank is on a node where its controller is not."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.agent.node_agent import start_agent
from ebbtide.client.messages import ControllerPhase, RankPhase, RankReport, SlotRef, Want
from ebbtide_train.session.step_log import step_lines
from tests.train_jobs.conftest import START_S, FakePool, running_pool, wait_until
from tests.train_jobs.test_pool_trainer import SETTINGS, alive

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakePool]:
    with running_pool(tmp_path_factory.mktemp("pool"), nodes=2) as pool:
        for node in (pool.node, *pool.others):
            start_agent(node, str(pool.lock_dir))
        yield pool


def slots(pool: FakePool) -> tuple[SlotRef, SlotRef]:
    return SlotRef(pool.node, 0, "a-0"), SlotRef(pool.others[0], 0, "b-0")


def trained(pool: FakePool, name: str) -> dict[int, RankReport]:
    """The whole gang, after a step or two."""
    ranks = pool.ranks(name, RankPhase.RUNNING, 2)
    start = ranks[0].step
    wait_until(lambda: pool.call("job", name).ranks[0].step > start + 1, what="steps")
    return ranks


def is_given_up(pool: FakePool, name: str, epoch: int, ranks: dict[int, RankReport], while_: str = "") -> None:
    """The controller says that no gang is left, and says the truth."""

    def given_up() -> bool:
        report = pool.controller(name)
        return report.phase is ControllerPhase.NO_GANG and report.lease_epoch == epoch and report.failures > 0

    wait_until(given_up, what=f"the gang to be given up {while_}")
    assert not any(alive(rank.pid) for rank in ranks.values())


def test_a_rank_on_another_node_is_killed_in_every_state_and_no_step_is_lost_or_changed(pool: FakePool) -> None:
    """running, parking, parked, resuming, stopping: the far rank is stopped first, so that the move is under way."""
    pool_, name = pool, "far"
    driver = pool_.submit(name, json.dumps({"steps": 150, "step_s": 0.03}), json.dumps({**json.loads(SETTINGS)}))
    lost = 0
    for state in ("running", "parking", "parked", "resuming", "stopping"):
        lease = pool_.call("grant_slots", name, slots(pool_))
        ranks = trained(pool_, name)
        assert ranks[0].node != ranks[1].node
        assert ranks[0].lost_steps == lost, "what the gang before had to give up"
        if state in ("parked", "resuming"):
            pool_.call("want", name, Want.PARK)
            parked = pool_.ranks(name, RankPhase.PARKED, 2)
            wait_until(lambda: pool_.call("job", name).ranks[0].durable_step == parked[0].step, what="the spill")  # noqa: B023
        os.kill(ranks[1].pid, signal.SIGSTOP)
        time.sleep(0.5)  # rank 0 comes to the next collective, waits there, and has said where it stands
        if state == "parking":
            pool_.call("want", name, Want.PARK)
        elif state == "resuming":
            pool_.call("resume", name)
        elif state == "stopping":
            pool_.call("want", name, Want.STOP)
        os.kill(ranks[1].pid, signal.SIGKILL)
        is_given_up(pool_, name, lease.epoch, ranks, while_=state)
        last = pool_.call("job", name).ranks[0]
        lost = last.step - last.durable_step
    pool_.call("grant_slots", name, slots(pool_))
    pool_.ranks(name, RankPhase.RUNNING, 2)
    printed, _ = driver.communicate(timeout=START_S)
    assert driver.returncode == 0, printed
    lines = step_lines(pool_.shared_dir / "train" / name)
    assert {line.step for line in lines} == set(range(150))
    losses = {
        (line.step, line.rank): {one.loss for one in lines if one.step == line.step and one.rank == line.rank}
        for line in lines
    }
    assert all(len(found) == 1 for found in losses.values()), "a repeated step gave another loss"


def test_a_stopped_rank_of_another_node_is_waited_for_until_it_is_gone(pool: FakePool, tmp_path: Path) -> None:
    """It ignores its safe point and every polite word: the gang is killed, and NO_GANG is said only after that."""
    driver = pool.submit("stuck-far", json.dumps({"steps": 10_000, "step_s": 60}), SETTINGS)
    lease = pool.call("grant_slots", "stuck-far", slots(pool))
    ranks = pool.ranks("stuck-far", RankPhase.RUNNING, 2)
    for rank in ranks.values():
        os.kill(rank.pid, signal.SIGSTOP)
    pool.call("kill_gang", "stuck-far")
    is_given_up(pool, "stuck-far", lease.epoch, ranks)
    driver.kill()
