"""Which facts follow from what was seen: ``advance(state, seen, now_s, limits) -> facts``. Pure.

One call returns the facts of one round; the caller applies them and calls again until nothing follows any more. A
fact is a consequence of the present state and of level-triggered reports alone, so that a message that was lost,
repeated or late, or an arbiter that died in between, changes nothing but the time.
"""

from ebbtide.pool.events import Body, JobForgotten, NodeForgotten
from ebbtide.pool.lookup import index
from ebbtide.pool.rules.record_retention import nodes_to_forget, to_forget
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.observe import job_facts, seat_facts, slot_facts
from ebbtide_autoscaler.core.observe.observation import Limits, Observation


def derive_facts(state: PoolState, seen: Observation, now_s: float, limits: Limits) -> tuple[Body, ...]:
    """The facts that hold now and that ``state`` does not know yet."""
    return (
        *job_facts.facts(state, seen, now_s, limits),
        *seat_facts.facts(state, seen, now_s, limits),
        *slot_facts.facts(state, seen, now_s),
        *(JobForgotten(name) for name in to_forget(state, now_s, restorable=seen.restorable)),
        *(NodeForgotten(node, index.by_node(state.slots, node)) for node in nodes_to_forget(state, now_s)),
    )
