"""From a simulation's file, traces and a seed to the scene that every contender plays."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from ebbtide_autoscaler.signals import PolicyConfig
from ebbtide_autoscaler.simulate.draws import Job, jobs, lasting, load, replicas_needed
from ebbtide_autoscaler.simulate.engine import ENGINES, Times
from ebbtide_autoscaler.simulate.file import SimulationFile
from ebbtide_autoscaler.simulate.run import Scene, Service, endpoint_spec
from ebbtide_autoscaler.simulate.traces import Array, BadTrace, Jobs, Serving, read_jobs, read_serving

DAY_S = 86_400.0
FACTOR_MAX = 1e6
CURVE_S = 600  # what is beyond for a minute may wait


@dataclass(frozen=True, slots=True)
class Named:
    """A trace's file, what it is multiplied by or how many of its rows are kept, and the day on which it begins."""

    path: Path
    factor: float = 1.0
    from_day: float = 0.0


@dataclass(frozen=True, slots=True)
class Inputs:
    """All traces, read and sound."""

    serving: tuple[tuple[Named, Serving], ...]
    jobs: tuple[tuple[Named, Jobs], ...]


def read(serving: Sequence[Named], job_files: Sequence[Named]) -> Inputs:
    """Read every trace.

    Raises:
        BadTrace: one is none, or a share of its jobs is no share.
    """
    for one in serving:
        if not 0 < one.factor <= FACTOR_MAX:
            raise BadTrace(f"{one.path}: a rate cannot be multiplied by {one.factor:g}")
    for one in job_files:
        if not 0 < one.factor <= 1:
            raise BadTrace(f"{one.path}: a share of {one.factor:g} of its jobs cannot be kept; from 0 to 1 can")
    return Inputs(
        tuple((one, _sound(one, read_serving(one.path))) for one in serving),
        tuple((one, _from(one, read_jobs(one.path))) for one in job_files),
    )


def _sound(named: Named, trace: Serving) -> Serving:
    _has_day(named, trace.at_s)
    return trace


def _has_day(named: Named, times: Array) -> None:
    if not 0.0 <= named.from_day * DAY_S <= times[-1]:
        raise BadTrace(f"{named.path}: it has {times[-1] / DAY_S:.2f} days, and cannot begin on day {named.from_day:g}")


def _from(named: Named, trace: Jobs) -> Jobs:
    """The jobs from a day on, which becomes the first."""
    _has_day(named, trace.submit_s)
    kept = trace.submit_s >= named.from_day * DAY_S
    return Jobs(trace.submit_s[kept] - named.from_day * DAY_S, trace.duration_s[kept], trace.gpus[kept])


def scene(file: SimulationFile, inputs: Inputs, seed: int) -> Scene:
    """What this seed draws.

    Raises:
        BadTrace: there are more traces than endpoints, or demand is beyond the pool.
    """
    if len(inputs.serving) > len(file.endpoints):
        raise BadTrace(f"{len(inputs.serving)} serving traces for {len(file.endpoints)} endpoints: name more endpoints")
    slots = file.pool.nodes * file.pool.gpus_per_node
    services = []
    loads = [
        load(
            trace, ENGINES[model.engine], named.factor, (model.prompt_tokens, model.output_tokens), 1000 * seed + number
        )
        for number, (model, (named, trace)) in enumerate(zip(file.endpoints, inputs.serving, strict=False))
    ]
    horizon_s = max(len(one.work_s) for one in loads)
    if file.run.hours_max is not None:
        horizon_s = min(horizon_s, round(file.run.hours_max * 3600))
    warm_up_s, twice = file.run.warm_up_s, horizon_s < 2 * file.run.warm_up_s
    if twice:
        warm_up_s, horizon_s = float(horizon_s), 2 * horizon_s
    together = np.zeros(max(1, horizon_s // CURVE_S))
    for model, (named, _), drawn in zip(file.endpoints, inputs.serving, loads, strict=False):
        engine, asked = ENGINES[model.engine], lasting(drawn, horizon_s, named.from_day * DAY_S)
        together += replicas_needed(asked, engine, CURVE_S) * engine.slots
        if together.max() > slots:
            which = "" if len(loads) == 1 else "with those before it "
            raise BadTrace(
                f"{named.path}: at its height {which}it needs {together.max():.0f} GPUs, the pool has {slots}; scale "
                f"it by less than {named.factor * slots / together.max():.3g}"
            )
        replicas_max = slots // engine.slots
        warm = replicas_max if model.warm_replicas is None else model.warm_replicas
        spec = endpoint_spec(model.name, engine, asked, replicas_max=replicas_max, warm_replicas=warm)
        services.append(Service(spec, engine, asked))
    return Scene(
        nodes=file.pool.nodes,
        slots_per_node=file.pool.gpus_per_node,
        host_bytes=file.pool.host_memory,
        services=tuple(services),
        jobs=_twice(_jobs(file, inputs, seed, warm_up_s), warm_up_s) if twice else _jobs(file, inputs, seed, horizon_s),
        times=Times(),
        seed=seed,
        tick_s=file.run.tick_s,
        warm_up_s=warm_up_s,
        horizon_s=float(horizon_s),
    )


def _twice(found: tuple[Job, ...], later_s: float) -> tuple[Job, ...]:
    return (*found, *(replace(one, submit_s=one.submit_s + later_s) for one in found))


def _jobs(file: SimulationFile, inputs: Inputs, seed: int, horizon_s: float) -> tuple[Job, ...]:
    kept = file.jobs
    drawn = (
        jobs(
            trace,
            named.factor,
            gpus_max=min(kept.gpus_max, file.pool.nodes * file.pool.gpus_per_node),
            shortest_s=kept.shortest_s,
            longest_s=kept.longest_s,
            seed=1000 * seed + 500 + number,
        )
        for number, (named, trace) in enumerate(inputs.jobs)
    )
    found = (one for one in chain.from_iterable(drawn) if one.submit_s < horizon_s)
    return tuple(sorted(found, key=lambda one: one.submit_s))


def policy_config(file: SimulationFile) -> PolicyConfig:
    """The knobs as the pool's own arbiter would have them."""
    policy = file.policy
    return PolicyConfig(
        reserve=file.pool.reserve,
        restart_cost_s=policy.restart_cost_s,
        park_first=policy.park_first,
        grow_after_s=policy.grow_after_s,
        up_after_s=policy.up_after_s,
        starve_after_s=policy.starve_after_s,
        forecast_share=policy.forecast_share,
    )
