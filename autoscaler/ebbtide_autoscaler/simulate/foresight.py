"""A contender that knows what will be asked for: as few replicas at each moment as keep every promise. Pure arrays.

It is what a policy could come to that foresees everything and still pays for its moves: replicas are ready the moment
they are needed, and a dip that is over sooner than a move pays for is not used. Jobs are treated as ours treats them.
"""

import numpy as np

from ebbtide_autoscaler.simulate.draws import Load
from ebbtide_autoscaler.simulate.engine import Engine
from ebbtide_autoscaler.simulate.traces import Array

STRETCH_S = 10  # the plan's grain
DIP_S = 60  # a replica that comes back within it would cost more slot-seconds by its moves than it gives away
WINDOWS_S = (1, 2, 5, 10, 20, 40, 80)  # what lasts for longer than the last is needed in full


def plan(load: Load, engine: Engine, slo_s: float, lead_s: float) -> Array:
    """Replicas to have begun with at each stretch of `STRETCH_S`, so that they answer in time.

    Args:
        slo_s: how long a request may wait.
        lead_s: from the decision until a replica answers.
    """
    needed = _needed(load.work_s, slo_s) / engine.full
    stretches = -(-len(needed) // STRETCH_S)
    padded = np.concatenate([needed, np.full(stretches * STRETCH_S - len(needed), needed[-1])])
    by_stretch = padded.reshape(stretches, STRETCH_S).max(axis=1)
    ahead = _highest(by_stretch, 1 + int(np.ceil(lead_s / STRETCH_S)), after=True)
    found: Array = np.maximum(np.ceil(_without_dips(ahead) - 1e-9), 1.0)
    return found


def _needed(work_s: Array, slo_s: float) -> Array:
    """The speed (replica-seconds a second) at which what waits is done within ``slo_s``, second by second."""
    so_far = np.concatenate([[0.0], np.cumsum(work_s)])
    needed = np.zeros(len(work_s))
    for window in WINDOWS_S:
        begins = np.maximum(np.arange(1, len(so_far)) - window, 0)
        grace_s = 0.0 if window == WINDOWS_S[-1] else slo_s if window == 1 else min(slo_s, window) / 2
        at_its_end = (so_far[1:] - so_far[begins]) / (window + grace_s)
        needed = np.maximum(needed, _highest(at_its_end, window, after=True))  # all of the window needs it
    return needed


def _highest(values: Array, count: int, *, after: bool) -> Array:
    """The highest of ``count`` values from each one on (``after``), or up to it."""
    padded = np.concatenate([values, np.full(count - 1, -np.inf)] if after else [np.full(count - 1, -np.inf), values])
    found: Array = np.lib.stride_tricks.sliding_window_view(padded, count).max(axis=1)
    return found


def _without_dips(values: Array) -> Array:
    """Dips filled up that are shorter than `DIP_S`: a closing, highest first and then lowest."""
    count = DIP_S // STRETCH_S
    filled = _highest(values, count, after=False)
    return -_highest(-filled, count, after=True)
