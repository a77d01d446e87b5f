"""What a plan that was played teaches foresight about the next one. Pure arrays.

Where requests came late because replicas did, these are ordered earlier by as much as they were late; where that was
learnt already and did not help, jobs had been asked to leave too often, or such came that never leave, and in the hour
before shorter dips are not used any more; where enough replicas were there, the plan has more.
"""

import numpy as np
import numpy.typing as npt

from ebbtide_simulator.policies.foresight import STRETCH_S, Learnt, replicas_to_answer
from ebbtide_simulator.run.run import Scene, Service
from ebbtide_simulator.traffic.traces import Array

AFTER = 3  # stretches within which a lack of replicas shows in requests that wait
HOUR_S = 3600.0  # within it a job is asked to leave so often at most; then it may be asked again
MORE = 0.05  # of the replicas, where those of the plan were there and did not do

Flags = npt.NDArray[np.bool_]


def lesson(scene: Scene, one: Service, learnt: Learnt, ready: Array, waits: tuple[Array, Array]) -> Learnt:
    """What is known of an endpoint after a run.

    Args:
        learnt: what was known before.
        ready: as `rehearsal.Foreseeing.ready`.
        waits: how long requests of each second waited, and how many they were.
    """
    late = _late(scene, one, waits, len(ready))
    counts = np.minimum(
        np.ceil(replicas_to_answer(one.load, one.engine, one.spec.ttft_slo_s, learnt) - 1e-9), one.spec.replicas_max
    )
    lacks = _held(ready) < counts
    earlier_s, more, dip_s = learnt.earlier_s.copy(), learnt.more.copy(), learnt.dip_s.copy()
    for begin, end in _runs(lacks):
        if not late[begin : end + AFTER].any():
            continue
        tried_s = learnt.earlier_s[begin:end].max()
        if tried_s >= begin * STRETCH_S:  # it cannot be ordered any earlier: of several that start one is the first
            more[begin:end] += np.maximum(1.0, more[begin:end])
        elif tried_s:
            hour = slice(max(0, begin - int(HOUR_S) // STRETCH_S), end)
            dip_s[hour] = np.maximum(dip_s[hour], 2 * learnt.dip_s[begin:end].max())
        earlier_s[begin:end] += tried_s + (end - begin) * STRETCH_S + scene.tick_s
    unexplained = late & ~_widened(lacks)
    more[unexplained] += np.maximum(1.0, np.ceil(counts[unexplained] * MORE))
    return Learnt(np.minimum(earlier_s, HOUR_S), more, np.minimum(dip_s, HOUR_S))


def _late(scene: Scene, one: Service, waits: tuple[Array, Array], stretches: int) -> Flags:
    """In which stretches requests came that had to wait for too long."""
    waited_s, count = waits
    found = np.zeros(stretches, dtype=bool)
    seconds = int(scene.warm_up_s) + np.flatnonzero((waited_s > one.spec.ttft_slo_s) & (count > 0))
    found[np.minimum(seconds // STRETCH_S, stretches - 1)] = True
    return found


def _held(ready: Array) -> Array:
    """Stretches without a tick are as the one before them."""
    known = np.where(np.isnan(ready), -1, np.arange(len(ready)))
    at = np.maximum.accumulate(known)
    found: Array = np.where(at >= 0, ready[np.maximum(at, 0)], 0.0)
    return found


def _widened(lacks: Flags) -> Flags:
    """And for a while after it: what waits is not gone when enough replicas are there."""
    found = lacks.copy()
    for later in range(1, AFTER + 1):
        found[later:] |= lacks[:-later]
    return found


def _runs(flags: Flags) -> list[tuple[int, int]]:
    """Where it holds without a break, from a beginning to before an end."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(begin), int(end)) for begin, end in edges.reshape(-1, 2)]
