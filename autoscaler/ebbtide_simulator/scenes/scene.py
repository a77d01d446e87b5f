"""From a simulation's file, traces and a seed to the scene that every contender plays."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from ebbtide.pool.spec import EndpointSpec
from ebbtide_autoscaler.control import settings
from ebbtide_autoscaler.core.plan.inputs import PolicyConfig
from ebbtide_simulator.model.engine import Engine, Saves, Times
from ebbtide_simulator.model.failures import Failure, failures
from ebbtide_simulator.model.filesystem import NODE_BYTES_PER_S
from ebbtide_simulator.run.mix import cast
from ebbtide_simulator.run.run import Scene, Service, endpoint_spec
from ebbtide_simulator.scenes.file import EndpointModel, SimulationFile
from ebbtide_simulator.traffic.draws import CURVE_S, Job, Load, jobs, lasting, load, replicas_needed
from ebbtide_simulator.traffic.noise import aggregate
from ebbtide_simulator.traffic.requests import at_full
from ebbtide_simulator.traffic.trace_files import BadTrace
from ebbtide_simulator.traffic.traces import Array, Jobs, Requests, Serving, read_jobs, read_serving

DAY_S = 86_400.0
FACTOR_MAX = 1e6
COPIES_BYTES = 8e9  # of repeated requests, half of what a small machine has: 30 million of them, a minute of a run
REQUEST_BYTES = 256  # while it is repeated, as measured: a hundred in its figures, the rest in its list of blocks
BLOCK_BYTES = 24  # of a prefix block, in the trace, in its request's list, and in that of all


@dataclass(frozen=True, slots=True)
class Named:
    """A trace's file, what it is multiplied by or how many of its rows are kept, and the day on which it begins."""

    path: Path
    factor: float = 1.0
    from_day: float = 0.0

    def __str__(self) -> str:
        """As on a command line, without its folder."""
        return f"{self.path.name}:{self.factor:g}" + (f":{self.from_day:g}" if self.from_day else "")


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
            can = f"by more than 0 and up to {FACTOR_MAX:g} it can"
            raise BadTrace(f"{one.path}: a rate cannot be multiplied by {one.factor:g}; {can}")
    for one in job_files:
        if not 0 < one.factor <= 1:
            raise BadTrace(
                f"{one.path}: a share of {one.factor} of its jobs cannot be kept; more than 0 and up to 1 can"
            )
    return Inputs(
        tuple((one, _sound(one, read_serving(one.path))) for one in serving),
        tuple((file, _from(file, read_jobs(file.path))) for file in job_files),
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
    submit_s = trace.submit_s[kept] - named.from_day * DAY_S
    return replace(trace, submit_s=submit_s, duration_s=trace.duration_s[kept], gpus=trace.gpus[kept])


def scene(file: SimulationFile, inputs: Inputs, seed: int) -> Scene:
    """What this seed draws.

    Raises:
        BadTrace: there are more traces than endpoints, demand is beyond the pool, or no replica can keep its promise.
    """
    if len(inputs.serving) > len(file.endpoints):
        raise BadTrace(f"{len(inputs.serving)} serving traces for {len(file.endpoints)} endpoints: name more endpoints")
    slots = file.pool.nodes * file.pool.gpus_per_node
    services = []
    given = [
        (model, named, trace, 1000 * seed + number)
        for number, (model, (named, trace)) in enumerate(zip(file.endpoints, inputs.serving, strict=False))
    ]
    loads = [_load(file, *one, rows=False) for one in given]
    horizon_s = max(len(one.work_s) for one in loads)
    if file.run.hours_max is not None:
        horizon_s = min(horizon_s, round(file.run.hours_max * 3600))
    warm_up_s, twice = file.run.warm_up_s, horizon_s < 2 * file.run.warm_up_s
    if twice:
        warm_up_s, horizon_s = float(horizon_s), 2 * horizon_s
    jobs_until_s = warm_up_s if twice else float(horizon_s)
    singly = file.run.requests == "singly"
    together = np.zeros(max(1, horizon_s // CURVE_S))
    for (model, named, trace, number), drawn in zip(given, loads, strict=True):
        engine, asked = file.engine_of(model), lasting(drawn, horizon_s, named.from_day * DAY_S)
        needed = replicas_needed(asked, engine, CURVE_S)  # what is beyond for a minute may wait
        together += needed * engine.slots
        if together.max() > slots:
            which = "" if len(loads) == 1 else "with those before it "
            raise BadTrace(
                f"{named.path}: at its height {which}it needs {together.max():.0f} GPUs, the pool has {slots}; scale "
                f"it by less than {named.factor * slots / together.max():.3g}"
            )
        _has_room(named, needed, engine, file.pool.replicas_max(engine.slots))
        _can_answer(named, model, engine, asked)
        _can_be_copied(file, named, trace)
        if singly:
            each = _load(file, model, named, trace, number, rows=True)
            asked = lasting(each, horizon_s, named.from_day * DAY_S)
        services.append(Service(_spec(file, model, asked), engine, asked))
    return Scene(
        nodes=file.pool.nodes,
        slots_per_node=file.pool.gpus_per_node,
        host_bytes=file.pool.host_memory,
        services=tuple(services),
        jobs=_cast(file, inputs, seed, _jobs(file, inputs, seed, jobs_until_s, twice=twice)),
        times=Times(saves=Saves(every_s=file.jobs.checkpoint_every_s)),
        seed=seed,
        tick_s=file.run.tick_s,
        warm_up_s=warm_up_s,
        horizon_s=float(horizon_s),
        jobs_until_s=jobs_until_s,
        failures=_failures(file, (warm_up_s, float(horizon_s)), seed),
        bytes_per_s=bytes_per_s(file),
        singly=singly,
    )


def _spec(file: SimulationFile, model: EndpointModel, asked: Load) -> EndpointSpec:
    engine = file.engine_of(model)
    replicas_max = file.pool.replicas_max(engine.slots)
    warm = replicas_max if model.warm_replicas is None else model.warm_replicas
    spec = endpoint_spec(model.name, engine, asked, replicas_max=replicas_max, warm_replicas=warm)
    if file.run.requests == "singly":  # as its owner would have tried it out
        spec = replace(spec, target_requests=at_full(engine, asked))
    return replace(spec, ttft_slo_s=model.ttft_slo_s, down_after_s=model.down_after_s)


def _load(file: SimulationFile, model: EndpointModel, named: Named, trace: Serving, seed: int, *, rows: bool) -> Load:
    """With each request (``rows``), or without: then all is as small as the trace, whatever it is multiplied by."""
    factor = named.factor
    if isinstance(trace, Requests) and not rows:
        trace = replace(trace, blocks=None)
    if file.run.noise == "aggregated" and _copies_bytes(file, trace, factor) <= COPIES_BYTES:
        trace, factor = aggregate(trace, factor, seed)
    return load(trace, file.engine_of(model), factor, (model.prompt_tokens, model.output_tokens), seed, rows=rows)


def _copies_bytes(file: SimulationFile, trace: Serving, factor: float) -> float:
    """Of all requests, as often as they are repeated; 0: nobody needs them one by one."""
    singly = file.run.requests == "singly"
    if not isinstance(trace, Requests) or not (singly or (file.run.noise == "aggregated" and factor > 1.0)):
        return 0.0
    blocks = 0 if trace.blocks is None or not singly else len(trace.blocks)
    return max(factor, 1.0) * (len(trace.at_s) * REQUEST_BYTES + blocks * BLOCK_BYTES)


def _can_be_copied(file: SimulationFile, named: Named, trace: Serving) -> None:
    needed = _copies_bytes(file, trace, named.factor)
    if needed > COPIES_BYTES:
        why = "requests: singly" if file.run.requests == "singly" else "noise: aggregated"
        raise BadTrace(
            f"{named.path}: {named.factor:g} times its {len(trace.at_s)} requests, each by itself for run.{why}, take "
            f"{needed / 1e9:.0f} GB of memory; at most {COPIES_BYTES / 1e9:.0f} are taken: scale it by less than "
            f"{named.factor * COPIES_BYTES / needed:.3g}"
        )


def _has_room(named: Named, needed: Array, engine: Engine, most: int) -> None:
    """A replica's GPUs are of one node: what is left over on each is no room."""
    if needed.max() > most:
        raise BadTrace(
            f"{named.path}: at its height it needs {needed.max():.0f} replicas of {engine.slots} GPUs of one node; "
            f"the pool has room for {most}; scale it by less than {named.factor * most / needed.max():.3g}"
        )


def _can_answer(named: Named, model: EndpointModel, engine: Engine, asked: Load) -> None:
    prefill_s = asked.prompt_tokens / engine.prefill_tok_s
    if prefill_s > model.ttft_slo_s:
        raise BadTrace(
            f"{named.path}: endpoint {model.name} promises the first token within {model.ttft_slo_s:g} s, but a mean "
            f"prompt of {asked.prompt_tokens:,.0f} tokens takes {prefill_s:.3g} s alone on {model.engine}: "
            "raise ttft_slo_s, or give it a faster engine"
        )


def _failures(file: SimulationFile, scored_s: tuple[float, float], seed: int) -> tuple[Failure, ...]:
    return failures(
        file.pool.nodes,
        file.pool.gpus_per_node,
        gpu_hours_each=file.failures.gpu_hours_each,
        storm=file.failures.storm,
        repair_s=file.failures.repair_s,
        scored_s=scored_s,
        seed=1000 * seed + 900,
    )


def bytes_per_s(file: SimulationFile) -> float:
    """Of the shared filesystem."""
    given = file.storage.gbytes_per_s
    return file.pool.nodes * NODE_BYTES_PER_S if given is None else given * 1e9


def _jobs(file: SimulationFile, inputs: Inputs, seed: int, horizon_s: float, *, twice: bool) -> tuple[Job, ...]:
    """By submission; ``twice``: all of them come once more after ``horizon_s``."""
    kept = file.jobs
    drawn = (
        jobs(
            trace,
            named.factor,
            gpus_max=min(kept.gpus_max, gang_max(file, len(inputs.serving))),
            shortest_s=kept.shortest_s,
            longest_s=kept.longest_s,
            seed=1000 * seed + 500 + number,
        )
        for number, (named, trace) in enumerate(inputs.jobs)
    )
    found = (one for one in chain.from_iterable(drawn) if one.submit_s < horizon_s)
    once = tuple(sorted(found, key=lambda one: one.submit_s))
    return (*once, *(replace(one, submit_s=one.submit_s + horizon_s) for one in once)) if twice else once


def _cast(file: SimulationFile, inputs: Inputs, seed: int, found: tuple[Job, ...]) -> tuple[Job, ...]:
    most = min(file.jobs.gpus_max, gang_max(file, len(inputs.serving)))
    return cast(found, file.jobs.mix.as_mix(), 1000 * seed + 700, gpus_max=most)


def gang_max(file: SimulationFile, endpoints: int) -> int:
    """GPUs of the largest gang that can ever run: each endpoint keeps a replica, and nobody trains on the reserve."""
    kept = sum(file.engine_of(endpoint).slots for endpoint in file.endpoints[:endpoints])
    return max(0, file.pool.nodes * file.pool.gpus_per_node - file.pool.reserve - kept)


def policy_config(file: SimulationFile) -> PolicyConfig:
    """The knobs as the pool's own arbiter would have them."""
    return settings.policy_config(file.policy, reserve=file.pool.reserve)
