"""What a replay leaves out of its recording, and what is odd about it: told before anything runs."""

from collections.abc import Iterator

from ebbtide.config.sections.pool_section import PoolMode
from ebbtide_autoscaler.core.forecast.demand_bins import BIN_S, bin_of
from ebbtide_simulator.recorded.recording import Recording, known_bins
from ebbtide_simulator.recorded.replay_file import ReplayFile
from ebbtide_simulator.run.run import Scene
from ebbtide_simulator.scenes.replay import Recorded, gang_max

TOLD = ("place_s", "start_s", "wake_s", "gang_start_s", "aside_s", "resume_s", "stop_s")
"""What is worth a word where nobody measured it."""


def replay_remarks(file: ReplayFile, given: Recorded, scene: Scene) -> list[str]:
    """Each a sentence; ``scene`` is the first seed's."""
    one = given.recording
    found = [*_of_the_ledger(one), *_of_demand(one)]
    most = gang_max(file, one)
    larger = [past.spec.workers_min for past in one.jobs if past.spec.workers_min > most]
    if larger:
        found.append(
            f"{len(larger)} of {len(one.jobs)} jobs ask for up to {max(larger)} GPUs at the least, of which no gang "
            f"can have more than {most} here: left out"
        )
    endless = sum(not past.finished for past in one.jobs)
    if endless:
        found.append(f"{endless} of {len(one.jobs)} jobs did not finish: they train on until they were ended")
    absent = [name for name in TOLD if not one.durations.of.get(name)]
    if absent:
        found.append(f"the ledger has no example of {', '.join(absent)}: taken as assumed")
    if not scene.jobs:
        found.append("there is no job: there is nothing to train")
    return found


def _of_the_ledger(one: Recording) -> Iterator[str]:
    if one.left_out:
        yield f"the last {one.left_out} bytes of the ledger are no record, as after a writer's death: left out"
    if len(one.nodes.sizes) > 1:
        sizes = " and ".join(map(str, one.nodes.sizes))
        nodes, each = one.nodes.shape()
        yield f"nodes had {sizes} GPUs: taken as {nodes} nodes of {each}"
    if one.config is None:
        yield "the ledger does not have the pool's file: the policy's figures are its defaults"
    elif one.config.pool.mode is PoolMode.OBSERVE:
        yield "the pool only observed: what really happened is not what its policy decided"
    for what, count in one.counts.items():
        if what != "replica starts":
            yield f"{what}, in all {count}: not played again"


def _of_demand(one: Recording) -> Iterator[str]:
    first, last = bin_of(one.begins_s), bin_of(one.ends_s)
    for name in sorted(one.endpoints):
        known = [value for number, value in known_bins(one, name) if first <= number <= last]
        whole = int(one.ends_s // BIN_S) - first
        if not known:
            yield f"the ledger knows nothing of the demand for {name} (it keeps whole five minutes): taken as none"
        elif len(known) < whole:
            yield f"of {whole - len(known)} of {whole} stretches of five minutes the demand for {name} is not known"
        if known and not any(value.per_s for value in known):
            yield f"how long requests of {name} took is not known: endpoints[].stay_s says"
