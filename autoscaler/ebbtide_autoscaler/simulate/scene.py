"""From a simulation's file, traces and a seed to the scene that every contender plays."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from ebbtide_autoscaler.signals import PolicyConfig
from ebbtide_autoscaler.simulate.draws import Job, jobs, load, replicas_needed
from ebbtide_autoscaler.simulate.engine import ENGINES, Times
from ebbtide_autoscaler.simulate.file import SimulationFile
from ebbtide_autoscaler.simulate.run import Scene, Service, endpoint_spec
from ebbtide_autoscaler.simulate.traces import BadTrace, Jobs, Rates, Requests, read_jobs, read_serving


@dataclass(frozen=True, slots=True)
class Named:
    """A trace's file, with what it is multiplied by, or how many of its rows are kept."""

    path: Path
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Inputs:
    """All traces, read and sound."""

    serving: tuple[tuple[Named, Requests | Rates], ...]
    jobs: tuple[tuple[Named, Jobs], ...]


def read(serving: Sequence[Named], job_files: Sequence[Named]) -> Inputs:
    """Read every trace.

    Raises:
        BadTrace: one is none, or a share of its jobs is no share.
    """
    for one in serving:
        if one.factor <= 0:
            raise BadTrace(f"{one.path}: a rate cannot be multiplied by {one.factor:g}")
    for one in job_files:
        if not 0 < one.factor <= 1:
            raise BadTrace(f"{one.path}: a share of {one.factor:g} of its jobs cannot be kept; from 0 to 1 can")
    return Inputs(
        tuple((one, read_serving(one.path)) for one in serving), tuple((one, read_jobs(one.path)) for one in job_files)
    )


def scene(file: SimulationFile, inputs: Inputs, seed: int) -> Scene:
    """What this seed draws.

    Raises:
        BadTrace: there are more traces than endpoints, or demand is beyond the pool.
    """
    if len(inputs.serving) > len(file.endpoints):
        raise BadTrace(f"{len(inputs.serving)} serving traces for {len(file.endpoints)} endpoints: name more endpoints")
    slots = file.pool.nodes * file.pool.gpus_per_node
    services = []
    for number, (model, (named, trace)) in enumerate(zip(file.endpoints, inputs.serving, strict=False)):
        engine = ENGINES[model.engine]
        asked = load(trace, engine, named.factor, (model.prompt_tokens, model.output_tokens), 1000 * seed + number)
        most = int(replicas_needed(asked, engine).max()) * engine.slots
        if most > slots:
            raise BadTrace(
                f"{named.path}: at its height it needs {most} GPUs, the pool has {slots}; scale it by less than "
                f"{named.factor * slots / most:.3g}"
            )
        services.append(
            Service(endpoint_spec(model.name, engine, asked, replicas_max=slots // engine.slots), engine, asked)
        )
    horizon_s = float(min(len(one.load.work_s) for one in services))
    return Scene(
        nodes=file.pool.nodes,
        slots_per_node=file.pool.gpus_per_node,
        host_bytes=file.pool.host_memory,
        services=tuple(services),
        jobs=_jobs(file, inputs, seed, horizon_s),
        times=Times(),
        seed=seed,
        tick_s=file.run.tick_s,
        warm_up_s=file.run.warm_up_s if horizon_s > 2 * file.run.warm_up_s else 0.0,
        horizon_s=horizon_s,
    )


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
    )
