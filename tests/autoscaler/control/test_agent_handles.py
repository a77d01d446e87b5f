"""Handles on node agents: who is started anew, and who is killed for hanging."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, PendingCallsLimitExceeded

from ebbtide.pool.ids import NodeId
from ebbtide.system.code_digest import code_digest
from ebbtide_autoscaler.control import agent_handles
from ebbtide_autoscaler.control.agent_handles import HUNG_S, SILENT_S, AgentHandles
from tests.builders.cluster_watch import Agent

NODE = NodeId("n0")


def not_started(why: str) -> ActorDiedError:
    """As of an actor whose class cannot be imported on its node, or whose constructor fails."""
    error = ActorDiedError()
    error.args = (why,)
    error.error_msg = why
    error._actor_init_failed = True
    return error


class FakeRay:
    """Starts and kills of agents, at a time that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.started = self.ended = 0
        self.agents: list[Agent] = []
        self.killed: list[float] = []
        self.runs: str | Exception = code_digest()

    def start(self, node: str, lock_dir: str) -> Any:
        self.started += 1
        self.agents.append(Agent(node))
        self.agents[-1].runs = self.runs
        return self.agents[-1]

    def stop(self, node: str) -> None:
        self.ended += 1

    def kill(self, handle: Any, *, no_restart: bool) -> None:
        assert not no_restart
        self.killed.append(self.now_s)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    found = FakeRay()
    monkeypatch.setattr(agent_handles, "start_agent", found.start)
    monkeypatch.setattr(agent_handles, "stop_agent", found.stop)
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


@pytest.mark.proves("a node with other code is told of no slot")
@pytest.mark.parametrize(
    ("runs", "named"),
    [
        ("0123456789ab", "ebbtide code 0123456789ab"),
        (not_started("The actor with name NodeAgent failed to import on the worker."), "another version of ebbtide"),
        (not_started("\nOSError: no space left\n"), "an agent that cannot start (OSError: no space left)"),
    ],
)
def test_a_node_that_runs_other_code_is_refused_by_name_until_it_runs_ours(
    fake: FakeRay, runs: str | Exception, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its agent reports all the while: nobody is silent."""
    handles, fake.runs = AgentHandles("/locks"), runs
    for _ in range(5):
        look(handles, 0.0)
    assert not any(agent.watched for agent in fake.agents), "it is told of no slot"
    assert named in handles.codes.refused[NODE] and code_digest() in handles.codes.refused[NODE]
    assert caplog.text.count("node n0 is refused") == 1, "said once"
    assert (fake.started, fake.ended) == (2, 1), "in a new process it may run what is installed by now"

    fake.runs = code_digest()
    fake.now_s += HUNG_S + 1.0
    for _ in range(3):
        look(handles, 0.0)
    assert handles.codes.refused == {} and fake.agents[-1].watched and (fake.started, fake.ended) == (3, 2)


def test_an_agent_that_died_before_it_said_which_code_it_runs_is_asked_again(fake: FakeRay) -> None:
    handles, fake.runs = AgentHandles("/locks"), TimeoutError("it died")
    look(handles, 0.0)
    assert handles.codes.refused == {}
    fake.agents[-1].runs = "0123456789ab"  # it is back, and nobody noticed that it was away
    for _ in range(2):
        look(handles, 0.0)
    assert NODE in handles.codes.refused


def test_an_agent_that_takes_no_more_calls_keeps_no_other_node_from_being_watched(fake: FakeRay) -> None:
    handles, other = AgentHandles("/locks"), NodeId("n1")
    handles.watch({NODE: (), other: ()}, {}, 0, ())
    hangs, lives = fake.agents
    hangs.fail = hangs.runs = PendingCallsLimitExceeded()
    handles.codes.ask_again(NODE)
    handles.watch({NODE: (), other: ()}, {}, 0, ())
    assert (len(hangs.watched), len(lives.watched)) == (1, 2)
