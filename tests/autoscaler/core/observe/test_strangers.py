"""A slot that a stranger has is shown with his name, and is ours again when he has left."""

import pytest

from ebbtide.agent.slot_watch import UNLOCKED
from ebbtide.client.messages import AgentAnswer, AgentReport, LockHolder
from ebbtide.pool.events import Body, SlotForeign, SlotFreed, SlotUnfenced
from ebbtide.pool.ids import NodeId, SlotId, slot_id
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.observe.observation import FenceView, Observation, Timestamped
from ebbtide_autoscaler.core.observe.slot_facts import facts
from tests.builders.policy import S0, a_pool, fold

UNFENCED = fold(a_pool(), SlotUnfenced(S0))
NODE = NodeId("n0")


def of(state: PoolState, fence: FenceView, holder: LockHolder | None = None, who: str = "") -> list[Body]:
    report = AgentReport(
        "n0", "b", {index: holder if index == 0 else None for index in range(3)}, after=AgentAnswer("a", 10**6)
    )
    seen = Observation(
        started_s=0.0,
        agents={NODE: Timestamped(10**6, report)},
        fences={name: fence if name == S0 else FenceView.HELD for name in state.slots},
        strangers={SlotId(S0): who} if who else {},
    )
    return list(facts(state, seen, 10**6))


def test_a_placement_outside_of_the_pool_is_named_as_far_as_it_is_known() -> None:
    assert slot_id(NODE, 0) == S0
    (named,) = of(UNFENCED, FenceView.REFUSED, who="ray::train (pid 7, Ray job 02000000)")
    assert named == SlotForeign(S0, "its logical GPU is held by ray::train (pid 7, Ray job 02000000)")
    (unnamed,) = of(UNFENCED, FenceView.REFUSED)
    assert unnamed == SlotForeign(S0, "its logical GPU is held by a placement that is not of this pool")


@pytest.mark.parametrize(
    ("holder", "said"),
    [
        (LockHolder(f"{UNLOCKED} (python)", 0, 7, 1), f"it is occupied by {UNLOCKED} (python) (pid 7)"),
        (LockHolder("old-job", 3, 8, 1), "it is occupied by old-job (lease epoch 3, pid 8)"),
    ],
)
def test_a_process_on_the_gpu_and_a_holder_of_an_old_lease_are_named(holder: LockHolder, said: str) -> None:
    assert of(UNFENCED, FenceView.HELD, holder) == [SlotForeign(S0, said)]
    assert of(a_pool(), FenceView.HELD, holder) == [SlotUnfenced(S0)], "a free slot that somebody takes is not free"


def test_when_the_stranger_has_left_the_slot_is_ours_again() -> None:
    foreign = fold(UNFENCED, SlotForeign(S0, "x"))
    assert of(foreign, FenceView.REFUSED) == []
    assert of(foreign, FenceView.HELD, LockHolder("old-job", 3, 8, 1)) == []
    assert of(foreign, FenceView.HELD) == [SlotUnfenced(S0)]
    assert of(UNFENCED, FenceView.HELD) == [SlotFreed(S0)]
