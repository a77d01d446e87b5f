"""The cost model: which way a workload's state leaves its slots, and why. Pure: no clock, no I/O, no torch.

Begin with `choose`. ``transfer_rates`` has the speeds and where they come from, ``tier_costs`` what each tier costs,
``feasibility`` what is in the way of one.
"""

from ebbtide.snapshot.tiers.cost_model import Choice, Estimate, Facts, Tier, Wish
from ebbtide.snapshot.tiers.gang_estimate import together
from ebbtide.snapshot.tiers.obstacles import Hindrance, Means, Obstacle
from ebbtide.snapshot.tiers.tier_choice import choose
from ebbtide.snapshot.tiers.transfer_rates import Lane, Rate, Rates

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
