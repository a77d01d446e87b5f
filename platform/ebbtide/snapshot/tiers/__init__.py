"""The cost model: which way a workload's state leaves its slots, and why. Pure: no clock, no I/O, no torch.

Begin with `choose`. ``rates`` has the speeds and where they come from, ``ways`` what each tier costs, ``limits`` what
is in the way of one.
"""

from ebbtide.snapshot.tiers.choosing import choose
from ebbtide.snapshot.tiers.gang import together
from ebbtide.snapshot.tiers.hindrance import Hindrance, Means, Obstacle
from ebbtide.snapshot.tiers.model import Choice, Estimate, Facts, Tier, Wish
from ebbtide.snapshot.tiers.rates import Lane, Rate, Rates

__all__ = [
    "Choice",
    "Estimate",
    "Facts",
    "Hindrance",
    "Lane",
    "Means",
    "Obstacle",
    "Rate",
    "Rates",
    "Tier",
    "Wish",
    "choose",
    "together",
]
