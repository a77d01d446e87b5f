"""What is left out of a simulation, and what is odd about it, with its numbers: told before anything runs. Pure."""

from collections.abc import Sequence

import numpy as np

from ebbtide_autoscaler.simulate.file import SimulationFile
from ebbtide_autoscaler.simulate.run import Scene
from ebbtide_autoscaler.simulate.scene import Inputs, Named, gang_max
from ebbtide_autoscaler.simulate.traces import Jobs, Rates


def remarks(file: SimulationFile, inputs: Inputs, given: Scene) -> list[str]:
    """Each a sentence; ``given`` is the first seed's scene."""
    found = []
    idle = [one.name for one in file.endpoints[len(inputs.serving) :]]
    if idle:
        found.append(f"no traffic is given for {', '.join(idle)}: left out")
    for (named, trace), service in zip(inputs.serving, given.services, strict=True):
        if isinstance(trace, Rates) and trace.filled:
            told = f"{trace.filled} of {len(trace.at_s)} rows were 0 and are filled"
            found.append(f"{named.path.name}: {told}, by a straight line between their neighbours")
        if not service.load.requests.sum():
            found.append(f"{named.path.name}: it asks for nothing at all")
    for named, jobs in inputs.jobs:
        found += _of_jobs(file, named, jobs, gang_max(file, len(inputs.serving)))
    if inputs.jobs and not given.jobs:
        found.append(f"no job comes within the {given.horizon_s / 3600:.1f} hours: there is nothing to train")
    return found


def _of_jobs(file: SimulationFile, named: Named, trace: Jobs, largest: int) -> Sequence[str]:
    """Jobs of the whole trace, before shares of it are drawn."""
    kept, all_of_them = file.jobs, len(trace.gpus)
    beyond = trace.gpus > largest
    told = (
        (trace.without_end, "never began or ended, so that nobody knows their length"),
        (
            int(beyond.sum()),
            f"ask for up to {trace.gpus.max(initial=0):.0f} GPUs, of which no gang can have more than {largest} here",
        ),
        (int((~beyond & (trace.gpus > kept.gpus_max)).sum()), f"ask for more than jobs.gpus_max, {kept.gpus_max} GPUs"),
        (int((trace.duration_s < kept.shortest_s).sum()), f"are shorter than jobs.shortest_s, {kept.shortest_s:g} s"),
        (int((trace.duration_s > kept.longest_s).sum()), f"are longer than jobs.longest_s, {kept.longest_s:g} s"),
    )
    rows = all_of_them + trace.without_end
    found = [f"{named.path.name}: {count} of {rows} jobs {why}: left out" for count, why in told if count]
    if found and not np.any(
        (trace.gpus <= min(largest, kept.gpus_max))
        & (trace.duration_s >= kept.shortest_s)
        & (trace.duration_s <= kept.longest_s)
    ):
        found.append(f"{named.path.name}: no job is left")
    return found
