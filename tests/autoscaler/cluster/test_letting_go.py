"""A node that is let go: nothing of ours keeps it busy in Ray's eyes, until it is gone or taken back."""

import pytest

from ebbtide.config.sections.pool_section import PoolMode
from ebbtide.pool.events import GrantSeat, NodeDraining, NodeUndrained, SlotUnfenced
from ebbtide.pool.ids import NodeId, seat_id, slot_id
from ebbtide.pool.rules.drain import UNNEEDED, let_go
from ebbtide_autoscaler.cluster.node_names import ELASTIC_LABEL
from ebbtide_autoscaler.control.fence_table import Fence, prefix
from ebbtide_autoscaler.core.observe.alerts import GatewayContact, alerts_of
from ebbtide_autoscaler.core.observe.observation import Observation
from ebbtide_autoscaler.core.tick.instructions import HoldFence, instruct
from tests.builders.cluster_watch import A, B, Scene, entry
from tests.builders.policy import CHAT, a_pool, fold, slots

NOW = 2_000.0
UNNEEDED_N1 = NodeDraining(NodeId("n1"), f"{UNNEEDED}r")
POOL = a_pool(nodes={"n0": 1, "n1": 2})


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_a_node_is_let_go_when_the_pool_itself_drained_it_and_nobody_is_left() -> None:
    assert let_go(POOL) == frozenset()
    assert let_go(fold(POOL, NodeDraining(NodeId("n1"), "a disk"))) == frozenset(), "it is a person's"
    assert let_go(fold(POOL, UNNEEDED_N1)) == {"n1"}
    granted = fold(POOL, GrantSeat(seat_id(CHAT, 0), slots(1, "n1"), "r"), UNNEEDED_N1)
    assert let_go(granted) == frozenset()


def test_no_fence_is_asked_for_on_a_node_that_is_let_go() -> None:
    open_slots = fold(POOL, *(SlotUnfenced(slot) for slot in POOL.slots))
    seen = Observation(started_s=0.0)
    assert {one.slot for one in instruct(open_slots, seen, NOW) if isinstance(one, HoldFence)} == set(POOL.slots)
    left = fold(open_slots, UNNEEDED_N1)
    assert {one.slot for one in instruct(left, seen, NOW) if isinstance(one, HoldFence)} == set(slots(1))
    back = fold(left, NodeUndrained(NodeId("n1")))
    assert {one.slot for one in instruct(back, seen, NOW) if isinstance(one, HoldFence)} == set(POOL.slots)


def test_nobody_misses_the_agent_of_a_node_that_is_let_go() -> None:
    seen = Observation(started_s=0.0)

    def silent(state: object) -> set[str]:
        found = alerts_of(state, seen, NOW, mode=PoolMode.MANAGE, mode_since_s=0.0, gateway=GatewayContact())  # type: ignore[arg-type]
        return {notice.name for notice in found if notice.about == "agent"}

    assert silent(POOL) == {"n0", "n1"}
    assert silent(fold(POOL, UNNEEDED_N1)) == {"n0"}


async def test_fences_and_agent_leave_it_and_come_back_when_it_is_taken_back(scene: Scene) -> None:
    scene.state = a_pool(nodes={A: 2, B: 2})
    await scene.look()
    scene.hear(A, {0: "a-0"})
    name = f"{prefix('p')}{A[:8]}:1"
    scene.book.names = {slot_id(A, 0): name, slot_id(B, 0): "stays"}
    scene.table[name] = Fence(name, "CREATED", str(A))
    watched = len(scene.agents[A].watched)
    kept = scene.state
    scene.state = fold(kept, NodeDraining(A, f"{UNNEEDED}r"))
    for _ in range(3):
        await scene.look()
    assert scene.dropped == [name] and scene.book.names == {slot_id(B, 0): "stays"}
    assert set(scene.stopped) == {A} and A not in scene.reports.agents
    assert len(scene.agents[A].watched) == watched
    assert scene.around.nodes == 3, "it lives"
    scene.state = kept
    await scene.look()
    assert scene.started.count(A) == 2 and len(scene.agents[A].watched) == watched + 1


async def test_the_agent_that_an_earlier_arbiter_started_is_ended_too(scene: Scene) -> None:
    scene.state = fold(a_pool(nodes={A: 2, B: 2}), NodeDraining(A, f"{UNNEEDED}r"))
    for _ in range(3):
        await scene.look()
    assert scene.stopped == [A] and scene.started == [B], "once, not each second"


@pytest.mark.proves("only a node that Ray can end goes")
async def test_which_nodes_the_cluster_may_take_away_is_known_by_their_label(scene: Scene) -> None:
    scene.nodes[1] = entry(A) | {"Labels": {ELASTIC_LABEL: "true"}}
    scene.nodes[2] = entry(B) | {"Labels": {ELASTIC_LABEL: "false"}}
    await scene.look()
    assert scene.around.elastic == {A: 2}
