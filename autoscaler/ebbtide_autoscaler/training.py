"""Who steps aside for replicas, and in which order. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from ebbtide.pool.events import ParkJob, StopJob
from ebbtide.pool.ids import JobName
from ebbtide.pool.index import in_state, nodes_with
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import JobRecord, PoolState, SlotRecord
from ebbtide.pool.transitions import JobState, SlotState
from ebbtide.pool.words import many
from ebbtide.snapshot.tiers import Tier
from ebbtide.snapshot.tiers.aside import StepAside
from ebbtide_autoscaler.draft import Draft
from ebbtide_autoscaler.leaving import leave
from ebbtide_autoscaler.placement import may_lose
from ebbtide_autoscaler.signals import PolicyConfig
from ebbtide_autoscaler.turn import turn

PREEMPTION_WINDOW_S = 3600.0  # JobSpec.max_preemptions_per_h


def reclaim(now_s: float, state: PoolState, draft: Draft, config: PolicyConfig) -> None:
    """Ask jobs to step aside until the replicas' missing slots are on their way."""
    if draft.missing <= 0:
        return
    missing = draft.missing - _on_their_way(state, draft)
    held_back: list[str] = []
    moved = draft.moved()
    missing -= sum(_useful(state, draft, job) for name, job in state.jobs.items() if name in moved)
    for job in _victims(state, draft):
        if missing <= 0:
            break
        useful = _useful(state, draft, job)
        if not useful or job.spec.name in moved:
            continue
        why_not = protected(now_s, job)
        if why_not:
            held_back.append(f"job {job.spec.name} {why_not}")
            continue
        move = _step_aside(state, job, missing, draft, config)
        if move is None:
            held_back.append(f"job {job.spec.name} is semi-preemptible and at its minimum")
            continue
        draft.moves.append(move)
        missing -= useful
    if missing > 0 and held_back:
        draft.waits.append((draft.missing_for.split(" ")[0], f"{many(missing, 'slot')} short: {'; '.join(held_back)}"))


def _useful(state: PoolState, draft: Draft, job: JobRecord) -> int:
    """How many slots of ``job`` the replicas that lack some could use."""
    return sum(_counts(draft, state, state.slots[slot]) for slot in job.gang)


def _counts(draft: Draft, state: PoolState, record: SlotRecord) -> bool:
    node = record.slot.node
    return record.state is not SlotState.LOST and node not in state.draining and (draft.anywhere or node in draft.nodes)


def _on_their_way(state: PoolState, draft: Draft) -> int:
    return sum(_counts(draft, state, state.slots[slot]) for slot in in_state(state.slots, SlotState.RECLAIMING))


def vacate(state: PoolState, draft: Draft) -> None:
    """Have jobs leave nodes that drain: a person's wish goes before their class, and they lose no step by it."""
    for job in sorted(state.jobs.values(), key=turn) if state.draining else ():
        name = job.spec.name
        nodes = sorted({state.slots[slot].slot.node for slot in job.gang} & set(state.draining))
        if not nodes or job.cancelled:
            continue
        why = f"node {nodes[0][:8]} drains ({state.draining[nodes[0]]})"
        if job.state in (JobState.RUNNING, JobState.PARKED):
            then = "stays aside, held by a person" if job.held else "goes on elsewhere"
            draft.moves.append(StopJob(name, f"{why}: {then}", preempts=False))
        elif job.state in (JobState.STARTING, JobState.RESUMING, JobState.PARKING):
            draft.waits.append((name, f"{why}: it leaves when it is {_NEXT[job.state]}"))


_NEXT = {JobState.STARTING: "running", JobState.RESUMING: "running", JobState.PARKING: "parked"}


