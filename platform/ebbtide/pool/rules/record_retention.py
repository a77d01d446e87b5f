"""Which ended jobs and which lost nodes are forgotten, and which are kept although they are over. Pure.

Ended jobs stay in the state for those who ask: ``status``, a driver that waits for its last word to be taken in, a
job of the same name that goes on where the last one stopped. There is no end to their number, so the oldest are
forgotten by an event of the ledger; ``why`` and ``events`` tell of them from the ledger's history and index.

Lost nodes stay for whoever looks at what was lost, and for the jobs and seats that still name their slots. There is
no end to their number either, for a machine that comes back has a new id. What keeps a GPU from two owners is not in
their records: that is the lock of the GPU on its own machine, named by its uuid, and the number of the last lease,
which grows whatever is forgotten.

Not guaranteed: what was counted of a forgotten job (its durable steps, its failures in a row). One of the same name
that is submitted again begins its counts anew; what it has trained is in its own checkpoints, and stays.
"""

from ebbtide.pool.ids import JobName, NodeId
from ebbtide.pool.lookup import index
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide.pool.transitions import JobState, SlotState

ENDED_KEPT = 200  # three screens of `status`; a record is about 1 kB, here and in each snapshot
ENDED_KEPT_MAX = 1000  # with those that are spared for a while; 1 MB, and a tick that looks at them takes 1 ms more
SPARED_S = 600.0  # after its end: whoever waits for it has seen it, and a new arbiter knows which can be restored
AT_ONCE = 16  # a ledger from before this rule has thousands: no tick may take long over them
LOST_KEPT = 32  # nodes: machines that restart now and then are all told of; 256 slots, 100 kB in a snapshot
LOST_KEPT_MAX = 256  # with those that are spared for a while: 2,000 slots, 800 kB, and a tick takes some 3 ms more
LOST_SPARED_S = 600.0  # `status` shows a lost slot for so long
LOST_AT_ONCE = 2  # a ledger from before this rule has thousands, and each one costs a look at all slots
RESTORES_MAX = 3  # in a row without a durable step: then it is not the driver's bad luck


def may_come_back(job: JobRecord) -> bool:
    """Whether the pool would submit the job again by itself, if its submission is kept."""
    lost = (
        job.state is JobState.ENDED
        and job.outcome.startswith("lost:")  # guard: no job that ended otherwise than lost is restored
        and not job.cancelled  # guard: no cancelled job is restored
    )
    return (
        lost
        # guard: a job is restored three times without progress
        and job.restores < RESTORES_MAX
    )


def is_over(state: PoolState, name: JobName) -> bool:
    """Whether the job has ended and no slot is on its way back from it, not even of an earlier submission."""
    return (
        state.jobs[name].state is JobState.ENDED
        and name not in index.occupants(state.slots)  # guard: no job that has a slot is chosen to be forgotten
    )


def to_forget(state: PoolState, now_s: float, *, restorable: frozenset[JobName]) -> tuple[JobName, ...]:
    """The ended jobs to be forgotten now, oldest first; a few at a time, so ask again.

    Args:
        state: of the pool.
        now_s: seconds since 1970.
        restorable: jobs with a kept submission. One of these that was lost will be wanted again, so it goes last.
    """
    ended = index.ended_jobs(state.jobs)  # oldest first
    if len(ended) <= ENDED_KEPT:  # guard: the last two hundred ended jobs are kept
        return ()
    over = [name for name in ended if is_over(state, name)]
    # guard: an ended job that is wanted again is spared
    wanted = [name for name in over if name in restorable and may_come_back(state.jobs[name])]
    # guard: an ended job is spared for a while
    spared = {*wanted, *(name for name in over if now_s - state.jobs[name].since_s < SPARED_S)}
    going = [name for name in over if name not in spared][: len(ended) - ENDED_KEPT]
    too_many = len(ended) - len(going) - ENDED_KEPT_MAX
    if too_many > 0:  # guard: what is spared has a bound too
        last = [name for name in over if name in spared and name not in wanted]
        going += [*last, *wanted][:too_many]
    return tuple(going[:AT_ONCE])


def is_gone(state: PoolState, node: NodeId) -> bool:
    """Whether the node has left nothing but lost slots, and no job and no seat names one of these any more."""
    counted_on = index.counted_on(state.jobs, state.seats)
    slots = index.by_node(state.slots, node)
    left = all(
        state.slots[slot].state is SlotState.LOST  # guard: a slot that is not lost is not forgotten
        and slot not in counted_on  # guard: no slot of a lost node is forgotten while a job or seat names it
        for slot in slots
    )
    return (
        bool(slots)
        and left
        # guard: a node that is alive is not forgotten
        and node not in state.nodes
    )


def nodes_to_forget(state: PoolState, now_s: float) -> tuple[NodeId, ...]:
    """The lost nodes to be forgotten now, those lost first at the front; a few at a time, so ask again."""
    since_s = index.lost_since(state.slots)
    lost = [node for node in since_s if node not in state.nodes] if len(since_s) > LOST_KEPT else []
    going: list[NodeId] = []
    for node in lost:
        kept = LOST_KEPT if now_s - since_s[node] >= LOST_SPARED_S else LOST_KEPT_MAX
        if len(going) == LOST_AT_ONCE or len(lost) - len(going) <= kept:
            break
        if is_gone(state, node):
            going.append(node)
    return tuple(going)
