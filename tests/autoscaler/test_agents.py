"""Handles on node agents: who is started anew, and who is killed for hanging."""

from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.pool.ids import NodeId
from ebbtide_autoscaler.control import agent_handles
from ebbtide_autoscaler.control.agent_handles import HUNG_S, SILENT_S, AgentHandles

NODE = NodeId("n0")


class FakeRay:
    """Starts and kills of agents, at a time that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.started = 0
        self.killed: list[float] = []

    def start(self, node: str, lock_dir: str) -> Any:
        self.started += 1
        return SimpleNamespace(watch=SimpleNamespace(remote=lambda *told: None))

    def kill(self, handle: Any, *, no_restart: bool) -> None:
        assert not no_restart
        self.killed.append(self.now_s)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    found = FakeRay()
    monkeypatch.setattr(agent_handles, "start_agent", found.start)
    monkeypatch.setattr(agent_handles, "ray", SimpleNamespace(kill=found.kill))
    monkeypatch.setattr(agent_handles, "time", SimpleNamespace(monotonic=lambda: found.now_s))
    return found


def look(handles: AgentHandles, silent_s: float) -> None:
    handles.watch({NODE: ()}, {NODE: silent_s}, 0, ())


def test_a_node_that_has_just_joined_has_not_been_silent_since_before_it_was_there(fake: FakeRay) -> None:
    handles = AgentHandles("/locks")
    look(handles, 500.0)  # as long as this arbiter has lived
    assert (fake.started, fake.killed) == (1, [])
    for _ in range(int(HUNG_S)):
        fake.now_s += 1.0
        look(handles, 500.0 + fake.now_s)
    assert fake.killed == [], "it is looked up by name again, and given its time"
    assert fake.started > 1
    fake.now_s += 1.0
    look(handles, 500.0 + fake.now_s)
    assert len(fake.killed) == 1


def test_one_that_hangs_is_killed_once_in_a_while(fake: FakeRay) -> None:
    handles = AgentHandles("/locks")
    look(handles, 0.0)
    fake.now_s += 2 * HUNG_S
    look(handles, HUNG_S + 1.0)
    assert fake.killed == [fake.now_s]
    fake.now_s += SILENT_S
    look(handles, HUNG_S + 1.0 + SILENT_S)
    assert len(fake.killed) == 1, "it has to come back first"
