"""One tick: what an observer's decision does not do, and the last look before anything is journaled."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ebbtide.client.messages import GatewayReport, Traffic
from ebbtide.pool.errors import InvariantViolated
from ebbtide.pool.events import Event, JobSubmitted, NodeFound, ParkJob
from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.ids import EndpointName, NodeId, RecordId
from ebbtide.pool.lookup.records import having
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import SlotState
from ebbtide_autoscaler.core.observe.observation import FenceView, Observation, Timestamped
from ebbtide_autoscaler.core.observe.traffic import traffic
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals, Memory
from ebbtide_autoscaler.core.tick import tick as step_module
from ebbtide_autoscaler.core.tick.tick import World, tick
from tests.autoscaler.closed_loop import KNOBS, a_job
from tests.builders.policy import NOW, RUNNING3, S0, a_pool

NODE = NodeId("n")
HELD = Timestamped(NOW, GatewayReport("g", "n0", 1.0, "http://g", 1, {"chat": Traffic(held=1, last_arrival_s=NOW)}))


@pytest.mark.proves("an observing pool moves nothing")
def test_an_observer_decides_what_could_be_done_at_once_and_does_it_not() -> None:
    world = World(RUNNING3, Memory(), 1)
    seen = Observation(started_s=NOW, fences=dict.fromkeys(RUNNING3.slots, FenceView.HELD), gateways={"g": HELD})
    manages = tick(world, seen, (), NOW, KNOBS)
    observes = tick(world, seen, (), NOW, replace(KNOBS, observe=True))
    assert [type(event.body) for event in manages.events] == [ParkJob]
    assert observes.events == () and observes.decision.moves == manages.decision.moves
    assert observes.world.state == RUNNING3


def test_traffic_is_made_of_reports_anew_only_after_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(state: PoolState, seen: Observation, now_s: float) -> Mapping[EndpointName, EndpointSignals]:
        made.append(now_s)
        return traffic(state, seen, now_s)

    monkeypatch.setattr(step_module, "traffic", counted)
    seen = Observation(started_s=NOW, fences=dict.fromkeys(RUNNING3.slots, FenceView.HELD), gateways={"g": HELD})
    world, at_hand = World(RUNNING3, Memory(), 1), traffic(RUNNING3, seen, NOW)
    alike = tick(world, seen, (), NOW, KNOBS)
    assert tick(world, seen, (), NOW, KNOBS, signals=at_hand) == alike and len(made) == 1
    tick(world, seen, (NodeFound(NODE, 1),), NOW, KNOBS, signals=at_hand)
    assert len(made) == 2, "what was submitted may have declared an endpoint"


def broken(state: PoolState) -> PoolState:
    """A slot that is leased to nobody."""
    slots = having(state.slots, {S0: replace(state.slots[S0], state=SlotState.LEASED)})
    return replace(state, slots=slots, jobs=having(state.jobs, {}))


@pytest.mark.proves("every event is checked against the promises before it is journaled")
def test_an_event_after_which_a_promise_would_be_broken_is_not_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if a later event of the same tick would hide it: the ledger would say that it was so."""
    world = World(a_pool(), Memory(), 1)

    def breaks_for_a_moment(state: PoolState, event: Event) -> PoolState:
        if event.id == "1.1":
            return broken(apply(state, event))
        return apply(replace(state, slots=world.state.slots), event)

    monkeypatch.setattr(step_module, "apply", breaks_for_a_moment)
    with pytest.raises(InvariantViolated, match="n0:0 is leased with occupant None"):
        tick(world, Observation(started_s=0.0), (NodeFound(NODE, 0), NodeFound(NodeId("m"), 0)), 5.0, KNOBS)
    assert world == World(a_pool(), Memory(), 1)


@pytest.mark.proves("the whole state is checked at the end of a tick")
def test_what_is_wrong_somewhere_else_is_found_at_the_end_of_the_tick() -> None:
    """As far as one event's own changes can tell, all is well."""
    wrong = World(broken(a_pool()), Memory(), 1)
    event = Event(RecordId("1.1"), 5.0, None, JobSubmitted(a_job(), "i"))
    assert apply(wrong.state, event).jobs
    with pytest.raises(InvariantViolated, match="n0:0"):
        tick(wrong, Observation(started_s=0.0), (event.body,), 5.0, KNOBS)
