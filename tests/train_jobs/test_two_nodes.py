"""A gang on two nodes whose far rank dies, or all of it; the far rank is on a node where its controller is not."""

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest
import ray

from ebbtide.agent.node_agent import start_agent
from ebbtide.client.messages import DesiredState, RankPhase, RankReport, SlotRef
from ebbtide_train.session.checkpoints.checkpoint_ref import durable_step
from ebbtide_train.session.step_log import gang_lines, step_lines
from tests.builders.training import SETTINGS
from tests.train_jobs.conftest import START_S, FakePool, alive, running_pool

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

STATES = ("running", "parked", "resuming", "stopping", "stuck")
SHORT = ("resuming",)  # 20 s each
HOST_BYTES = 1 << 28  # for two ranks of a model of some KiB


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakePool]:
    with running_pool(tmp_path_factory.mktemp("pool"), nodes=2) as pool:
        agents = [start_agent(node, str(pool.lock_dir)) for node in (pool.node, *pool.others)]
        ray.get([agent.watch.remote([], HOST_BYTES, []) for agent in agents], timeout=START_S)
        yield pool


def slots_of(pool: FakePool) -> tuple[SlotRef, SlotRef]:
    return SlotRef(pool.node, 0, "a-0"), SlotRef(pool.others[0], 0, "b-0")


def trained(pool: FakePool, name: str, slots: tuple[SlotRef, ...] | None = None) -> tuple[int, dict[int, RankReport]]:
    """A new gang on both nodes that has finished a step or two: its lease's epoch, and its ranks when they came."""
    slots = slots or slots_of(pool)
    epoch = pool.call("grant_slots", name, slots).epoch
    ranks = pool.ranks(name, RankPhase.RUNNING, 2)
    assert [ranks[0].node, ranks[1].node] == [slot.node for slot in slots]
    pool.until(name, lambda: pool.call("job", name).ranks[0].step > ranks[0].step + 1, "steps")
    return epoch, ranks


def end_in(state: str, pool: FakePool, name: str, ranks: dict[int, RankReport]) -> None:
    """Kill the far rank in ``state``. It is stopped before that, so that a move is under way when it dies."""
    if state in ("parked", "resuming"):
        pool.call("want", name, DesiredState.PARK)
        pool.ranks(name, RankPhase.PARKED, 2)
        pool.spilled(name)
    os.kill(ranks[1].pid, signal.SIGSTOP)
    if state == "stuck":  # it hears no polite word, and outlives the near rank: the gang is to be killed
        pool.call("kill_gang", name)
        return
    if state == "resuming":
        pool.call("resume", name)
    elif state == "stopping":
        pool.call("want", name, DesiredState.STOP)
    time.sleep(0.5)  # a rank hears of a wish within 0.1 s, and then waits for the other
    os.kill(ranks[1].pid, signal.SIGKILL)


@pytest.mark.parametrize("states", [SHORT, pytest.param(STATES, marks=pytest.mark.hunt)])
def test_a_gang_whose_far_rank_is_killed_in_any_state_is_given_up_when_it_is_gone_and_goes_on_from_its_commit(
    pool: FakePool, states: tuple[str, ...]
) -> None:
    """Each time: "no gang" is said of no process that lives, the next gang loses what was not committed and no more."""
    name = f"far-{len(states)}"  # the two forms may run one after the other
    settings = {**json.loads(SETTINGS), "max_failures": 20}
    driver = pool.submit(name, json.dumps({"steps": 100_000, "step_s": 0.03}), json.dumps(settings))
    run_dir = pool.shared_dir / "train" / name
    lost = failures = 0
    for state in states:
        began_s = time.time()
        epoch, ranks = trained(pool, name)
        assert (ranks[0].lost_steps, ranks[1].lost_steps) == (lost, lost), f"before it was {state}"
        end_in(state, pool, name, ranks)
        report = pool.no_gang(name, epoch)
        assert not any(alive(rank.pid) for rank in ranks.values()), state
        if state != "stopping":  # there the near rank may have left by its order
            assert report.failures > failures, state
        failures = report.failures
        durable = durable_step(run_dir)
        lost = max(line.step for line in step_lines(run_dir) if line.t > began_s) + 1 - durable
        assert lost == 0 or state not in ("parked", "resuming")
    _, ranks = trained(pool, name)
    assert ranks[0].lost_steps == lost
    pool.call("cancel", name)
    pool.finish(driver, name)
    assert pool.call("job", name).outcome == "cancelled"

    losses = losses_of(pool, name)
    assert {step for step, _ in losses} == set(range(1 + max(step for step, _ in losses)))
    assert all(len(set(found)) == 1 for found in losses.values()), "a repeated step gave another loss"


def losses_of(pool: FakePool, name: str) -> dict[tuple[int, int], list[str]]:
    """By step and rank, one for each time that it was run."""
    losses: dict[tuple[int, int], list[str]] = {}
    for line in step_lines(pool.shared_dir / "train" / name):
        losses.setdefault((line.step, line.rank), []).append(line.loss)
    return losses


def test_a_gang_of_which_all_was_killed_while_it_was_parked_goes_on_from_the_memory_of_another_node(
    pool: FakePool,
) -> None:
    """The shared directory takes nothing meanwhile. The next gang's first rank is where the state is not."""
    name, full = "rescued", pool.shared_dir / "full"
    settings = {**json.loads(SETTINGS), "max_failures": 20}
    driver = pool.submit(name, json.dumps({"steps": 100_000, "step_s": 0.03, "full": str(full)}), json.dumps(settings))
    epoch, ranks = trained(pool, name)
    full.touch()
    pool.call("want", name, DesiredState.PARK)
    parked = pool.ranks(name, RankPhase.PARKED, 2)[0]
    assert parked.durable_step < parked.step
    for rank in ranks.values():
        os.kill(rank.pid, signal.SIGKILL)
    pool.no_gang(name, epoch)
    full.unlink()
    _, ranks = trained(pool, name, slots_of(pool)[::-1])
    assert full.with_suffix(".published").read_text() == pool.node != ranks[0].node
    line = gang_lines(pool.shared_dir / "train" / name)[-1]
    assert (line.restored, line.rescued, line.lost_steps) == (parked.step, parked.step, 0)
    pool.call("cancel", name)
    pool.finish(driver, name)
    losses = losses_of(pool, name)
    assert {step for step, _ in losses} == set(range(1 + max(step for step, _ in losses)))
    assert all(len(found) == 1 for found in losses.values()), "no step was run twice"
    undisturbed = losses_of(pool, f"far-{len(SHORT)}")  # if that one was run before
    assert all(found[0] == undisturbed.get(key, found)[0] for key, found in losses.items())
