"""What can be turned at a contender, and where each stands unless a sweep or a frontier turns it.

A rival is compared at its best: `TUNED` holds, for each, what a sweep over a shortened development set chose (the best
training among those that serve 99.5 % in time, and the best serving where none does). `benchmarks/policy_sweep.py` is
that sweep, ``benchmarks/results/policy/sweep.json`` has every point of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """One contender's settings; each contender has some of them.

    Attributes:
        headroom: replicas kept, as a multiple of those that present demand just fills (1.25: a quarter more; its
            reciprocal is others' target utilisation). Of a partition: its size as a multiple of the demand that it is
            made for.
        hold_s: how long fewer replicas must have been enough before one is taken away.
        checkpoint_every_s: of training, by jobs that are killed.
        forecast_share: of our policy; None: as the simulation's file says.
        reserve: slots that jobs leave free; None: as the file says.
    """

    headroom: float = 1.0
    hold_s: float = 300.0  # what autoscalers have as a default: Kubernetes' stabilization window
    checkpoint_every_s: float = 1800.0  # 15 and 30 minutes are usual
    forecast_share: float | None = None
    reserve: int | None = None


USUAL = Knobs()
# Between checkpoints, of those that are killed. The sweep has one point at 1800 s for each (headroom 1.0, hold 300 s):
# there four of five train more with 900 s, and `no-preemption-own` as much.
OFTEN_S = 900.0
TUNED: Mapping[str, Knobs] = {
    "static-p100": Knobs(headroom=1.1),  # ten per cent above the highest ten minutes: not swept, a sizing is a sizing
    # Chosen by the sweep. Who keeps whole servers has room without asking for it.
    "lyra": Knobs(headroom=0.9, hold_s=300.0),
    "kill-and-requeue": Knobs(headroom=0.95, hold_s=900.0, checkpoint_every_s=OFTEN_S),
    "schedule": Knobs(headroom=1.05, hold_s=60.0),
    "lyra-own": Knobs(headroom=1.0, hold_s=900.0, checkpoint_every_s=OFTEN_S),
    "kill-and-requeue-own": Knobs(headroom=1.05, hold_s=900.0, checkpoint_every_s=OFTEN_S),
    # These serve 99.5 % at no point: where they serve best.
    "schedule-own": Knobs(headroom=1.25, hold_s=900.0, checkpoint_every_s=OFTEN_S),
    "no-preemption": Knobs(headroom=1.5, hold_s=60.0),
    "no-preemption-own": Knobs(headroom=1.25, hold_s=300.0, checkpoint_every_s=OFTEN_S),
}
"""By contender; who is not in it has `USUAL`."""
