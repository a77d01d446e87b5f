"""Which way a workload's state leaves its slots: a pure cost model over what was read and measured on one node.

`choose` looks at every way, throws out those that something stands in the way of (a means that is missing, too little
memory or disk, the deadline), and takes the one that frees the slots soonest; between equals the one that comes back
soonest, or, if the preemption is long against the difference, the one that gives host memory back. It always answers:
`Tier.KILL` is never thrown out, and taken only when nothing else is left. What is left becomes the fallbacks.

More host memory never makes the chosen way slower to free a slot. That holds by construction: ways are taken up in
the order of the memory that they need, and a later one replaces an earlier one only if it frees no later. A kill frees
later than anything that meets the deadline.

Not guaranteed: the estimates. They are bytes over rates, and `Rates` says which of these were never measured.
"""

from collections.abc import Iterable

from ebbtide.snapshot.tiers.cost_model import Choice, Estimate, Facts, Tier, Wish
from ebbtide.snapshot.tiers.feasibility import hindrances
from ebbtide.snapshot.tiers.formatting import gigabytes, seconds
from ebbtide.snapshot.tiers.obstacles import Hindrance
from ebbtide.snapshot.tiers.tier_costs import ways

LITTLE = 0.05  # of a preemption's length: so much later may a job be back for the sake of others' host memory

_BRIEF = Wish()


def choose(facts: Facts, wish: Wish = _BRIEF) -> Choice:
    """The tier to take now, why, and what is left if it fails. Always gives an answer; touches nothing."""
    holding: list[Estimate] = []
    estimates: dict[Tier, Estimate] = {}
    against: dict[Tier, tuple[Hindrance, ...]] = {}
    for way in ways(facts, wish):
        found = hindrances(way, facts, wish)
        if not found:
            holding.append(way)
        elif way.tier not in against or len(found) < len(against[way.tier]):  # the way that is nearest to holding
            against[way.tier], estimates[way.tier] = found, way
    order = [taken.tier for taken in _in_order(holding, wish)]
    estimates |= {tier: _best([way for way in holding if way.tier is tier], wish) for tier in order}
    rejected = {tier: against[tier] for tier in Tier if tier in against and tier not in order}
    return Choice(
        tier=order[0],
        reason=_reason(estimates[order[0]], facts, wish),
        estimates={tier: estimates[tier] for tier in Tier},
        hindrances=rejected,
        fallbacks=tuple(order[1:]),
    )


def _in_order(holding: list[Estimate], wish: Wish) -> Iterable[Estimate]:
    """The best way, the best way of another tier, and so on; killing comes last whatever it costs."""
    left = [way for way in holding if way.tier is not Tier.KILL]
    while left:
        taken = _best(left, wish)
        yield taken
        left = [way for way in left if way.tier is not taken.tier]
    yield from (way for way in holding if way.tier is Tier.KILL)


def _best(holding: list[Estimate], wish: Wish) -> Estimate:
    first, *later = sorted(holding, key=lambda way: (way.ram_bytes, way.free_s, way.resume_s))
    for way in later:
        if _is_better(way, first, wish):
            first = way
    return first


def _is_better(way: Estimate, than: Estimate, wish: Wish) -> bool:
    if way.free_s != than.free_s:
        return way.free_s < than.free_s
    spills = way.tier is Tier.EVICT_AND_SPILL, than.tier is Tier.EVICT_AND_SPILL
    sooner_s = than.resume_s - way.resume_s
    if spills[0] != spills[1] and wish.expected_s is not None and abs(sooner_s) <= LITTLE * wish.expected_s:
        return spills[0]
    return sooner_s > 0


def _reason(taken: Estimate, facts: Facts, wish: Wish) -> str:
    if taken.tier is Tier.KILL:
        return f"nothing else holds: {taken.way}"
    parts = [f"{taken.way}: the slots are free after {seconds(taken.free_s)}"]
    parts.append(f"it is back {seconds(taken.resume_s)} after it gets them again")
    if taken.ram_bytes:
        room = "" if facts.room_bytes is None else f" of the {gigabytes(facts.room_bytes)} that it may have"
        parts.append(f"it takes {gigabytes(taken.ram_bytes)} of host memory{room}")
    if taken.tier is Tier.EVICT_AND_SPILL and wish.expected_s is not None and taken.ram_bytes >= facts.tracked_bytes:
        parts.append(f"and gives it back once written, since it is away for {seconds(wish.expected_s)}")
    return ", ".join(parts)
