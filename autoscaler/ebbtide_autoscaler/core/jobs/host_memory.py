"""Whether a gang can park in place where it is: the host memory that is left there for parked workers. Pure."""

from collections import Counter

from ebbtide.pool.events import ParkJob
from ebbtide.pool.ids import NodeId
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide_autoscaler.core.plan.plan import Plan


def no_host_memory(job: JobRecord, plan: Plan) -> str:
    """Why ``job`` cannot park in place now; empty if it can. What the plan parks already counts too."""
    state = plan.state
    promised: Counter[NodeId] = Counter()
    for move in plan.moves:
        if isinstance(move, ParkJob):
            promised += _needed(state, state.jobs[move.job])  # guard: two jobs do not park into the same host memory
    for node, more_bytes in _needed(state, job).items():
        # guard: a job parks only where there is host memory for it
        if state.parked_bytes(node) + promised[node] + more_bytes > state.nodes.get(node, 0):
            return f"node {node} has no {more_bytes} bytes of host memory left for parked workers"
    return ""


def _needed(state: PoolState, job: JobRecord) -> Counter[NodeId]:
    found: Counter[NodeId] = Counter()
    for slot in job.gang:
        found[state.slots[slot].slot.node] += job.spec.host_bytes_per_worker
    return found
