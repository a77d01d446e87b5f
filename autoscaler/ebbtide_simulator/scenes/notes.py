"""What is left out of a simulation, and what is odd about it, with its numbers: told before anything runs. Pure."""

from collections.abc import Iterator

import numpy as np

from ebbtide.pool.plural import many
from ebbtide_simulator.run.run import Scene, Service
from ebbtide_simulator.scenes.file import SimulationFile
from ebbtide_simulator.scenes.scene import DAY_S, Inputs, Named, gang_max
from ebbtide_simulator.traffic.traces import Array, Jobs, Rates, Requests, Serving

SHORT_S = 600.0  # a cold start takes a quarter of it
MANY = 100  # requests: of fewer nobody can tell
SELDOM_S = 60.0  # between two of them: who has so few needs no pool
LONG_S = 31 * DAY_S  # an hour in milliseconds is 41 days; nobody has recorded single requests for a month


def remarks(file: SimulationFile, inputs: Inputs, given: Scene) -> list[str]:
    """Each a sentence; ``given`` is the first seed's scene."""
    found = []
    idle = [endpoint.name for endpoint in file.endpoints[len(inputs.serving) :]]
    if idle:
        found.append(f"no traffic is given for {', '.join(idle)}: left out")
    for (named, trace), service in zip(inputs.serving, given.services, strict=True):
        found += [f"{named.path.name}: {told}" for told in _of_traffic(trace, service)]
    scored_s = given.horizon_s - given.warm_up_s
    if scored_s < SHORT_S:
        found.append(f"only {scored_s:.0f} s are scored: one start is a large part of every figure")
    left = 0
    for named, jobs in inputs.jobs:
        told, count = _of_jobs(file, named, jobs, gang_max(file, len(inputs.serving)), given.jobs_until_s)
        found, left = [*found, *told], left + count
    if inputs.jobs and not given.jobs:
        none = f"the first seed draws none of the {many(left, 'job')} left: " if left else ""
        found.append(f"{none}there is nothing to train")
    return found


def _of_traffic(trace: Serving, service: Service) -> Iterator[str]:
    if isinstance(trace, Rates) and trace.filled:
        told = f"{trace.filled} of {len(trace.at_s)} rows were 0 and are filled"
        yield f"{told}, by a straight line between their neighbours"
    if isinstance(trace, Requests) and _like_milliseconds(trace.at_s):
        each_s, days = trace.at_s[-1] / (len(trace.at_s) - 1), trace.at_s[-1] / DAY_S
        yield f"a request comes each {each_s:.0f} s, for {days:.1f} days: times are seconds, are these milliseconds?"
    if not service.load.requests.sum():
        yield "it asks for nothing at all"


def _like_milliseconds(at_s: Array) -> bool:
    """Whole numbers, so many that a thousandth of their span is as likely for a trace of single requests."""
    if len(at_s) < MANY or (at_s != np.floor(at_s)).any():
        return False
    return bool(at_s[-1] > LONG_S or at_s[-1] / (len(at_s) - 1) > SELDOM_S)


def _of_jobs(file: SimulationFile, named: Named, trace: Jobs, largest: int, until_s: float) -> tuple[list[str], int]:
    """Jobs of the whole trace, before shares of it are drawn; each is told of once, by the first reason that holds.

    Returns:
        What is told, and how many jobs are left.
    """
    kept, rows = file.jobs, len(trace.gpus) + trace.without_end
    most = f"{trace.gpus.max(initial=0):.0f} GPUs"
    reasons = (
        (trace.gpus > largest, f"ask for up to {most}, of which no gang can have more than {largest} here"),
        (trace.gpus > kept.gpus_max, f"ask for more than jobs.gpus_max, {kept.gpus_max} GPUs"),
        (trace.duration_s < kept.shortest_s, f"are shorter than jobs.shortest_s, {kept.shortest_s:g} s"),
        (trace.duration_s > kept.longest_s, f"are longer than jobs.longest_s, {kept.longest_s:g} s"),
        (trace.submit_s >= until_s, f"come after the {until_s / 3600:.1f} hours of traffic"),
    )
    told = [(trace.without_end, "never began or ended, so that nobody knows their length")]
    left = np.ones(len(trace.gpus), bool)
    for out, why in reasons:
        told.append((int((left & out).sum()), why))
        left &= ~out
    found = [f"{count} of {rows} jobs {why}: left out" for count, why in told if count]
    if found:
        found.append(f"{many(int(left.sum()), 'job')} of {rows} left" if left.any() else "no job is left")
    return [f"{named.path.name}: {one}" for one in found], int(left.sum())
