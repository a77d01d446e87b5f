"""A contender that knows what will be asked for: as few replicas at each moment as keep every promise. Pure arrays.

It is what a policy could come to that foresees everything and still pays for its moves: replicas are ready the moment
they are needed, and a dip that is over sooner than a move pays for is not used. Jobs are treated as ours treats them.

How long before its need a replica must be ordered is another matter: it may wake or start, cold or not, and a job may
have to leave first, or may not be asked once more within the hour. `rehearsal` finds that out by playing the plan.
"""

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from ebbtide_simulator.model.engine import Engine, Times
from ebbtide_simulator.traffic.draws import Load
from ebbtide_simulator.traffic.queue import Queue
from ebbtide_simulator.traffic.traces import Array

STRETCH_S = 10  # the plan's grain
DIP_S = 60  # a replica that comes back within it would cost more slot-seconds by its moves than it gives away
WINDOWS_S = (1, 2, 5, 10, 20, 40, 80)  # what lasts for longer than the last is needed in full


@dataclass(frozen=True, slots=True)
class Learnt:
    """What was found out about a plan by playing it, stretch by stretch; all of shape (stretches,).

    Attributes:
        earlier_s: by how much sooner than usual what is needed then has to be ordered.
        more: replicas on top of what it was reckoned to take.
        dip_s: dips of demand shorter than this are bridged: the replicas stay.
    """

    earlier_s: Array
    more: Array
    dip_s: Array


def nothing_learnt(load: Load) -> Learnt:
    """Before anything was played."""
    stretches = -(-len(load.work_s) // STRETCH_S)
    return Learnt(np.zeros(stretches), np.zeros(stretches), np.full(stretches, float(DIP_S)))


def lead_s(times: Times, tick_s: float) -> float:
    """From a need until a warm replica answers: the next decision, a job that parks, the decision after it, a wake."""
    leaves_s = float(np.ceil((times.safe_point_s + times.park_s) / tick_s)) * tick_s
    return tick_s + leaves_s + times.wake_s


def plan(load: Load, engine: Engine, slo_s: float, lead_s: float, learnt: Learnt | None = None) -> Array:
    """Replicas to have begun with at each stretch of `STRETCH_S`, so that they answer in time.

    Args:
        slo_s: how long a request may wait.
        lead_s: from the decision until a replica answers, as a rule.
        learnt: where that was not enough.
    """
    by_stretch = replicas_to_answer(load, engine, slo_s, learnt)
    ahead = _highest(by_stretch, 1 + int(np.ceil(lead_s / STRETCH_S)), after=True)
    if learnt is not None:
        for at in np.flatnonzero(learnt.earlier_s):
            begins = at - int(np.ceil((lead_s + learnt.earlier_s[at]) / STRETCH_S))
            span = slice(max(0, begins), at + 1)
            ahead[span] = np.maximum(ahead[span], by_stretch[at])
    filled = _without_dips(ahead, DIP_S)
    if learnt is not None:
        for dip_s in np.unique(learnt.dip_s[learnt.dip_s > DIP_S]):
            filled = np.where(learnt.dip_s >= dip_s, _without_dips(ahead, dip_s), filled)
    found: Array = np.maximum(np.ceil(filled - 1e-9), 1.0)
    return found


def fewest_constant(load: Load, engine: Engine, slo_s: float, late_share: float, most: int) -> int:
    """The fewest replicas that serve all but such a share in time if they answer throughout; ``most``, if none do."""
    seconds = len(load.work_s)

    def do(replicas: int) -> bool:
        served = Queue(load, engine, slo_s).serve(seconds, replicas)
        return served.late <= late_share * served.requests

    return 1 + bisect_left(range(1, most), True, key=do)


def replicas_to_answer(load: Load, engine: Engine, slo_s: float, learnt: Learnt | None = None) -> Array:
    """Replicas that must answer in each stretch, in fractions of them."""
    by_second = _needed(load.work_s, slo_s) / engine.full
    stretches = -(-len(by_second) // STRETCH_S)
    padded = np.concatenate([by_second, np.full(stretches * STRETCH_S - len(by_second), by_second[-1])])
    found: Array = padded.reshape(stretches, STRETCH_S).max(axis=1)
    return found if learnt is None else found + learnt.more


def _needed(work_s: Array, slo_s: float) -> Array:
    """The speed (replica-seconds a second) at which what waits is done within ``slo_s``, second by second."""
    so_far = np.concatenate([[0.0], np.cumsum(work_s)])
    replicas_to_answer = np.zeros(len(work_s))
    for window in WINDOWS_S:
        begins = np.maximum(np.arange(1, len(so_far)) - window, 0)
        grace_s = 0.0 if window == WINDOWS_S[-1] else slo_s if window == 1 else min(slo_s, window) / 2
        at_its_end = (so_far[1:] - so_far[begins]) / (window + grace_s)
        replicas_to_answer = np.maximum(
            replicas_to_answer, _highest(at_its_end, window, after=True)
        )  # all of the window needs it
    return replicas_to_answer


def _highest(values: Array, count: int, *, after: bool) -> Array:
    """The highest of ``count`` values from each one on (``after``), or up to it."""
    padded = np.concatenate([values, np.full(count - 1, -np.inf)] if after else [np.full(count - 1, -np.inf), values])
    found: Array = np.lib.stride_tricks.sliding_window_view(padded, count).max(axis=1)
    return found


def _without_dips(values: Array, dip_s: float) -> Array:
    """Dips filled up that are shorter: a closing, highest first and then lowest."""
    count = int(dip_s) // STRETCH_S
    filled = _highest(values, count, after=False)
    return -_highest(-filled, count, after=True)
