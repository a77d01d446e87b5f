"""By how much two runs of one scene may differ by luck: for that foresight is not taken to be beaten. Pure.

Foresight knows requests. Which gang happens to fit when slots are free, and who stands on a node when it fails, comes
of every move before, its rivals' as much as its own. Over weeks both even out, and are less than the hundredth that
`contradictions` leaves open anyway; in ten minutes one start of one gang can be more than that.
"""

from collections.abc import Mapping
from math import ceil, sqrt

import numpy as np

from ebbtide_simulator.run.bound import serving_slots
from ebbtide_simulator.run.run import Scene
from ebbtide_simulator.traffic.traces import Array

STARTS = 1  # of the largest gang: one that fits here and not there begins, or has ended, one start sooner
TICKS = 2  # a gang waits up to one until its slots are seen to be free, and up to one until it is seen to have ended
REQUESTS = 1  # late here and not there: of thirty requests that is more than a tenth of a per cent


def luck(scene: Scene) -> Mapping[str, float]:
    """What it may make at most, of what is scored.

    Failures strike independently of each other, so that what they make grows with the square root of their number.

    Returns:
        ``start_gpu_s``: training, of a start of the largest gang.
        ``failures_gpu_s``: training, of who is struck by failures.
        ``requests_share``: of the requests, `REQUESTS` of them.
        ``failures_share``: of the requests, those that come while replicas that were struck start again elsewhere, when
        most of them come.
    """
    times = scene.times
    gang = min(max((job.workers_max for job in scene.jobs), default=0), scene.slots)
    failed = sqrt(sum(failure.at_s >= scene.warm_up_s for failure in scene.failures))
    struck = max(gang, scene.slots_per_node) if scene.jobs else 0  # a node may have many small gangs
    so_far = np.cumsum(_requests(scene))
    asked = float(so_far[-1])
    serve = float(np.mean(serving_slots(scene))) if scene.services else 0.0
    node_share = min(1.0, scene.slots_per_node / serve) if serve else 1.0  # of all replicas, those of one node
    again_s = min(ceil(scene.tick_s + times.place_s + times.cold_s), len(so_far) - 1)
    busiest = float((so_far[again_s:] - so_far[: len(so_far) - again_s]).max())
    return {
        "start_gpu_s": STARTS * gang * (times.gang_start_s + TICKS * scene.tick_s),
        "failures_gpu_s": failed * struck * (times.saves.every_s + times.gang_start_s),
        "requests_share": min(1.0, REQUESTS / asked) if asked else 0.0,
        "failures_share": min(1.0, failed * node_share * busiest / asked) if asked else 0.0,
    }


def _requests(scene: Scene) -> Array:
    """Of all endpoints, by the second of what is scored; a zero before them."""
    found = np.zeros(int(scene.horizon_s) - int(scene.warm_up_s) + 1)
    for service in scene.services:
        scored = service.load.requests[int(scene.warm_up_s) :][: len(found) - 1]
        found[1 : len(scored) + 1] += scored
    return found
