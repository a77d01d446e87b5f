"""What a rank hears of its node's agent: memory, a reason why not, or nothing at all. Without Ray: agents are faked."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayTaskError, WorkerCrashedError

from ebbtide.snapshot.errors import HostMemoryShort, PoolTooSmall
from ebbtide.snapshot.eviction.host_memory import OwnRegion
from ebbtide.snapshot.regions.region import Region
from ebbtide.snapshot.regions.region_creation import create_region
from ebbtide.snapshot.regions.region_states import RegionKey, RegionState
from ebbtide.snapshot.regions.region_view import RegionView
from ebbtide_train.session.parking.leftover_regions import Left, Outcome, Taken
from ebbtide_train.worker import node_memory as module
from ebbtide_train.worker.node_memory import LeftOnNodes, NodeMemory

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


@pytest.mark.proves("where there is no agent a rank parks in memory of its own")
def test_where_there_is_no_agent_it_is_memory_of_ones_own(agents: dict[str, Agent]) -> None:
    region = NodeMemory("here", KEY).lend(5000)
    assert isinstance(region, OwnRegion)
    region.close()


@pytest.mark.proves(
    "an agent of another version lends nothing",
    "an agent that does not answer lends nothing",
    "what an agent says when it lends nothing is told",
)
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RayTaskError("lend", "trace", HostMemoryShort("this node lends 5 bytes in all")), "lends 5 bytes in all"),
        (GetTimeoutError("late"), "does not answer"),
        (ActorDiedError(), "does not answer"),
        (AttributeError("of another version"), "does not answer"),
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
    Region.open(path).close()  # it was let go
    small = create_region(tmp_path, KEY, 4096)
    agents["here"] = Agent(lend=lambda *given: str(small))
    with pytest.raises(PoolTooSmall, match="4096 bytes: not what was asked for"):
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


@pytest.mark.proves(
    "on a node that is gone nothing is left",
    "what a silent node has left is unknown",
    "what an agent of another version has is unknown",
)
def test_of_nodes_that_are_gone_nothing_is_left_and_of_silent_ones_nobody_knows(agents: dict[str, Agent]) -> None:
    left = LeftOnNodes()
    assert left.look("there") == (), "nobody lends anything there"
    agents["gone"] = Agent(regions=raising(AssertionError("nobody is there")))
    agents["here"] = Agent(regions=raising(GetTimeoutError("late")), settle=raising(ActorDiedError()))
    agents["there"] = Agent(regions=list)
    assert [left.look(node) for node in ("gone", "here", "there", "new")] == [(), None, [], ()]
    left.settle("here", "job", 7)
    left.settle("new", "job", 7)
    agents["here"] = Agent()  # of another version
    assert left.look("here") is None
    left.settle("here", "job", 7)


class Context:
    """Of a process on node "here"."""

    def get_node_id(self) -> str:
        return "here"


class Tasks:
    """What was started elsewhere, with what comes of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, end: Callable[[], Taken]) -> None:
        self.options: dict[str, object] = {}
        self.cancelled: list[object] = []
        monkeypatch.setattr(ray, "remote", self.remote)
        monkeypatch.setattr(ray, "get", lambda _asked, timeout: end())
        monkeypatch.setattr(ray, "cancel", self.cancel)
        monkeypatch.setattr(ray, "get_runtime_context", Context)

    def remote(self, **options: object) -> Callable[[object], Any]:
        self.options = options
        return lambda _work: SimpleNamespace(remote=lambda *_, **__: None)

    def cancel(self, asked: object, *, force: bool) -> None:
        self.cancelled.append(force)
        raise TypeError("it is over already")  # one of Ray's words for it


def left_on(node: str) -> Left:
    view = RegionView(Path("region"), KEY, RegionState.FULL, 1, b"", borrower_lives=False, hashed=True)
    return Left(node, view)


@pytest.mark.proves("a region of this node is published here")
@pytest.mark.usefixtures("agents")
def test_a_state_is_published_on_the_node_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done, late = Taken(Outcome.PUBLISHED), iter([True, True])

    def end() -> Taken:
        if next(late, False):
            raise GetTimeoutError("it takes its time")
        return done

    tasks = Tasks(monkeypatch, end)
    monkeypatch.setattr(module, "publish_region", lambda path, run_dir, keep: Taken(Outcome.USELESS, "done here"))
    assert LeftOnNodes().publish(left_on("here"), tmp_path, keep=2).why == "done here" and not tasks.options
    assert LeftOnNodes().publish(left_on("there"), tmp_path, keep=2) is done
    assert tasks.options == {"num_cpus": 0, "max_retries": 0, "label_selector": {"ray.io/node-id": "there"}}
    assert not tasks.cancelled


@pytest.mark.usefixtures("agents")
@pytest.mark.parametrize(
    ("node", "patience_s", "error"),
    [
        ("there", 0.0, GetTimeoutError("late")),
        ("gone", 600.0, GetTimeoutError("it waits for its node")),
        ("there", 600.0, WorkerCrashedError()),
        ("there", 600.0, ValueError("no such node")),
    ],
)
def test_a_task_that_fails_or_takes_too_long_is_ended_and_tried_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, node: str, patience_s: float, error: Exception
) -> None:
    """Two must not write one checkpoint."""
    tasks = Tasks(monkeypatch, raising(error))
    monkeypatch.setattr(module, "PUBLISH_S", patience_s)
    taken = LeftOnNodes().publish(left_on(node), tmp_path, keep=2)
    assert taken.outcome is Outcome.LATER and f"{node} does not publish it" in taken.why
    assert tasks.cancelled == [True]


@pytest.mark.proves(
    "after a new start of the cluster all nodes are asked", "else only the nodes of the last gangs are asked"
)
def test_after_a_new_start_of_the_cluster_all_nodes_are_asked(agents: dict[str, Agent]) -> None:
    """Their ids are new, but the memory of the machines is not."""
    assert LeftOnNodes().nodes(["there"]) == ["there"]
    assert LeftOnNodes().nodes(["old", "there"]) == ["there", "here"]
