"""What to keep and to ask for when a replica lacks slots. Pure."""

from collections.abc import Sequence

from ebbtide.pool.ids import NodeId, SeatId
from ebbtide.pool.plural import many
from ebbtide_autoscaler.core.demand.replica_target import ReplicaTarget
from ebbtide_autoscaler.core.plan.plan import Plan


def record_shortage(target: ReplicaTarget, seat: SeatId, plan: Plan) -> bool:
    """Keep what is free for the replica of ``seat``, and note what it still lacks, and where.

    Says whether anything free could be kept for it. If not, the endpoint's next replica would lack just as much.
    """
    count = plan.state.endpoints[target.endpoint].spec.slots_per_replica
    found = _keep(count, plan)
    if found is None:
        why = (
            f"no node can give {many(count, 'slot')}: the others belong to replicas, or to jobs that may not step aside"
        )
        plan.waits.append((seat, f"{target.reason}; {why}"))
        return False
    plan.contested = True
    node, lacking = found
    if not lacking:
        plan.waits.append((seat, "waits for its turn: one replica at a time is placed on a node"))
        return True
    if not plan.shortfall.endpoint:
        plan.shortfall.endpoint, plan.shortfall.why = target.endpoint, target.reason
    plan.shortfall.need_age_s = max(plan.shortfall.need_age_s, target.busy_for_s)
    where = f" on node {node[:8]}" if count > 1 else ""
    plan.waits.append((seat, f"{target.reason}; waits for {lacking} more slots{where}"))
    return lacking < count


def record_further_shortage(target: ReplicaTarget, seats: Sequence[SeatId], plan: Plan) -> None:
    """The replicas of ``seats`` lack slots as the one before them did, each of several slots on a node of its own.

    A surge can want thousands more than the pool can give: they are told of in one sentence, not in one each.
    """
    if not seats:
        return
    count = plan.state.endpoints[target.endpoint].spec.slots_per_replica
    if count == 1 and plan.free.nearest(count) is not None:
        plan.shortfall.lack(len(seats))
    elif count > 1:
        for _ in seats:
            if _keep(count, plan) is None:
                break
    more = f"{len(seats)} more replicas wait for slots" if len(seats) > 1 else "one more replica waits for slots"
    plan.waits.append((target.endpoint, f"{target.reason}; {more}"))


def _keep(count: int, plan: Plan) -> tuple[NodeId, int] | None:
    """The node that lacks fewest of ``count`` slots, what is free there kept, and how many it lacks; None: none can."""
    found = plan.free.nearest(count)
    if found is None:
        return None
    node, here = found
    kept = here[:count]
    lacking = count - len(kept)
    plan.free.take(kept)
    if lacking:
        plan.shortfall.lack(lacking, node if count > 1 else None)
    if lacking and count > 1:
        plan.free.await_on(node, lacking)
    return node, lacking
