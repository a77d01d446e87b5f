"""A pool of several machines, for real: gangs and replicas across nodes, and nodes that join, drain, die and return.

One cluster, one pool, in this order; the process engine stands for vLLM's.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from ebbtide.agent.node_agent import agent_name
from ebbtide.client.arbiter_link import NAMESPACE
from ebbtide.system.process import started_ticks
from ebbtide_autoscaler.control import fence_placement_groups
from ebbtide_autoscaler.journal.records import recover
from tests.builders.nodes import ask
from tests.integration.conftest import Pool, ebbtide, ebbtide_here
from tests.integration.two_nodes import MACHINE_LABEL, TwoNodes, two_nodes, wait_dead

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
JOB = "wide"
HOLDER = Path(__file__).parents[1] / "platform" / "agent" / "holder.py"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    with two_nodes(tmp_path_factory.mktemp("nodes")) as made:
        made.up(gpus=2)
        yield made


@pytest.fixture(scope="module")
def pool(nodes: TwoNodes) -> Pool:
    assert nodes.pool is not None
    return nodes.pool


@pytest.fixture(scope="module")
def driver(pool: Pool) -> Iterator["subprocess.Popen[str]"]:
    started = pool.drive(JOB, steps=1_000_000, workers=(1, 3))
    yield started
    started.terminate()
    started.wait(30)


def slots(pool: Pool, node: str) -> dict[int, dict[str, Any]]:
    return {slot["index"]: slot for slot in pool.status()["slots"] if slot["node"] == node}


def states(pool: Pool, node: str) -> list[str]:
    return [slot["state"] for _, slot in sorted(slots(pool, node).items())]


def standing(nodes: TwoNodes, node: str) -> int:
    """How many fences stand on ``node``; each stands on the node that it was made for, wherever that is."""
    found = nodes.fences()
    for name, where in found.items():
        assert where in ("", where) and (not where or name.split(":")[2] == where[:8]), found
    return sum(where == node for where in found.values())


def trains_on(pool: Pool, count: int) -> bool:
    job = pool.job(JOB)
    return bool(job["state"] == "running" and len(job["slots"]) == count)


def makes_steps(pool: Pool) -> None:
    first = pool.job(JOB)["step"]
    pool.wait("it makes steps", lambda: pool.job(JOB)["step"] >= first + 5)


def test_01_every_slot_has_the_identity_of_its_machine_and_a_fence_on_its_node(nodes: TwoNodes, pool: Pool) -> None:
    found = {record.slot.uuid for record in recover(pool.shared / "ledger").state.slots.values()}
    assert found == {"a-0", "a-1", "b-0", "b-1"}
    for machine in ("a", "b"):
        node = nodes.node_id(machine)
        assert states(pool, node) == ["free", "free"]
        assert standing(nodes, node) == 2


def test_02_a_gang_runs_across_nodes_and_locks_each_slot_by_its_machine(
    nodes: TwoNodes, pool: Pool, driver: "subprocess.Popen[str]"
) -> None:
    pool.wait("trains on both nodes", lambda: trains_on(pool, 3))
    makes_steps(pool)
    assert {slot.rpartition(":")[0] for slot in pool.job(JOB)["slots"]} == {nodes.node_id("a"), nodes.node_id("b")}
    held = {path.name for path in nodes.lock_dir.glob("*.lock") if path.read_text()}
    assert len(held) == 3 and held < {f"{machine}-{index}.lock" for machine in "ab" for index in (0, 1)}
    probed = json.loads(ebbtide_here("probe", JOB, "--json").stdout)
    assert {node["node"]: node["workers"] for node in probed["nodes"]} == Counter(map(node_of, pool.job(JOB)["slots"]))
    for node in probed["nodes"]:
        assert node["unread"] == "" and node["choice"], node
        assert len(node["pids"]) == node["workers"]
        assert "process.gone" not in {fact["id"] for fact in node["facts"]}, "its ranks are seen"
    pool.check_promises()


def test_03_a_replica_of_two_slots_sits_on_the_one_node_of_its_grant(nodes: TwoNodes, pool: Pool) -> None:
    nodes.up(replicas_min=1)
    pool.wait("a replica serves", lambda: any(seat["state"] == "ready" for seat in pool.seats()))
    seat = next(seat for seat in pool.seats() if seat["state"] == "ready")
    where = {slot.rpartition(":")[0] for slot in seat["slots"]}
    machine = next(machine for machine in ("a", "b") if where == {nodes.node_id(machine)})
    assert len(seat["slots"]) == 2
    assert psutil.Process(seat["pid"]).ppid() == nodes.raylet(machine).pid, "its actor is a child of that node's raylet"
    nodes.up(replicas_min=1, gpus=1)
    pool.wait("a replica of one slot", lambda: [len(seat["slots"]) for seat in ready(pool)] == [1])
    pool.wait("the job has the rest", lambda: trains_on(pool, 3))


def ready(pool: Pool) -> list[dict[str, Any]]:
    return [seat for seat in pool.seats() if seat["state"] == "ready"]


def node_of(slot: str) -> str:
    return slot.rpartition(":")[0]


def test_04_a_node_with_a_rank_and_a_replica_is_drained_and_both_go_on_elsewhere(nodes: TwoNodes, pool: Pool) -> None:
    """Every request that is sent meanwhile is answered."""
    (replica,) = ready(pool)
    (slot,) = replica["slots"]
    ranks = json.loads(ebbtide_here("logs", JOB, "--json").stdout)["logs"]
    assert {part["node"] for part in ranks} == {nodes.node_id("a"), nodes.node_id("b")}, "read where they lie"
    over = threading.Event()
    with ThreadPoolExecutor(1) as user:
        asking = user.submit(ask_until, over, f"{pool.record.gateway_url}/v1/completions")
        try:
            drained = json.loads(ebbtide_here("drain", node_of(slot), "--timeout", "120", "--json").stdout)
            assert drained == {"node": node_of(slot), "empty": True, "already": False}
            assert states(pool, node_of(slot)) == ["free", "free"]
            pool.wait("another replica serves", lambda: bool(ready(pool)))
            pool.wait("the job trains", lambda: trains_on(pool, 1))
            assert node_of(slot) not in {node_of(one) for one in (*ready(pool)[0]["slots"], *pool.job(JOB)["slots"])}
            makes_steps(pool)
        finally:
            over.set()
        answers = asking.result(120)
    assert answers and set(answers) == {200}, answers
    ebbtide_here("undrain", node_of(slot))
    pool.wait("the job trains on both nodes again", lambda: trains_on(pool, 3))
    nodes.up(replicas_min=0)
    pool.wait("nothing serves", lambda: not ready(pool))
    pool.wait("the job has its slots back", lambda: trains_on(pool, 3))
    pool.check_promises()


def ask_until(over: threading.Event, url: str) -> list[int | str]:
    """One request after the other; gives what came of each."""
    found = []
    while not over.wait(0.1):
        found.append(ask(url))
    return found


def test_05_a_node_that_joins_is_watched_and_fenced_and_one_that_drains_keeps_its_fences(
    nodes: TwoNodes, pool: Pool
) -> None:
    node = nodes.add_node("c")
    pool.wait(
        "its slots are in use or free", lambda: len(states(pool, node)) == 2 and "unfenced" not in states(pool, node)
    )
    ebbtide("drain", node)
    pool.wait("it is empty", lambda: states(pool, node) == ["free", "free"])
    assert standing(nodes, node) == 2
    ebbtide("undrain", node)


def test_06_a_node_that_dies_leaves_nothing_behind_and_its_survivors_keep_its_slots(
    nodes: TwoNodes, pool: Pool
) -> None:
    old = nodes.kill_node("c")
    wait_dead(nodes, old)
    pool.wait("its slots are lost", lambda: set(states(pool, old)) == {"lost"})
    pool.wait("its fences are gone", lambda: not any(old[:8] in name for name in nodes.fences()))
    pool.wait("its agent is gone", lambda: not _has_agent(old))
    survivor = subprocess.Popen(
        [sys.executable, str(HOLDER), str(nodes.lock_dir), "0", "survivor", "1", "", "c-0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert survivor.stdout is not None and survivor.stdout.readline() == b"held\n"
    new = nodes.add_node("c")
    assert new != old
    pool.wait("one slot is free, one has a survivor", lambda: states(pool, new) == ["foreign", "free"])
    assert f"survivor (lease epoch 1, pid {survivor.pid})" in str(slots(pool, new)[0]["foreign"])
    survivor.kill()
    survivor.communicate()
    pool.wait("it is free", lambda: states(pool, new) == ["free", "free"])


def _has_agent(node: str) -> bool:
    try:
        ray.get_actor(agent_name(node), namespace=NAMESPACE)
    except ValueError:
        return False
    return True


def test_07_a_stranger_that_was_first_is_named_and_its_slot_is_used_when_it_has_left(
    nodes: TwoNodes, pool: Pool, tmp_path: Path
) -> None:
    done = tmp_path / "done"

    @ray.remote(num_gpus=1, num_cpus=0, label_selector={MACHINE_LABEL: "d"}, max_retries=0)
    def stranger() -> None:
        while not done.exists():
            time.sleep(0.05)

    waiting = stranger.remote()  # it gets a GPU in the very moment in which the node joins
    node = nodes.add_node("d")
    pool.wait("it is seen", lambda: sorted(states(pool, node)) == ["foreign", "free"])
    told = next(slot["foreign"] for slot in slots(pool, node).values() if slot["state"] == "foreign")
    assert "ray::stranger" in told and "pid" in told, told
    done.touch()
    ray.get(waiting, timeout=30)
    pool.wait("its slot is ours", lambda: states(pool, node) == ["free", "free"])
    for machine in ("c", "d"):
        wait_dead(nodes, nodes.kill_node(machine))


def test_08_an_agent_that_is_killed_comes_back_and_so_does_one_that_was_ended_for_good(
    nodes: TwoNodes, pool: Pool
) -> None:
    node = nodes.node_id("a")
    (agent,) = nodes.processes("a", "ray::NodeAgent")
    agent.kill()
    pool.wait("another one runs", lambda: any(p.pid != agent.pid for p in nodes.processes("a", "ray::NodeAgent")))
    ray.kill(ray.get_actor(agent_name(node), namespace=NAMESPACE), no_restart=True)
    pool.wait("a new one is made", lambda: _has_agent(node))
    handle = ray.get_actor(agent_name(node), namespace=NAMESPACE)
    pool.wait(
        "it watches both", lambda: set(ray.get(handle.probe.remote(), timeout=20).uuids.values()) == {"a-0", "a-1"}
    )
    me = psutil.Process()
    started = ray.get(handle.alive.remote(me.pid, started_ticks(me.pid)), timeout=20)
    assert started and not ray.get(handle.alive.remote(me.pid, 1), timeout=20)
    makes_steps(pool)


@pytest.mark.hunt  # short: raylet x idle of the kill table
@pytest.mark.usefixtures("driver")
def test_09_a_raylet_is_killed_under_a_gang_that_goes_on_elsewhere_and_comes_back_with_the_node(
    nodes: TwoNodes, pool: Pool
) -> None:
    pool.wait("trains on both nodes", lambda: trains_on(pool, 3))
    old = nodes.kill_raylet("b")
    pool.wait("trains on the other node", lambda: trains_on(pool, 2))
    assert {slot.rpartition(":")[0] for slot in pool.job(JOB)["slots"]} == {nodes.node_id("a")}
    assert set(states(pool, old)) == {"lost"}
    new = nodes.add_node("b")
    pool.wait("trains on both again", lambda: trains_on(pool, 3))
    assert {slot.rpartition(":")[0] for slot in pool.job(JOB)["slots"]} == {nodes.node_id("a"), new}
    makes_steps(pool)
    pool.check_promises()


def test_10_no_fence_ever_ended_on_another_node(nodes: TwoNodes, pool: Pool) -> None:
    os.kill(pool.ask("pid"), signal.SIGKILL)
    assert pool.status()["arbiter"]["epoch"] >= 2
    pool.wait("all slots are held", lambda: trains_on(pool, 3))
    assert standing(nodes, nodes.node_id("a")) == standing(nodes, nodes.node_id("b")) == 2
    assert len(nodes.fences()) == 4
    pool.check_promises()


def test_11_a_pool_that_is_taken_down_leaves_nothing_on_the_cluster_it_joined(
    nodes: TwoNodes, pool: Pool, driver: "subprocess.Popen[str]"
) -> None:
    name = str(nodes.values["name"])
    driver.terminate()
    driver.wait(30)
    assert fence_placement_groups.table(name)
    ebbtide("down")
    assert fence_placement_groups.table(name) == {}
    assert not any(_has_agent(nodes.node_id(machine)) for machine in nodes.nodes)
