"""One tier for a workload on several nodes: its ranks leave in the same way, and the slowest frees the last slot."""

from collections.abc import Sequence

from ebbtide.snapshot.tiers.cost_model import Choice, Tier


def together(choices: Sequence[Choice]) -> Tier:
    """The tier that holds on every node and frees the last slot soonest; killing, if no other holds everywhere.

    Args:
        choices: one for each node, at least one.
    """
    assert choices, "a workload is on one node at least"
    standing = [
        tier for tier in Tier if tier is not Tier.KILL and not any(tier in choice.hindrances for choice in choices)
    ]
    alike = {choice.tier for choice in choices}
    if len(alike) == 1:
        return alike.pop()
    return min(standing, key=lambda tier: max(choice.estimates[tier].free_s for choice in choices), default=Tier.KILL)
