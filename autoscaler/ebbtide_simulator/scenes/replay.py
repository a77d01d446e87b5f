"""From a recording, and what shall be other than it was, to the scene that every contender plays.

Demand is known by five minutes, in requests at once: it becomes arrivals of as much work, with noise as its peaks say.
Jobs come when they came. One that finished has as much work as it trained for; of one that did not, nobody knows how
much it had left: it trains on until it was ended, or the recording was.

Not played again: what people did (holds, drains, a frozen pool), what failed but nodes, and single requests.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, floor, inf
from statistics import median

import numpy as np

from ebbtide.pool.ids import EndpointName, JobName
from ebbtide.pool.spec import EndpointSpec
from ebbtide_autoscaler.control import settings
from ebbtide_autoscaler.core.forecast.demand_bins import BIN_S, Bin, Demand, bin_of, grow
from ebbtide_autoscaler.core.plan.inputs import PolicyConfig
from ebbtide_simulator.model.engine import Engine, Saves, Times
from ebbtide_simulator.recorded.job_past import JobPast
from ebbtide_simulator.recorded.recording import Recording, known_bins
from ebbtide_simulator.recorded.replay_file import ReplayEndpoint, ReplayFile
from ebbtide_simulator.run.run import Scene, Service
from ebbtide_simulator.traffic.arrivals import ARRIVALS_S
from ebbtide_simulator.traffic.draws import DISPERSION, Job, Load, load
from ebbtide_simulator.traffic.trace_files import BadTrace
from ebbtide_simulator.traffic.traces import Array, Rates

FULL = 0.65  # of its speed, at which a replica has as many requests as it is meant to: as for all engines here
INSTANT = 1e12  # tokens per second: prompts are in a request's stay already
PEAK_OF_FIVE = 1.16  # standard deviations by which the highest of five minutes is above their mean, if they are normal
PEAK_OF_TWENTY = 1.87  # and of twenty stretches of 15 seconds


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recording as it is given to a simulation.

    Attributes:
        factor: what its demand is multiplied by.
        from_day: so many days after the ledger's beginning it begins; as it is shown.
    """

    recording: Recording
    factor: float = 1.0
    from_day: float = 0.0

    def __str__(self) -> str:
        """As a person gave it."""
        return f"{self.recording.folder.name}:{self.factor:g}" + (f":{self.from_day:g}" if self.from_day else "")


def replay_scene(file: ReplayFile, given: Recorded, seed: int) -> Scene:
    """What this seed draws.

    Raises:
        BadTrace: the file names an endpoint that was not there, or what it asks for cannot be.
    """
    one = given.recording
    nodes, each = shape(file, one)
    horizon_s = round(one.span_s)
    changes = {EndpointName(change.name): change for change in file.endpoints}
    unknown = sorted(changes.keys() - one.endpoints.keys())
    if unknown:
        there = ", ".join(sorted(one.endpoints)) or "none"
        raise BadTrace(f"{one.folder}: the ledger knows no endpoint {', '.join(unknown)}: there are {there}")
    services = tuple(
        _service(given, changes.get(name, ReplayEndpoint(name=name)), (nodes, each), 1000 * seed + number)
        for number, name in enumerate(sorted(one.endpoints))
    )
    absences = one.nodes.absences(one.begins_s, one.begins_s + horizon_s, nodes) if each == one.nodes.slots_each else ()
    first = bin_of(one.begins_s)
    return Scene(
        nodes=nodes,
        slots_per_node=each,
        host_bytes=one.nodes.host_bytes if file.pool.host_memory is None else file.pool.host_memory,
        services=services,
        jobs=jobs(file, one),
        times=times(file, one),
        seed=seed,
        tick_s=file.run.tick_s,
        warm_up_s=0.0,
        horizon_s=float(horizon_s),
        failures=absences,
        begins_s=one.begins_s,
        course_s=one.course_s,
        standing=one.standing,
        timed=True,
        prompt=True,
        known={
            name: _before(bins, first, given.factor)
            for name, bins in one.demand.items()
            if name in one.endpoints and any(number < first for number in bins)
        },
    )


