"""What the arbiter sees of a cluster, without one."""

import time
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import PendingCallsLimitExceeded

from ebbtide.client.messages import AgentReport
from ebbtide.pool.ids import JobName, NodeId, SeatId
from ebbtide.pool.state import PoolState
from ebbtide.system.code_digest import code_digest
from ebbtide_autoscaler.control import agent_handles, fence_placement_groups
from ebbtide_autoscaler.control.cluster_watch import ClusterWatch
from ebbtide_autoscaler.control.fence_sync import FenceSync
from ebbtide_autoscaler.control.fence_table import Fence, FenceTable
from ebbtide_autoscaler.control.inbox import Inbox, timestamped

HEAD, A, B = "head0000", NodeId("aaaaaaaa11"), NodeId("bbbbbbbb22")


def entry(node: str, gpus: int = 2, *, alive: bool = True) -> dict[str, Any]:
    resources = {"GPU": float(gpus)} if gpus else {}
    return {
        "NodeID": node,
        "Alive": alive,
        "Resources": resources if alive else {},
        "NodeManagerAddress": "10.0.0.1",
        "NodeManagerPort": 7,
    }


class Method:
    def __init__(self, note: list[Any], fail: Exception | None) -> None:
        self._note, self._fail = note, fail

    def remote(self, *args: Any) -> None:
        if self._fail is not None:
            raise self._fail
        self._note.append(args)


class Agent:
    def __init__(self, node: str) -> None:
        self.node = node
        self.watched: list[Any] = []
        self.fail: Exception | None = None
        self.runs: str | Exception = code_digest()

    @property
    def code(self) -> Any:
        said: Future[str] = Future()
        if isinstance(self.runs, PendingCallsLimitExceeded):
            raise self.runs
        if isinstance(self.runs, str):
            said.set_result(self.runs)
        else:
            said.set_exception(self.runs)
        return SimpleNamespace(remote=lambda: SimpleNamespace(future=lambda: said))

    @property
    def watch(self) -> Method:
        return Method(self.watched, self.fail)


class Serve:
    async def living(self) -> Mapping[SeatId, tuple[str, ...]]:
        return {}


class Jobs:
    async def restorable(self) -> frozenset[JobName]:
        return frozenset()


class Scene:
    """A cluster of a head and some nodes, seen through monkeypatched calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes = [entry(HEAD, 0), entry(A), entry(B)]
        self.table: dict[str, Fence] = {}
        self.dropped: list[str] = []
        self.agents: dict[str, Agent] = {}
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.killed: list[Agent] = []
        self.reports = Inbox(started_s=time.time())
        self.book = FenceTable()
        self.state = PoolState()

        def start_agent(node: str, lock_dir: str) -> Agent:
            self.started.append(node)
            return self.agents.setdefault(node, Agent(node))

        def drop(name: str) -> None:
            self.dropped.append(name)
            self.table.pop(name, None)

        class Context:
            def get_node_id(self) -> str:
                return HEAD

        monkeypatch.setattr(ray, "nodes", lambda: self.nodes)
        monkeypatch.setattr(ray, "get_runtime_context", Context)
        monkeypatch.setattr(fence_placement_groups, "table", lambda pool: dict(self.table))
        monkeypatch.setattr(fence_placement_groups, "drop", drop)
        monkeypatch.setattr(agent_handles, "start_agent", start_agent)
        monkeypatch.setattr(agent_handles, "stop_agent", self.stopped.append)
        monkeypatch.setattr(ray, "kill", lambda agent, no_restart: self.killed.append(agent))
        self.fences = FenceSync("p", self.book)
        self.left: frozenset[NodeId] = frozenset()
        self.around = ClusterWatch(self.reports, self.book, self.fences, Serve(), Jobs(), "/locks")  # type: ignore[arg-type]

    async def look(self) -> list[Any]:
        await self.around._look_at_nodes(1000, self.state, self.left)
        found = list(self.reports.submitted)
        self.reports.submitted.clear()
        return found

    def hear(self, node: NodeId, uuids: Mapping[int, str]) -> None:
        self.reports.agents[node] = timestamped(AgentReport(str(node), "boot", {}, 0.0, uuids))
