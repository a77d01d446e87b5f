"""What a rank hears of its node's agent: memory, a reason why not, or nothing at all. Without Ray: agents are faked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayTaskError

from ebbtide.snapshot.errors import HostMemoryShort, PoolTooSmall
from ebbtide.snapshot.host_memory import OwnRegion
from ebbtide.snapshot.regions.create import create_region
from ebbtide.snapshot.regions.region import Region
from ebbtide.snapshot.regions.states import RegionKey
from ebbtide_train.node_memory import LeftOnNodes, NodeMemory

KEY = RegionKey("job", 7, 1)


class Method:
    """``handle.method.remote(...)`` gives what is to be got."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.remote = lambda *given: lambda: answer(*given)


class Agent:
    """A handle."""

    def __init__(self, **answers: Callable[..., Any]) -> None:
        for name, answer in answers.items():
            setattr(self, name, Method(answer))


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> dict[str, Agent]:
    """The agents that are registered; nodes "here" and "there" are alive."""
    found: dict[str, Agent] = {}

    def get_actor(name: str, namespace: str) -> Agent:
        if name.removeprefix("agent-") not in found:
            raise ValueError(f"Failed to look up actor {name}")
        return found[name.removeprefix("agent-")]

    def nodes() -> list[dict[str, object]]:
        return [{"NodeID": name, "Alive": name != "gone"} for name in ("here", "there", "gone")]

    monkeypatch.setattr(ray, "get_actor", get_actor)
    monkeypatch.setattr(ray, "get", lambda asked, timeout: asked())
    monkeypatch.setattr(ray, "nodes", nodes)
    return found


def raising(error: Exception) -> Callable[..., Any]:
    def answer(*given: object) -> Any:
        raise error

    return answer


def test_what_the_agent_lends_is_borrowed(agents: dict[str, Agent], tmp_path: Path) -> None:
    def lend(job: str, lease_epoch: int, rank: int, size_bytes: int) -> str:
        return str(create_region(tmp_path, RegionKey(job, lease_epoch, rank), size_bytes))

    agents["here"] = Agent(lend=lend)
    region = NodeMemory("here", KEY).lend(5000)
    assert isinstance(region, Region) and region.key == KEY and region.size_bytes >= 5000
    region.close()


def test_where_there_is_no_agent_it_is_memory_of_ones_own(agents: dict[str, Agent]) -> None:
    region = NodeMemory("here", KEY).lend(5000)
    assert isinstance(region, OwnRegion)
    region.close()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RayTaskError("lend", "trace", HostMemoryShort("this node lends 5 bytes in all")), "lends 5 bytes in all"),
        (GetTimeoutError("late"), "does not answer"),
        (ActorDiedError(), "does not answer"),
    ],
)
def test_a_refusal_says_why(agents: dict[str, Agent], error: Exception, said: str) -> None:
    agents["here"] = Agent(lend=raising(error))
    with pytest.raises(PoolTooSmall, match=said):
        NodeMemory("here", KEY).lend(5000)


def test_memory_that_is_not_what_was_asked_for_is_not_used(agents: dict[str, Agent], tmp_path: Path) -> None:
    path = create_region(tmp_path, RegionKey("other", 7, 1), 5000)
    agents["here"] = Agent(lend=lambda *given: str(path))
    with pytest.raises(PoolTooSmall, match="other"):
        NodeMemory("here", KEY).lend(5000)
    agents["here"] = Agent(lend=lambda *given: str(tmp_path / "nowhere"))
    with pytest.raises(PoolTooSmall, match="nowhere"):
        NodeMemory("here", KEY).lend(5000)


def test_memory_that_somebody_else_took_meanwhile_is_asked_for_again(agents: dict[str, Agent], tmp_path: Path) -> None:
    taken = Region.open(create_region(tmp_path, RegionKey("other", 7, 1), 5000))
    paths = [taken.path, taken.path, create_region(tmp_path, KEY, 5000)]
    agents["here"] = Agent(lend=lambda *given: str(paths.pop(0)))
    region = NodeMemory("here", KEY).lend(5000)
    assert region.size_bytes >= 5000 and not paths
    paths = [taken.path] * 9
    with pytest.raises(PoolTooSmall, match="used by another process"):
        NodeMemory("here", KEY).lend(5000)
    region.close()
    taken.close()


def test_of_nodes_that_are_gone_nothing_is_left_and_of_silent_ones_nobody_knows(agents: dict[str, Agent]) -> None:
    left = LeftOnNodes()
    agents["gone"] = Agent(regions=raising(AssertionError("nobody is there")))
    agents["here"] = Agent(regions=raising(GetTimeoutError("late")), settle=raising(ActorDiedError()))
    agents["there"] = Agent(regions=list)
    assert [left.look(node) for node in ("gone", "here", "there", "new")] == [(), None, [], ()]
    left.settle("here", "job", 7)


def test_after_a_new_start_of_the_cluster_all_nodes_are_asked(agents: dict[str, Agent]) -> None:
    """Their ids are new, but the memory of the machines is not."""
    assert LeftOnNodes().nodes(["there"]) == ["there"]
    assert LeftOnNodes().nodes(["old", "there"]) == ["there", "here"]