def _before(bins: Mapping[int, Bin | None], first: int, factor: float) -> Demand:
    """What the forecast knows when it begins: the days before, multiplied as those are that are played."""
    return grow(
        Demand(),
        [
            (number, value and Bin(value.mean * factor, value.peak * factor, value.per_s * factor))
            for number, value in sorted(bins.items())
            if number < first
        ],
    )


def shape(file: ReplayFile, one: Recording) -> tuple[int, int]:
    """Nodes, and slots of each."""
    nodes, each = one.nodes.shape()
    return file.pool.nodes or nodes, file.pool.gpus_per_node or each


def reserve(file: ReplayFile, one: Recording) -> int:
    """Slots that jobs leave free."""
    if file.pool.reserve is not None:
        return file.pool.reserve
    return one.config.pool.reserve if one.config is not None else 0


def replay_policy(file: ReplayFile, one: Recording) -> PolicyConfig:
    """The knobs as the pool's arbiter had them last, and what the file says instead."""
    said = {name: getattr(file.policy, name) for name in file.policy.model_fields_set}
    policy = one.config.policy.model_copy(update=said) if one.config is not None else file.policy
    teams = settings.teams(one.config) if one.config is not None else ()
    return settings.policy_config(policy, reserve=reserve(file, one), teams=teams)


def times(file: ReplayFile, one: Recording) -> Times:
    """As measured, and what the file says instead."""
    workers = {job.spec.name: job.spec.workers_max for job in one.jobs}
    assumed = Times(saves=Saves(pause_s=0.0))  # what jobs did in their time is known, with the pauses in it
    if one.config is not None and one.config.jobs:
        every_s = median(job.checkpoint_every_s for job in one.config.jobs)
        assumed = replace(assumed, saves=replace(assumed.saves, every_s=every_s))
    said = {name: value for name, value in file.times.model_dump().items() if value is not None}
    return replace(one.durations.times(assumed, workers), **said)


def jobs(file: ReplayFile, one: Recording) -> tuple[Job, ...]:
    """Those that fit, by submission; of two with one name the second is told from the first."""
    found, seen, most = list[Job](), Counter[str](), gang_max(file, one)
    for past in one.jobs:
        seen[past.spec.name] += 1
        number = seen[past.spec.name]
        if past.spec.workers_min > most:
            continue
        name = past.spec.name if number == 1 else JobName(f"{past.spec.name}#{number}")
        spec = replace(past.spec, name=name, workers_max=min(past.spec.workers_max, most))
        found.append(replace(_job(past, one), spec=spec, workers_max=spec.workers_max))
    return tuple(found)


def gang_max(file: ReplayFile, one: Recording) -> int:
    """Slots of the largest gang that can ever run."""
    nodes, each = shape(file, one)
    return nodes * each - reserve(file, one)


def _job(past: JobPast, one: Recording) -> Job:
    ended_s = None if past.end_s is None else past.end_s - one.begins_s
    endless_s = (one.span_s + 1.0) * past.spec.workers_max
    work_s = max(past.trained_s - past.lost_s, 1e-3) if past.finished else endless_s
    return Job(
        past.submit_s - one.begins_s,
        past.spec.workers_min,
        past.spec.workers_max,
        work_s,
        spec=past.spec,
        until_s=None if past.finished else ended_s,
    )