def room_for(now_s: float, state: PoolState, draft: Draft, count: int) -> bool:
    """Whether one node could come to have ``count`` free slots: those free, on their way, or of jobs that may go."""
    room = draft.free.by_node()
    room.update(nodes_with(state.slots, SlotState.RECLAIMING))
    for job in _victims(state, draft):
        gives = 0 if protected(now_s, job) else may_lose(job)
        for node, here in Counter(state.slots[slot].slot.node for slot in job.gang).items():
            room[node] += min(here, gives)
    return any(room[node] >= count for node in state.nodes if node not in state.draining)


def _victims(state: PoolState, draft: Draft) -> list[JobRecord]:
    """Running jobs, those that should step aside first first.

    Of one priority: one that loses work last of all, one that is where a replica could wake before others, then the one
    that costs the pool the least (`switch_slot_s`), then the one that has run for the shortest time, then the one that
    came last. A name means nothing. With teams, those of the one that is most beyond what it was promised go first, as
    if all before it had left.
    """
    running = [job for job in state.jobs.values() if job.state is JobState.RUNNING]
    costs = switch_slot_s(running, draft.asides)

    def order(job: JobRecord) -> tuple[int, bool, bool, float, float, float, int]:
        aside = draft.asides.get(job.spec.name)
        loses = aside is not None and aside.tier is Tier.KILL
        elsewhere = not any(slot in draft.best for slot in job.gang)
        last_first = -job.ran_since_s, -job.submitted_s, -job.submission
        return job.spec.priority, loses, elsewhere, costs[job.spec.name], *last_first

    running.sort(key=order)
    return running if draft.shares is None else draft.shares.asked(running, lambda job: order(job)[:2])


def switch_slot_s(jobs: Sequence[JobRecord], asides: Mapping[JobName, StepAside]) -> Mapping[JobName, float]:
    """Slot-seconds in which each job's gang would neither train nor be of use to others, if it left and came back.

    As its cost model says, by what was measured on its nodes; of whom nobody has reckoned, as the middle one of the
    others, so that it goes by its slots.
    """
    seconds = {name: one.free_s + one.resume_s for name, one in asides.items()}
    unknown_s = median(seconds.values()) if seconds else 1.0
    return {job.spec.name: seconds.get(job.spec.name, unknown_s) * len(job.gang) for job in jobs}


def protected(now_s: float, job: JobRecord) -> str:
    """Why ``job`` may not be asked to step aside now; empty if it may."""
    spec = job.spec
    if spec.workload_class is WorkloadClass.NON_PREEMPTIBLE:
        return "is non-preemptible"
    left_s = job.ran_since_s + spec.min_runtime_s - now_s
    if left_s > 0:
        return f"is within its minimum runtime for {left_s:.0f} s more"
    recent = [at_s for at_s in job.preempted_s if now_s - at_s < PREEMPTION_WINDOW_S]
    if len(recent) >= spec.max_preemptions_per_h:
        return f"was preempted {many(len(recent), 'time')} within the hour, its bound"
    return ""


def _step_aside(
    state: PoolState, job: JobRecord, missing: int, draft: Draft, config: PolicyConfig
) -> ParkJob | StopJob | None:
    """Park in place, unless the need has proven long, the job cannot, or it must not lose all its workers.

    What it cannot, and what each way costs, is the cost model's word (``asides``).
    """
    name, spec = job.spec.name, job.spec
    for_whom = f"{many(missing, 'slot')} for {draft.missing_for}"
    left = len(job.gang) - missing
    if spec.workload_class is WorkloadClass.SEMI_PREEMPTIBLE:
        if left < spec.workers_min:
            return None
        return StopJob(name, f"{for_whom}: goes on with {many(left, 'worker')} (semi-preemptible)", preempts=True)
    cost_s = draft.restart_costs_s(name, config.restart_cost_s)
    if spec.in_place and left >= spec.workers_min and draft.need_age_s >= cost_s:
        why = f"busy for {draft.need_age_s:.0f} s already, a restart costs {cost_s:.0f} s"
        return StopJob(name, f"{for_whom}: goes on with {many(left, 'worker')} ({why})", preempts=True)
    return leave(state, job, draft, for_whom)
