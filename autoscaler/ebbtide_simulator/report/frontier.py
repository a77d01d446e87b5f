"""What each contender could have instead: more requests in time for less training, or less for more.

One point says little of a policy: a rival that serves worse and trains more may stand elsewhere on the same curve. So
each is played with several settings of the knob that buys service with slots: the headroom of rivals and partitions,
and of our policy the share of cases for which its forecast shall be enough, and a reserve. Perfect foresight has none.
"""

from dataclasses import asdict, replace
from typing import Any

from ebbtide_simulator.policies.contenders import ORACLE, OURS, STATIC, knobs_of
from ebbtide_simulator.policies.knobs import Knobs

HEADROOMS = (0.7, 0.85, 1.0, 1.15, 1.3, 1.5)
SIZES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.3)  # of a partition, by what its highest ten minutes need
SHARES = (0.0, 0.5, 0.8, 0.9, 0.99)
RESERVES = (0.02, 0.05)  # of the pool
FIGURES = ("slo_attainment", "slo_worst_5min", "goodput_gpu_s", "goodput_share", "waste_share")


def settings_of(name: str, slots: int) -> list[Knobs]:
    """Other settings of a contender than the one at which it is compared.

    Args:
        name: of the contender.
        slots: of the pool.
    """
    stands = knobs_of(name)
    if name == OURS:
        reserved = [replace(stands, reserve=max(1, round(share * slots))) for share in RESERVES]
        found = [*(replace(stands, forecast_share=share) for share in SHARES), *reserved]
    elif name == ORACLE or name.startswith((OURS, "all-")) or (name.startswith("static") and name != STATIC):
        found = []  # one of foresight, our policy's own point without a forecast, sizings of one partition, controls
    else:
        found = [replace(stands, headroom=one) for one in (SIZES if name == STATIC else HEADROOMS)]
    return [one for one in found if one != stands]


def point(knobs: Knobs, figures: dict[str, Any]) -> dict[str, Any]:
    """One setting, and what it came to."""
    return asdict(knobs) | {name: figures[name] for name in FIGURES}
