"""The simulator plays a live run's window: the requests as they were sent, the pool as it was, times from elsewhere.

What is taken from the run that is checked: its file, its requests, and what was there when its window began. Nothing
of how long anything took in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.demo.account import read_events
from benchmarks.fidelity.live import Lived
from ebbtide.pool.events import SeatReady
from ebbtide.pool.ids import EndpointName
from ebbtide_autoscaler.core.decide.idle_cache import IdleCache
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.forecast.demand_bins import Demand, bin_of, grow
from ebbtide_simulator.model.engine import Engine, Times
from ebbtide_simulator.recorded.recording import Recording, Stretch, read_recording
from ebbtide_simulator.recorded.replay_file import ReplayFile
from ebbtide_simulator.run.run import Outcome, Run, Scene, Service
from ebbtide_simulator.scenes.replay import jobs, replay_policy, shape
from ebbtide_simulator.traffic.draws import Load, load
from ebbtide_simulator.traffic.traces import Requests

AS_IT_WAS = ReplayFile()
FIRST_STAY_S = (
    0.5  # of the very first request at its replica, as the arbiter's reasons have it in the runs where they knew it
)


@dataclass(frozen=True, slots=True)
class Model:
    """What a replay needs to know of speeds and times.

    Attributes:
        times: of moves.
        engine: of a replica.
        drain_s: until a replica that was told to go is gone.
        front_s: of a first token, beyond what its engine takes: client, gateway and back.
    """

    times: Times
    engine: Engine
    drain_s: float
    front_s: float


def recorded(lived: Lived, span_s: float) -> Recording:
    """What the ledger says of the window."""
    return read_recording(lived.shared, Stretch(begins_s=lived.start_s, span_s=span_s))


def asked(lived: Lived, engine: Engine, span_s: int) -> Load:
    """The requests as they were sent, with their tokens."""
    order = sorted(lived.outcomes, key=lambda one: one.sent_s)
    trace = Requests(
        np.array([max(0.0, one.sent_s - lived.start_s) for one in order]),
        np.array([float(lived.requests[one.number].prompt_tokens) for one in order]),
        np.array([float(one.tokens) for one in order]),
    )
    return lasting(load(trace, engine, 1.0, (0.0, 0.0), 0), span_s)


def lasting(one: Load, span_s: int) -> Load:
    """The load, and silence after it up to ``span_s``; what comes later is none of it."""
    rows = one.rows
    assert rows is not None
    more = max(0, span_s - len(one.work_s))
    return replace(
        one,
        work_s=np.append(one.work_s, np.zeros(more))[:span_s],
        requests=np.append(one.requests, np.zeros(more))[:span_s],
        rows=replace(rows, first=np.append(rows.first, np.full(more, rows.first[-1]))[: span_s + 1]),
    )


def scene(lived: Lived, one: Recording, model: Model) -> Scene:
    """What the simulator is given."""
    nodes, each = shape(AS_IT_WAS, one)
    name = next(iter(one.endpoints))
    assert one.config is not None
    first = bin_of(one.begins_s)
    return Scene(
        nodes=nodes,
        slots_per_node=each,
        host_bytes=one.nodes.host_bytes,
        services=(
            Service(one.endpoints[name], model.engine, asked(lived, model.engine, round(one.span_s)), model.drain_s),
        ),
        jobs=jobs(AS_IT_WAS, one),
        times=model.times,
        seed=0,
        tick_s=one.config.policy.tick_s,
        warm_up_s=0.0,
        horizon_s=float(round(one.span_s)),
        begins_s=one.begins_s,
        course_s=1,
        standing=replace(one.standing, stays_s=_first_answer(lived, one.begins_s, name)),
        known=_before(one, first),
        singly=True,
        prompt=True,
    )


def _first_answer(lived: Lived, begins_s: float, name: EndpointName) -> Mapping[EndpointName, tuple[float, float]]:
    """What gateways know of the request that came before the job: it was answered when the first replica was there."""
    ready_s = next(event.at_s for event in read_events(lived.shared / "ledger") if isinstance(event.body, SeatReady))
    return {name: (begins_s - ready_s - FIRST_STAY_S, FIRST_STAY_S)}


def _before(one: Recording, first: int) -> Mapping[EndpointName, Demand]:
    """Demand of before the window, as the pool's forecast knew it."""
    return {
        name: grow(Demand(), [(number, value) for number, value in sorted(bins.items()) if number < first])
        for name, bins in one.demand.items()
        if any(number < first for number in bins)
    }


def played(lived: Lived, one: Recording, model: Model) -> Outcome:
    """What the simulator says of the window, under the policy of the pool's file."""
    return Run(scene(lived, one, model), partial(decide, cache=IdleCache()), replay_policy(AS_IT_WAS, one)).outcome()
