"""What to keep and to ask for when a replica lacks slots. Pure."""

from collections.abc import Sequence

from ebbtide.pool.ids import SeatId
from ebbtide.pool.state import PoolState
from ebbtide.pool.words import many
from ebbtide_autoscaler.draft import Draft
from ebbtide_autoscaler.serving import Want


def note_lack(state: PoolState, want: Want, seat: SeatId, draft: Draft) -> bool:
    """Keep what is free for the replica of ``seat``, and note what it still lacks, and where.

    Says whether anything was free that could be kept; else the next one of the endpoint lacks just the same.
    """
    count = state.endpoints[want.endpoint].spec.slots_per_replica
    found = draft.free.nearest(count)
    if found is None:
        why = (
            f"no node can give {many(count, 'slot')}: the others belong to replicas, or to jobs that may not step aside"
        )
        draft.waits.append((seat, f"{want.reason}; {why}"))
        return False
    draft.contested = True
    node, here = found
    kept = here[:count]
    draft.free.take(kept)
    lacking = count - len(kept)
    if not lacking:
        draft.waits.append((seat, "waits for its turn: one replica at a time is placed on a node"))
        return True
    draft.missing += lacking
    draft.missing_for = draft.missing_for or f"{want.endpoint} ({want.reason})"
    draft.need_age_s = max(draft.need_age_s, want.busy_for_s)
    draft.nodes.add(node)
    draft.anywhere = draft.anywhere or count == 1
    where = f" on node {node[:8]}" if count > 1 else ""
    draft.waits.append((seat, f"{want.reason}; waits for {lacking} more slots{where}"))
    return bool(kept)


def note_more(state: PoolState, want: Want, seats: Sequence[SeatId], draft: Draft) -> None:
    """The replicas of ``seats`` lack all that the one before them lacked: nothing that is free could be kept for it.

    A surge can want thousands more than the pool can give: they are told of in one sentence, not in one each.
    """
    if not seats:
        return
    count = state.endpoints[want.endpoint].spec.slots_per_replica
    if draft.free.nearest(count) is not None:
        draft.missing += len(seats) * count
    more = f"{len(seats)} more replicas wait for slots" if len(seats) > 1 else "one more replica waits for slots"
    draft.waits.append((want.endpoint, f"{want.reason}; {more}"))
