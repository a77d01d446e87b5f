"""What nobody can beat: training on every GPU that requests leave free, with no cost of moving. Pure.

Requests take their work by ``full``, in fractions of replicas, the moment they come. The rest of the pool trains; a
job's work can be done no earlier than if it had run from its submission on, and what could not be done then may be done
later by any number of workers. Whatever a real pool does (whole replicas, gangs, starts) only leaves less. The requests
of the last seconds may still wait at the end, for as long as was promised: nobody has to have served those.
"""

from math import ceil

import numpy as np
import numpy.typing as npt

from ebbtide_simulator.run.run import Scene
from ebbtide_simulator.traffic.draws import MINUTE_S
from ebbtide_simulator.traffic.traces import Array

TEN = 10  # minutes
FLAT = 1.2  # the highest ten of them by the mean, up to which demand is called flat; the mildest tide recorded has 1.5


def serving_slots(scene: Scene) -> Array:
    """Slots that requests need, minute by minute (the last may be shorter); of shape (minutes,)."""
    found: Array = _by_service(scene).sum(axis=0)
    return found


def is_flat(scene: Scene) -> bool:
    """Whether partitions that are made for the highest ten minutes have next to nothing to lend.

    Each is made for its own: of services whose days are hours apart the sum may hardly change, and much be lent.
    """
    needed = _by_service(scene)
    count = needed.shape[1] // TEN * TEN
    tens = needed[:, :count].reshape(len(needed), -1, TEN).mean(axis=2) if count else needed
    return bool(tens.max(axis=1).sum() <= FLAT * needed.sum(axis=0).mean())


def _by_service(scene: Scene, *, until_end: bool = True) -> Array:
    """Slots that each one's requests need; of shape (services, minutes).

    Not ``until_end``: without those that may still wait at the end and be in time.
    """
    begins, long_s = _minutes(scene)
    needed = np.zeros((len(scene.services), len(begins)))
    for mine, one in zip(needed, scene.services, strict=True):
        full = 1.0 if scene.singly else one.engine.full  # one that batches may be driven to all its speed for a while
        work_s = one.load.work_s
        if not until_end:
            asked_s = max(0, int(scene.horizon_s) - ceil(one.spec.ttft_slo_s) - 1)  # one more: of a second, its middle
            work_s = np.where(np.arange(len(work_s)) < asked_s, work_s, 0.0)
        mine += np.add.reduceat(work_s, begins) / long_s / full * one.engine.slots
    return needed


def _minutes(scene: Scene) -> tuple["npt.NDArray[np.int64]", Array]:
    """At which second each begins, and how long it is."""
    begins = np.arange(0, int(scene.horizon_s), MINUTE_S)
    return begins, np.diff(begins, append=int(scene.horizon_s)).astype(np.float64)


def training_bound_s(scene: Scene) -> float:
    """Slot-seconds of training from the end of the warm-up on, at most."""
    serve = _by_service(scene, until_end=False).sum(axis=0)
    room = np.maximum(scene.slots - serve, 0.0) * _minutes(scene)[1]
    arriving = _as_if_alone(scene, len(room))
    surplus = np.cumsum(arriving - room)
    waiting = surplus - np.minimum(np.minimum.accumulate(surplus), 0.0)
    done = np.cumsum(arriving) - waiting
    warm = int(scene.warm_up_s) // MINUTE_S
    # What waits at the end of the warm-up differs from run to run: at most all of it is done afterwards.
    return float(
        min(done[-1] - (done[warm - 1] if warm else 0.0) + _undone_early(arriving, room, warm), room[warm:].sum())
    )


def _undone_early(arriving: Array, room: Array, warm: int) -> float:
    """Work that the bound has done within the warm-up and a real pool may do after it."""
    return float(np.minimum(np.cumsum(arriving)[warm - 1], room[:warm].sum())) if warm else 0.0


def _as_if_alone(scene: Scene, minutes: int) -> Array:
    """Slot-seconds per minute, if each job had run from its submission on."""
    slots, parts = np.zeros(minutes + 1), np.zeros(minutes + 1)
    for job in scene.jobs:
        begin = min(job.submit_s / MINUTE_S, float(minutes))
        end = min(begin + job.work_s / job.workers_max / MINUTE_S, float(minutes))
        for at, workers in ((begin, job.workers_max), (end, -job.workers_max)):
            slots[int(at)] += workers
            parts[int(at)] -= workers * (at - int(at))
    return (np.cumsum(slots[:-1]) + parts[:-1]) * MINUTE_S
