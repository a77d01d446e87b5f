"""What to keep and to ask for when a replica lacks slots. Pure."""

from collections.abc import Sequence

from ebbtide.pool.ids import NodeId, SeatId
from ebbtide.pool.plural import many
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.demand.replica_target import Want
from ebbtide_autoscaler.core.plan.plan import Draft


def note_lack(state: PoolState, want: Want, seat: SeatId, draft: Draft) -> bool:
    """Keep what is free for the replica of ``seat``, and note what it still lacks, and where.

    Says whether anything free could be kept for it. If not, the endpoint's next replica would lack just as much.
    """
    count = state.endpoints[want.endpoint].spec.slots_per_replica
    found = _keep(count, draft)
    if found is None:
        why = (
            f"no node can give {many(count, 'slot')}: the others belong to replicas, or to jobs that may not step aside"
        )
        draft.waits.append((seat, f"{want.reason}; {why}"))
        return False
    draft.contested = True
    node, lacking = found
    if not lacking:
        draft.waits.append((seat, "waits for its turn: one replica at a time is placed on a node"))
        return True
    if not draft.shortfall.endpoint:
        draft.shortfall.endpoint, draft.shortfall.why = want.endpoint, want.reason
    draft.shortfall.need_age_s = max(draft.shortfall.need_age_s, want.busy_for_s)
    where = f" on node {node[:8]}" if count > 1 else ""
    draft.waits.append((seat, f"{want.reason}; waits for {lacking} more slots{where}"))
    return lacking < count


def note_more(state: PoolState, want: Want, seats: Sequence[SeatId], draft: Draft) -> None:
    """The replicas of ``seats`` lack slots as the one before them did, each of several slots on a node of its own.

    A surge can want thousands more than the pool can give: they are told of in one sentence, not in one each.
    """
    if not seats:
        return
    count = state.endpoints[want.endpoint].spec.slots_per_replica
    if count == 1 and draft.free.nearest(count) is not None:
        draft.shortfall.lack(len(seats))
    elif count > 1:
        for _ in seats:
            if _keep(count, draft) is None:
                break
    more = f"{len(seats)} more replicas wait for slots" if len(seats) > 1 else "one more replica waits for slots"
    draft.waits.append((want.endpoint, f"{want.reason}; {more}"))


def _keep(count: int, draft: Draft) -> tuple[NodeId, int] | None:
    """The node that lacks fewest of ``count`` slots, what is free there kept, and how many it lacks; None: none can."""
    found = draft.free.nearest(count)
    if found is None:
        return None
    node, here = found
    kept = here[:count]
    lacking = count - len(kept)
    draft.free.take(kept)
    if lacking:
        draft.shortfall.lack(lacking, node if count > 1 else None)
    if lacking and count > 1:
        draft.free.await_on(node, lacking)
    return node, lacking
