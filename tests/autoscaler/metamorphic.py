"""What must change nothing about a decision: other names, another origin of time, another order of what is looked at.

The decisions are those that the simulator's storms bring about (`chaos`), each taken again on a state that is the same
but for names, times or orders. Ties between jobs break by their submission, those between endpoints by their
declaration: the order of endpoints is the file's, and is left as it is.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from pydantic import TypeAdapter

from ebbtide.pool.events import Decision, Event, GrantJob, GrantSeat
from ebbtide.pool.ids import EndpointName
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.jobs.preemption_cost import MAY_STEP_ASIDE, preemption_costs
from ebbtide_autoscaler.core.observe.observation import Observation
from ebbtide_autoscaler.core.observe.traffic import traffic
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals, PolicyConfig, Snapshot
from ebbtide_autoscaler.core.tick.tick import TickResult, World
from ebbtide_autoscaler.journal.recovery import MEMORY, STATE, plain
from tests.autoscaler.referee import before_the_moves

A_WEEK_S = 7 * 86_400  # seasons are the same then
TIMES = re.compile(r"(_s|_since_s|_at_s)$")
LASTING = frozenset({"grace_s", "min_runtime_s", "start_s", "wake_s", "drain_s", "lasted_s"})
DATES = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
SIGNALS: TypeAdapter[dict[EndpointName, EndpointSignals]] = TypeAdapter(dict[EndpointName, EndpointSignals])


@dataclass(frozen=True, slots=True)
class Taken:
    """A decision that was taken: all that it was taken on, as JSON where names and times are in it."""

    now_s: float
    state: Any
    memory: Any
    traffic: Any
    restart_costs: Mapping[Any, Any]
    config: PolicyConfig

    def decide(self) -> Decision:
        """Again."""
        state = STATE.validate_python(self.state)
        snapshot = Snapshot(state, SIGNALS.validate_python(self.traffic), dict(self.restart_costs))
        return decide(self.now_s, snapshot, MEMORY.validate_python(self.memory), self.config)[0]


class Collector:
    """Sits where the referee does, and keeps every decision that moved something, ``most`` of them."""

    def __init__(self, most: int) -> None:
        self.taken: list[Taken] = []
        self._most = most

    def judge(self, now_s: float, before: World, result: TickResult, seen: Observation, config: PolicyConfig) -> None:
        """Keep it."""
        if len(self.taken) >= self._most or not result.decision.moves:
            return
        state, _ = before_the_moves(before.state, result.events, result.decision.moves)
        ways = preemption_costs(state, seen, restart_s=config.restart_cost_s, states=MAY_STEP_ASIDE)
        self.taken.append(
            Taken(
                now_s,
                plain(state),
                MEMORY.dump_python(before.memory, mode="json"),
                SIGNALS.dump_python(dict(traffic(state, seen, now_s)), mode="json"),
                ways,
                config,
            )
        )

    def found(self, state: PoolState, events: Sequence[Event]) -> None:
        """It keeps decisions only."""


def renamed(one: Taken) -> tuple[Taken, Callable[[str], str]]:
    """Other names, which sort the other way round; and how to read them."""
    names = sorted([*one.state["jobs"], *one.state["endpoints"]])
    new = {name: f"w{len(names) - n:03}" for n, name in enumerate(names)}
    old = {there: name for name, there in new.items()}

    def replaced(value: Any, by: Mapping[str, str]) -> Any:
        words = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in sorted(by, key=len, reverse=True)))
        return json.loads(words.sub(lambda found: by[found[0]], json.dumps(value)))

    costs = {new[name]: cost for name, cost in one.restart_costs.items()}
    state, memory, traffic_then = (replaced(part, new) for part in (one.state, one.memory, one.traffic))
    then = Taken(one.now_s, state, memory, traffic_then, costs, one.config)
    return then, lambda text: str(replaced(text, old))


def later(one: Taken) -> Taken:
    """The same a week later."""

    def moved(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            inner = name if name in ("grow_since_s",) else ""
            return {key: moved(part, inner or key) for key, part in value.items() if key != "spec"} | (
                {"spec": value["spec"]} if "spec" in value else {}
            )
        if isinstance(value, list):
            return [moved(part, name) for part in value]
        is_time = isinstance(value, float | int) and TIMES.search(name) and name not in LASTING
        return value + A_WEEK_S if is_time and value else value

    then = {name: part | {"last_arrival_s": moved(part["last_arrival_s"], "_s")} for name, part in one.traffic.items()}
    return Taken(one.now_s + A_WEEK_S, moved(one.state), moved(one.memory), then, one.restart_costs, one.config)


def reordered(one: Taken, random: Random) -> Taken:
    """What is looked at in another order; endpoints in theirs."""

    def shuffled(mapping: Mapping[str, Any]) -> dict[str, Any]:
        names = list(mapping)
        random.shuffle(names)
        return {name: mapping[name] for name in names}

    kept = ("endpoints",)
    state = {
        name: shuffled(part) if isinstance(part, dict) and name not in kept else part
        for name, part in one.state.items()
    }
    return Taken(one.now_s, state, one.memory, shuffled(one.traffic), shuffled(one.restart_costs), one.config)


def differences(one: Taken, random: Random) -> Iterator[str]:
    """What changed a decision that should not have."""
    was = one.decide()
    told = "\n".join([*map(repr, was.moves), *(f"{who}: {why}" for who, why in was.waits)])
    other, back = renamed(one)
    found = other.decide()
    moves = [back(repr(move)) for move in found.moves]
    if moves != [repr(move) for move in was.moves]:
        yield f"other names: {moves}, not {told}"
    found = later(one).decide()
    if found.moves != was.moves or DATES.sub("", str(found.waits)) != DATES.sub("", str(was.waits)):
        yield f"a week later: {found}, not {told}"
    found = reordered(one, random).decide()
    if [_of(move) for move in found.moves] != [_of(move) for move in was.moves]:
        yield f"another order: {found.moves}, not {told}"


def _of(move: Any) -> Any:
    """A move, whatever the order of its slots."""
    return (
        (type(move), str(move.seat if isinstance(move, GrantSeat) else move.job), sorted(move.slots))
        if isinstance(move, GrantJob | GrantSeat)
        else move
    )
