"""Looking around: nodes, fences and agents as Ray shows them, with Ray played by a few functions."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import PendingCallsLimitExceeded

from ebbtide.client.messages import SlotRef
from ebbtide.pool.events import NodeFound, NodeLost, SlotFound
from ebbtide.pool.ids import NodeId, SlotId, slot_id
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.control import agent_handles, cluster_watch, fence_placement_groups, fence_sync
from ebbtide_autoscaler.control.fence_table import Fence, prefix
from tests.builders.cluster_watch import HEAD, A, B, Scene, entry


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


async def test_a_slot_is_found_only_when_it_is_known_which_gpu_it_is(scene: Scene) -> None:
    assert await scene.look() == [NodeFound(A, 1000), NodeFound(B, 1000)]
    assert scene.around.nodes == 3, "gateways may be on the head as well"
    scene.hear(A, {0: "a-0"})
    found = [body for body in await scene.look() if isinstance(body, SlotFound)]
    assert [(body.slot.id, body.slot.uuid) for body in found] == [(slot_id(A, 0), "a-0")]


async def test_every_agent_is_told_its_slots_with_one_call_and_started_once(scene: Scene) -> None:
    for _ in range(3):
        await scene.look()
    assert sorted(scene.started) == [A, B]
    assert scene.agents[A].watched == [([SlotRef(str(A), 0), SlotRef(str(A), 1)], 1000, [])] * 3


async def test_an_agent_that_hangs_holds_up_no_other_and_is_started_anew(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.look()
    scene.agents[A].fail = PendingCallsLimitExceeded("full")
    before = len(scene.agents[B].watched)
    await scene.look()
    assert len(scene.agents[B].watched) == before + 1
    scene.reports.started_s = time.time() - agent_handles.HUNG_S - 1  # never heard of, by the wall clock
    scene.hear(B, {})
    await scene.look()
    assert scene.killed == [], "nobody can have been silent on a node that was named a moment ago"
    named_s = time.monotonic()
    monkeypatch.setattr(agent_handles, "time", SimpleNamespace(monotonic=lambda: named_s + agent_handles.HUNG_S + 1))
    for _ in range(3):
        await scene.look()
    assert scene.killed == [scene.agents[A]], "killed once, not each time"


async def test_a_node_that_died_leaves_no_fence_no_agent_and_no_report(scene: Scene) -> None:
    await scene.look()
    scene.hear(A, {0: "a-0"})
    scene.state = PoolState(nodes={A: 1000, B: 1000})
    name = f"{prefix('p')}{A[:8]}:1"
    scene.book.names[slot_id(A, 0)] = name
    scene.book.names[slot_id(B, 0)] = "stays"
    scene.table[name] = Fence(name, "RESCHEDULING", "")
    scene.nodes[1] = entry(A, alive=False)
    assert await scene.look() == [NodeLost(A)]
    assert scene.dropped == [name] and scene.book.names == {slot_id(B, 0): "stays"}
    assert scene.stopped == [A] and A not in scene.reports.agents
    assert scene.around.nodes == 2


async def test_a_list_without_our_own_node_is_not_believed(scene: Scene) -> None:
    """What a GCS says that has just been restarted."""
    scene.state = PoolState(nodes={A: 1000, B: 1000})
    scene.nodes = []
    assert await scene.look() == []
    scene.nodes = [entry(HEAD, 0, alive=False), entry(A)]
    assert await scene.look() == []
    assert scene.stopped == []


async def test_fences_that_fell_and_strays_are_removed_but_none_that_is_just_being_made(scene: Scene) -> None:
    here, moved, stray, making = (f"{prefix('p')}{node}:x" for node in (A[:8], B[:8], "cccccccc", "dddddddd"))
    scene.book.names = {slot_id(A, 0): here, slot_id(B, 0): moved, slot_id(A, 1): "gone"}
    scene.table = {
        here: Fence(here, "CREATED", str(A)),
        moved: Fence(moved, "CREATED", str(A)),  # never seen, must never be: it would hold a slot of another node
        stray: Fence(stray, "CREATED", "cccccccc1"),
        making: Fence(making, "PENDING", ""),
    }
    await scene.fences.look(lambda: frozenset({NodeId("dddddddd44")}))
    assert scene.book.names == {slot_id(A, 0): here}
    assert sorted(scene.dropped) == sorted([moved, stray])


async def test_a_fence_that_was_had_while_the_table_was_read_is_no_stray(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{prefix('p')}{A[:8]}:x"

    def table(pool: str) -> dict[str, Fence]:
        scene.book.names[slot_id(A, 0)] = name  # its call has come back meanwhile
        return {name: Fence(name, "CREATED", str(A))}

    monkeypatch.setattr(fence_placement_groups, "table", table)
    await scene.fences.look(lambda: frozenset())
    assert scene.dropped == [] and scene.book.names == {slot_id(A, 0): name}


async def test_leaving_drops_every_fence_of_the_pool(scene: Scene) -> None:
    known, stray = f"{prefix('p')}{A[:8]}:1", f"{prefix('p')}{A[:8]}:2"
    scene.table = {name: Fence(name, "CREATED", str(A)) for name in (known, stray)}
    scene.book.names = {slot_id(A, 0): known}
    await scene.fences.leave()
    assert sorted(scene.dropped) == [known, stray] and scene.book.names == {}


async def test_adoption_waits_for_ray_and_keeps_what_stands(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence_sync, "ADOPT_RETRY_S", 0.01)
    tries = 0
    name = f"{prefix('p')}{A[:8]}:x"

    def table(pool: str) -> dict[str, Fence]:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ConnectionError("the GCS restarts")
        return {name: Fence(name, "CREATED", str(A))}

    monkeypatch.setattr(fence_placement_groups, "table", table)
    scene.book.names = {slot_id(A, 0): name, slot_id(A, 1): "gone"}
    await asyncio.wait_for(scene.fences.adopt(), 10)
    assert tries == 3 and scene.book.names == {slot_id(A, 0): name}


async def test_a_look_that_hangs_delays_no_other(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    gate = threading.Event()
    monkeypatch.setattr(ray, "nodes", lambda: gate.wait(30) or [])
    monkeypatch.setattr(cluster_watch, "ANSWER_S", 0.2)
    monkeypatch.setattr(cluster_watch, "LIVING_S", 0.01)
    watching = asyncio.create_task(scene.around.watch(lambda: 1000, lambda: scene.state, lambda: frozenset()))
    try:
        await asyncio.sleep(0.1)
        first = scene.reports.living_at_s
        await asyncio.sleep(0.1)
        assert scene.reports.living_at_s > first > 0
    finally:
        gate.set()
        watching.cancel()


class Asked:
    """A remote method that gives ``answer``, or hangs."""

    def __init__(self, answer: object = None, *, hangs: bool = False) -> None:
        self._answer, self._hangs = answer, hangs
        self.calls = 0

    def remote(self, address: str, port: int) -> Any:
        assert (address, port) == ("10.0.0.1", 7)
        self.calls += 1
        return self._reply()

    async def _reply(self) -> object:
        await asyncio.sleep(30 if self._hangs else 0)
        return self._answer


async def test_who_has_the_gpus_is_asked_of_the_node_and_may_stay_unknown(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = (SlotId(f"{A}:0"), SlotId(f"{A}:1"))
    assert await scene.around.strangers(slots) == {}, "nothing is known of the node yet"
    await scene.look()
    agent: Any = scene.agents[A]
    agent.gpu_users, agent.end_forgotten = Asked({0: "ray::task (pid 6)", 1: "ray::stranger (pid 7)"}), Asked([])
    agent.end_outlived = Asked([7])
    assert await scene.around.strangers(slots[1:]) == {slots[1]: "ray::stranger (pid 7)"}
    assert agent.end_outlived.calls == 1, "in case its actor is dead"
    monkeypatch.setattr(agent_handles, "ANSWER_S", 0.05)
    agent.end_outlived = Asked(hangs=True)
    assert await scene.around.strangers(slots[1:]) == {slots[1]: "ray::stranger (pid 7)"}
    agent.gpu_users = Asked(hangs=True)
    assert await scene.around.strangers(slots) == {}, "a node that does not answer holds nothing up"
    agent.gpu_users = Asked(None)
    assert await scene.around.strangers(slots) == {}, "a raylet that does not answer proves nothing"
    assert agent.end_forgotten.calls == 0


async def test_a_gpu_that_a_placement_group_has_is_that_groups(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await scene.look()
    slot = SlotId(f"{A}:0")
    agent: Any = scene.agents[A]
    agent.gpu_users, agent.end_forgotten = Asked({}), Asked([])
    scene.book.held(SlotId(f"{A}:1"), "fence:p:ours")
    group = {"bundles": {0: {"GPU": 1.0}}, "bundles_to_node_id": {0: A}, "state": "CREATED"}
    table = {
        "1": group | {"name": "theirs"},
        "2": group | {"name": "fence:p:ours"},
        "3": group | {"name": "gone", "state": "REMOVED"},
        "4": group | {"name": "elsewhere", "bundles_to_node_id": {0: B}},
        "5": group | {"name": "cpus", "bundles": {0: {"CPU": 1.0}}},
        "6": group | {"name": ""},
    }
    monkeypatch.setattr(fence_placement_groups, "placement_group_table", lambda: table)
    assert await scene.around.strangers((slot,)) == {slot: "the placement group 6, theirs"}
    assert agent.end_forgotten.calls == 0


async def test_a_gpu_that_nobody_has_is_on_a_lease_that_nobody_remembers_and_its_end_is_seen_to(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.look()
    slots = (SlotId(f"{A}:0"), SlotId(f"{A}:1"))
    agent: Any = scene.agents[A]
    agent.gpu_users, agent.end_forgotten = Asked({1: "ray::replica (pid 7)"}), Asked([4711])
    agent.end_outlived = Asked([])
    monkeypatch.setattr(fence_placement_groups, "placement_group_table", dict)
    expected = {slots[0]: cluster_watch.FORGOTTEN, slots[1]: "ray::replica (pid 7)"}
    assert await scene.around.strangers(slots) == expected
    assert agent.end_forgotten.calls == 1
    monkeypatch.setattr(agent_handles, "ANSWER_S", 0.05)
    agent.end_forgotten = Asked(hangs=True)
    assert await scene.around.strangers(slots) == expected, "a node that does not answer holds nothing up"


async def test_a_node_of_a_cluster_that_was_taken_down_and_lives_on_is_found_again(scene: Scene) -> None:
    scene.state = PoolState(nodes={A: 1000, B: 1000})
    assert await scene.look() == []
    scene.left = frozenset({A})
    assert await scene.look() == [NodeFound(A, 1000)]
