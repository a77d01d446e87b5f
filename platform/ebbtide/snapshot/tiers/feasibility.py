"""Why a way cannot be taken: a means that is missing, memory, disk, the deadline, or what is asked for. Pure."""

from ebbtide.snapshot.tiers.cost_model import Estimate, Facts, Tier, Wish
from ebbtide.snapshot.tiers.formatting import gigabytes, seconds
from ebbtide.snapshot.tiers.obstacles import Hindrance, Means
from ebbtide.snapshot.tiers.tier_costs import needs

_STAYS_HERE = frozenset({Tier.EVICT_AND_CUDA, Tier.CUDA_CHECKPOINT})
_COMES_BACK_AS_IT_WAS = _STAYS_HERE | {Tier.CRIU_IMAGE}
_COOPERATIVE = frozenset({Tier.EVICT_AND_CUDA, Tier.EVICT_AND_SPILL, Tier.STOP_AND_RESTART})


def hindrances(way: Estimate, facts: Facts, wish: Wish) -> tuple[Hindrance, ...]:
    """Everything that is in the way of one way; empty: it holds. Nothing is ever in the way of `Tier.KILL`."""
    if way.tier is Tier.KILL:
        return ()
    found = [*_of_its_kind(way.tier, facts, wish)]
    if not found:
        required = needs(way.tier, facts, wish)
        found += dict.fromkeys(lack for means in Means if means in required for lack in facts.lacks(means))
        found += _memory(way, facts) + _disk(way, facts) + _deadline(way, wish)
    return tuple(found)


def _of_its_kind(tier: Tier, facts: Facts, wish: Wish) -> list[Hindrance]:
    """What no number changes."""
    found = []
    if tier is Tier.CUDA_CHECKPOINT and not facts.gpus:
        found.append(
            Hindrance(
                "it uses no GPU here: there is nothing for a CUDA driver to take",
                "nothing: on a machine without GPUs eviction to host memory frees a slot by itself",
            )
        )
    if tier in _COOPERATIVE and not facts.cooperates:
        found.append(
            Hindrance(
                "it has no safe points, and nobody knows its tensors or its checkpoint",
                "train with ebbtide's session, or let the CUDA driver or CRIU take the whole process",
            )
        )
    if tier in _STAYS_HERE and wish.node_goes:
        found.append(Hindrance("its state would stay in the memory of a node that goes", "spill it, or stop it"))
    if tier in _COMES_BACK_AS_IT_WAS and wish.other_workers:
        found.append(
            Hindrance(
                "it comes back on the same number of workers only", "restart it from its portable checkpoint instead"
            )
        )
    return found


def _memory(way: Estimate, facts: Facts) -> list[Hindrance]:
    room = facts.room_bytes
    if not way.ram_bytes or (room is not None and way.ram_bytes <= room):
        return []
    if room is None:
        return [
            Hindrance("how much host memory is free here is not known", "let the node's /proc/meminfo be read by us")
        ]
    wants = f"it needs {gigabytes(way.ram_bytes)} of host memory"
    if facts.host_budget_bytes is not None and facts.host_budget_bytes < way.ram_bytes:
        what = f"{wants}, and {gigabytes(facts.host_budget_bytes)} are left of the budget for parked state here"
        remedy = "raise pool.host_memory_per_node, park fewer workers per node, or say less in host_memory_per_worker"
        return [Hindrance(what, remedy)]
    what = f"{wants}, and {gigabytes(room)} can be taken on this node"
    return [Hindrance(what, "free memory there, or raise the container's limit or Ray's memory threshold")]


def _disk(way: Estimate, facts: Facts) -> list[Hindrance]:
    if not way.disk_bytes or way.tier is Tier.EVICT_AND_CUDA:  # its spill is a bonus
        return []
    if facts.disk_free_bytes is None:
        return [
            Hindrance(
                "how much room the shared directory has is not known", "see `ebbtide doctor`: it looks at the directory"
            )
        ]
    if way.disk_bytes <= facts.disk_free_bytes:
        return []
    free = gigabytes(facts.disk_free_bytes)
    what = f"it writes {gigabytes(way.disk_bytes)}, and the shared directory has room for {free}"
    return [Hindrance(what, "make room there: `ebbtide checkpoints` shows what old jobs keep")]


def _deadline(way: Estimate, wish: Wish) -> list[Hindrance]:
    if way.free_s <= wish.deadline_s:
        return []
    what = f"it frees the slots after {seconds(way.free_s)}, and is killed after {seconds(wish.deadline_s)}"
    return [Hindrance(what, f"raise the job's grace_s above {way.free_s:.0f}, or measure: `ebbtide probe --rehearse`")]