def _service(given: Recorded, change: ReplayEndpoint, pool: tuple[int, int], seed: int) -> Service:
    one, name, (nodes, each) = given.recording, EndpointName(change.name), pool
    spec = _changed(one.endpoints[name], change)
    room = nodes * (each // spec.slots_per_replica)
    if room < max(1, spec.replicas_min):
        raise BadTrace(
            f"{one.folder}: endpoint {name} has replicas of {spec.slots_per_replica} GPUs of one node, and keeps "
            f"{max(1, spec.replicas_min)}; {nodes} nodes of {each} have room for {room}"
        )
    spec = replace(spec, replicas_max=min(spec.replicas_max, room))
    engine = engine_of(spec, one.durations.park_bytes.get(name, 0))
    drains_s = one.durations.drain_s.get(name)
    load = demand_load(given, name, change.stay_s, engine, seed)
    there = tuple(
        (float(floor(from_s - one.begins_s)), float(ceil(until_s - one.begins_s)) if until_s < one.ends_s else inf)
        for from_s, until_s in one.declared[name]
    )
    return Service(spec, engine, load, median(drains_s) if drains_s else None, there)


def _changed(spec: EndpointSpec, change: ReplayEndpoint) -> EndpointSpec:
    said = {one: value for one, value in change.model_dump(exclude={"name", "stay_s"}).items() if value is not None}
    try:
        return replace(spec, **said)
    except ValueError as error:
        raise BadTrace(str(error)) from error


def engine_of(spec: EndpointSpec, park_bytes: int) -> Engine:
    """A replica that is full with as many requests as it is meant to have at once.

    Tokens are not in the ledger: a request counts as one token for each second that it stays.
    """
    return Engine(
        prefill_tok_s=INSTANT,
        decode_tok_s=spec.target_requests / FULL,
        park_bytes=park_bytes,
        slots=spec.slots_per_replica,
        full=FULL,
        tpot_s=1.0,
    )


def demand_load(given: Recorded, name: EndpointName, stay_s: float, engine: Engine, seed: int) -> Load:
    """What an endpoint was asked for, second by second.

    Args:
        stay_s: of a request, where the ledger says nothing.
    """
    one = given.recording
    horizon_s = round(one.span_s)
    nothing = np.zeros(horizon_s)
    bins = [(n, value) for n, value in known_bins(one, name) if bin_of(one.begins_s) <= n <= bin_of(one.ends_s)]
    if not bins:
        return Load(nothing, nothing, 0.0, stay_s)
    at_s = np.array([(number + 0.5) * BIN_S - one.begins_s for number, _ in bins])
    mean, peak, told = (np.array([getattr(value, what) for _, value in bins]) for what in ("mean", "peak", "per_s"))
    stays_s = _stays(at_s, mean, told, stay_s)
    per_s = mean / stays_s
    surplus = (peak - mean) / stays_s - PEAK_OF_TWENTY * np.sqrt(DISPERSION * per_s / ARRIVALS_S)
    noise = np.maximum(surplus, 0.0) / PEAK_OF_FIVE
    curves, seconds = np.stack([at_s, per_s, noise, np.zeros_like(per_s), stays_s]), np.arange(horizon_s)
    there, lines = np.zeros(horizon_s, bool), list[Array]()
    for span_s in ((from_s - one.begins_s, until_s - one.begins_s) for from_s, until_s in one.declared.get(name, ())):
        known = curves[:, (at_s + BIN_S / 2 > span_s[0]) & (at_s - BIN_S / 2 < span_s[1])]
        if known.size:
            lines.append(_lines(known, *span_s))
            there |= (seconds >= span_s[0]) & (seconds < span_s[1])
    if not lines:
        return Load(nothing, nothing, 0.0, stay_s)
    points = np.concatenate([*lines, lines[-1][:, -1:]], axis=1)
    points[0, -1] = max(points[0, -1], horizon_s)
    drawn = load(Rates(*points), engine, given.factor, (0.0, stay_s), seed)
    return replace(drawn, work_s=drawn.work_s[:horizon_s] * there, requests=drawn.requests[:horizon_s] * there)


def _lines(curves: Array, from_s: float, until_s: float) -> Array:
    """What is known of one time in which an endpoint was there; at its edges it is as in the bin next to them.

    Args:
        curves: times and what was known then; of shape (curves, bins).
    """
    at_s = curves[0]
    points = np.concatenate([[from_s], at_s[(at_s > from_s) & (at_s < until_s)], [until_s]])
    return np.stack([points, *(np.interp(points, at_s, curve) for curve in curves[1:])])


def _stays(at_s: Array, mean: Array, per_s: Array, instead_s: float) -> Array:
    """Of each bin's requests, by Little's law; a straight line where nothing came, or nobody counted what did."""
    known = (mean > 0) & (per_s > 0)
    if not known.any():
        return np.full_like(at_s, instead_s)
    found: Array = np.interp(at_s, at_s[known], mean[known] / per_s[known])
    return found
