"""The keeper of the size: what it drains, what it tells Ray and when, and what it does where Ray does not obey."""

from collections.abc import Mapping

import pytest

from ebbtide.pool.events import Body, NodeDraining, NodeUndrained
from ebbtide.pool.ids import EndpointName, NodeId, seat_id
from ebbtide.pool.rules.drain import UNNEEDED
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.cluster import node_scaler as keeper_module
from ebbtide_autoscaler.cluster.node_scaler import STUCK_S, TAKEN_S, NodeScaler
from ebbtide_autoscaler.cluster.resource_request import Request
from ebbtide_autoscaler.cluster.size import SizeConfig
from tests.autoscaler.closed_loop import an_endpoint
from tests.builders.policy import CHAT, a_pool, fold, slots, with_ready

NOW = 10_000.0
N0, N1 = NodeId("n0"), NodeId("n1")
CONFIG = SizeConfig(nodes_min=1, nodes_max=3, node_slots=2, grow_after_s=0.0, idle_after_s=600.0)
ELASTIC = {N0: 2, N1: 2}
STATE = a_pool(nodes={"n0": 2, "n1": 2}, endpoints=(an_endpoint(slots_per_replica=2),))
THREE: Mapping[EndpointName, int] = {CHAT: 3}


class Ray:
    """Keeps what it is told, or fails."""

    def __init__(self) -> None:
        self.told: list[Request] = []
        self.fail: Exception | None = None

    def __call__(self, request: Request) -> None:
        if self.fail is not None:
            raise self.fail
        self.told.append(request)


@pytest.fixture
def ray() -> Ray:
    return Ray()


class Scene:
    def __init__(self, ray: Ray) -> None:
        self.keeper = NodeScaler(ray)
        self.ray = ray

    async def tick(
        self,
        after_s: float = 0.0,
        *,
        state: PoolState = STATE,
        aims: Mapping[EndpointName, int] | None = None,
        config: SizeConfig | None = CONFIG,
        may_move: bool = True,
    ) -> tuple[Body, ...]:
        bodies = self.keeper.tick(NOW + after_s, state, aims or {}, config, ELASTIC, may_move=may_move)
        if self.keeper._sending is not None:
            await self.keeper._sending
        return bodies


@pytest.fixture
def scene(ray: Ray) -> Scene:
    return Scene(ray)


async def test_ray_is_told_at_a_change_and_again_from_time_to_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await scene.tick()
    assert len(scene.ray.told) == 1 and len(scene.ray.told[0]) == 2
    await scene.tick(aims=THREE)
    assert [len(request) for request in scene.ray.told] == [2, 3]
    monkeypatch.setattr(keeper_module, "RESEND_S", 0.0)
    await scene.tick(aims=THREE)
    assert scene.ray.told[1] == scene.ray.told[2], "somebody else may have replaced it"


async def test_a_node_that_nobody_needs_is_drained_with_the_reason(scene: Scene) -> None:
    assert await scene.tick() == ()
    (body,) = await scene.tick(600.0)
    assert isinstance(body, NodeDraining) and body.node == N0
    assert body.reason == f"{UNNEEDED}2 nodes of 1..3: n0 had nobody for 600 s, and all that is wanted fits without"
    assert scene.ray.told[-1] == ((2, {"ray.io/node-id": "n1"}),)


async def test_a_pool_that_may_not_move_shows_its_wish_and_does_nothing(scene: Scene) -> None:
    await scene.tick(may_move=False)
    assert await scene.tick(600.0, may_move=False) == ()
    assert scene.ray.told == []
    status = scene.keeper.status()
    assert status is not None and status["going"] == ["n0"]


async def test_why_ray_could_not_be_told_is_shown_where_somebody_waits_for_it(scene: Scene) -> None:
    scene.ray.fail = RuntimeError("no autoscaler")
    await scene.tick(aims=THREE)
    waits = scene.keeper.explained({"chat": "waits for 2 slots", "train": "waits"})
    assert waits["train"] == "waits"
    assert waits["chat"].startswith("waits for 2 slots; the cluster: 2 nodes of 1..3: 1 more asked for; ")
    assert waits["chat"].endswith("; Ray could not be told: no autoscaler")
    scene.ray.fail, scene.keeper._told_s = None, 0.0
    await scene.tick(aims=THREE)
    assert scene.keeper.trouble == "" and len(scene.ray.told) == 1


async def test_without_bounds_nothing_is_asked_for_and_what_was_is_taken_back(scene: Scene) -> None:
    assert await scene.tick(config=None) == () and scene.ray.told == []
    assert scene.keeper.status() is None and scene.keeper.explained({"a": "b"}) == {"a": "b"}
    await scene.tick(aims=THREE)
    drained = fold(STATE, NodeDraining(N1, f"{UNNEEDED}r"), NodeDraining(N0, "a disk"))
    assert await scene.tick(config=None, state=drained) == (NodeUndrained(N1),)
    assert scene.ray.told[-1] == ()


async def test_a_node_that_ray_does_not_take_is_used_again_and_left_alone_for_a_while(scene: Scene) -> None:
    drained = fold(STATE, NodeDraining(N0, f"{UNNEEDED}r"))
    assert await scene.tick(state=drained) == ()
    assert await scene.tick(TAKEN_S, state=drained) == ()
    assert await scene.tick(TAKEN_S + 1, state=drained) == (NodeUndrained(N0),)
    served = with_ready(STATE, seat_id(CHAT, 0), slots(2, "n1"))
    for after_s in (2.0, 1000.0):
        assert await scene.tick(TAKEN_S + after_s, state=served, aims={CHAT: 1}) == ()
    (body,) = await scene.tick(TAKEN_S + STUCK_S + 2, state=served, aims={CHAT: 1})
    assert isinstance(body, NodeDraining) and body.node == N0, "it is tried again"


async def test_a_pool_that_is_taken_down_asks_for_nothing_any_more(scene: Scene) -> None:
    await scene.keeper.leave()
    assert scene.ray.told == []
    await scene.tick(aims=THREE)
    await scene.keeper.leave()
    assert scene.ray.told[-1] == ()
