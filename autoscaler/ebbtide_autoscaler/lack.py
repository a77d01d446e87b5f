"""What to keep and to ask for when a replica lacks slots. Pure."""

from ebbtide.pool.ids import SeatId
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.draft import Draft
from ebbtide_autoscaler.serving import Want


def note_lack(state: PoolState, want: Want, seat: SeatId, draft: Draft) -> None:
    """Keep what is free for the replica of ``seat``, and note what it still lacks, and where."""
    count = state.endpoints[want.endpoint].spec.slots_per_replica
    found = draft.free.nearest(count)
    if found is None:
        why = f"no node can give {count} slots: the others belong to replicas, or to jobs that may not step aside"
        draft.waits.append((seat, f"{want.reason}; {why}"))
        return
    draft.contested = True
    node, here = found
    kept = here[:count]
    draft.free.take(kept)
    lacking = count - len(kept)
    if not lacking:
        draft.waits.append((seat, "waits for its turn: one replica at a time is placed on a node"))
        return
    draft.missing += lacking
    draft.missing_for = draft.missing_for or f"{want.endpoint} ({want.reason})"
    draft.need_age_s = max(draft.need_age_s, want.busy_for_s)
    draft.nodes.add(node)
    draft.anywhere = draft.anywhere or count == 1
    where = f" on node {node[:8]}" if count > 1 else ""
    draft.waits.append((seat, f"{want.reason}; waits for {lacking} more slots{where}"))
