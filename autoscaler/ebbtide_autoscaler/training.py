"""The policy's training side: who steps aside for replicas, and who gets what is left. Pure."""

from collections import Counter
from collections.abc import Mapping

from ebbtide.pool.events import GrantJob, ParkJob, ResumeJob, StopJob
from ebbtide.pool.ids import JobName, SlotId
from ebbtide.pool.index import awaited
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import JobRecord, PoolState, SlotRecord
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from ebbtide.snapshot.tiers import Tier
from ebbtide_autoscaler.draft import Draft
from ebbtide_autoscaler.leaving import leave
from ebbtide_autoscaler.owed import minima_owed
from ebbtide_autoscaler.placement import may_lose, packed, unclaimed
from ebbtide_autoscaler.signals import PolicyConfig

_COMING = frozenset({SeatState.PLACING, SeatState.STARTING, SeatState.WAKING})
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
        draft.waits.append((draft.missing_for.split(" ")[0], f"{missing} slots short: {'; '.join(held_back)}"))


def _useful(state: PoolState, draft: Draft, job: JobRecord) -> int:
    """How many slots of ``job`` the replicas that lack some could use."""
    return sum(_counts(draft, state, state.slots[slot]) for slot in job.gang)


def _counts(draft: Draft, state: PoolState, record: SlotRecord) -> bool:
    node = record.slot.node
    return record.state is not SlotState.LOST and node not in state.draining and (draft.anywhere or node in draft.nodes)


def _on_their_way(state: PoolState, draft: Draft) -> int:
    return sum(
        record.state is SlotState.RECLAIMING and _counts(draft, state, record) for record in state.slots.values()
    )


def vacate(state: PoolState, draft: Draft) -> None:
    """Have jobs leave nodes that drain: a person's wish goes before their class, and they lose no step by it."""
    for name, job in state.jobs.items() if state.draining else ():
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
    room = Counter(state.slots[slot].slot.node for slot in draft.free)
    room.update(record.slot.node for record in state.slots.values() if record.state is SlotState.RECLAIMING)
    for job in _victims(state, draft):
        gives = 0 if protected(now_s, job) else may_lose(job)
        for node, here in Counter(state.slots[slot].slot.node for slot in job.gang).items():
            room[node] += min(here, gives)
    return any(room[node] >= count for node in state.nodes if node not in state.draining)


def _victims(state: PoolState, draft: Draft) -> list[JobRecord]:
    """Running jobs, those that should step aside first first.

    Of equals one that is where a replica could wake, and one that would lose work last of all.
    """

    def order(job: JobRecord) -> tuple[int, bool, bool, int, float]:
        aside = draft.asides.get(job.spec.name)
        loses = aside is not None and aside.tier is Tier.KILL
        elsewhere = not any(slot in draft.best for slot in job.gang)
        return job.spec.priority, loses, elsewhere, len(job.gang), -job.ran_since_s

    return sorted((job for job in state.jobs.values() if job.state is JobState.RUNNING), key=order)


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
        return f"was preempted {len(recent)} times within the hour, its bound"
    return ""


def _step_aside(
    state: PoolState, job: JobRecord, missing: int, draft: Draft, config: PolicyConfig
) -> ParkJob | StopJob | None:
    """Park in place, unless the need has proven long, the job cannot, or it must not lose all its workers.

    What it cannot, and what each way costs, is the cost model's word (``asides``).
    """
    name, spec = job.spec.name, job.spec
    for_whom = f"{missing} slots for {draft.missing_for}"
    left = len(job.gang) - missing
    if spec.workload_class is WorkloadClass.SEMI_PREEMPTIBLE:
        if left < spec.workers_min:
            return None
        return StopJob(name, f"{for_whom}: goes on with {left} workers (semi-preemptible)", preempts=True)
    cost_s = draft.restart_costs_s(name, config.restart_cost_s)
    if spec.in_place and left >= spec.workers_min and draft.need_age_s >= cost_s:
        why = f"busy for {draft.need_age_s:.0f} s already, a restart costs {cost_s:.0f} s"
        return StopJob(name, f"{for_whom}: goes on with {left} workers ({why})", preempts=True)
    return leave(state, job, draft, for_whom)


def give(
    now_s: float,
    state: PoolState,
    draft: Draft,
    config: PolicyConfig,
    grow_since_s: Mapping[JobName, float],
) -> Mapping[JobName, float]:
    """Give what replicas leave free to jobs: resume, start, restart smaller, grow; the reserve stays free."""
    growing: dict[JobName, float] = {}
    moved = draft.moved()
    if not draft.contested:
        together = {*draft.free, *draft.owed}
        draft.free, draft.owed = [slot for slot in state.free_slots() if slot in together], []
    alive = [job for job in state.jobs.values() if job.state is not JobState.ENDED]
    calm = not any(seat.state in _COMING for seat in state.seats.values())
    for job in sorted(alive, key=lambda job: (-job.spec.priority, job.submitted_s, job.spec.name)):
        if job.spec.name in moved or job.held is not None:
            continue
        usable = draft.free[: max(0, len(draft.free) - config.reserve)]
        if job.state is JobState.PARKED:
            _unpark(now_s, state, job, draft, config)
        elif job.state is JobState.WAITING and now_s < job.not_before_s:
            draft.waits.append((job.spec.name, _backs_off(now_s, job)))
        elif job.state is JobState.WAITING and not job.cancelled:
            _start(state, job, usable, draft, config)
        elif job.state in (JobState.STOPPING, JobState.RECOVERING) and not job.cancelled:
            # It comes back in a moment: jobs after it must not take what it was stopped to run on.
            _take(draft, unclaimed(state, usable, job.spec.name)[: job.spec.workers_max])
        elif job.state is JobState.RUNNING and calm and _may_grow(state, job, usable, draft):
            since_s = grow_since_s.get(job.spec.name, now_s)
            growing[job.spec.name] = since_s
            _grow(now_s, job, unclaimed(state, usable, job.spec.name), since_s, draft, config)
    return growing


def _backs_off(now_s: float, job: JobRecord) -> str:
    """Why a job that crashes again and again gets no slots yet."""
    left_s, times = job.not_before_s - now_s, job.failures_in_a_row
    last = f"the last time because: {job.last_error[:200]}"
    return f"crashed {times} times without progress, next try in {left_s:.0f} s; {last}"


def _take(draft: Draft, slots: tuple[SlotId, ...]) -> None:
    taken = set(slots)
    draft.free = [slot for slot in draft.free if slot not in taken]


def _unpark(now_s: float, state: PoolState, job: JobRecord, draft: Draft, config: PolicyConfig) -> None:
    name = job.spec.name
    if job.cancelled or draft.contested:
        draft.waits.append((name, "parked: replicas wait for slots, they go first"))
        return
    free = set(draft.free)
    missing = [slot for slot in job.gang if slot not in free]
    if not missing and len(draft.free) - len(job.gang) >= config.reserve:
        _take(draft, job.gang)
        draft.moves.append(ResumeJob(name, "all its slots are free again"))
        return
    parked_s = now_s - job.asked_s
    who = ", ".join(sorted({str(state.slots[s].occupant or state.slots[s].state.value) for s in missing}))
    lacks = f"{len(missing)} of its slots are taken by {who}" if missing else "its slots are free"
    kept = f", {config.reserve} slots are kept free as the reserve" if config.reserve else ""
    cost_s, usual_s = draft.restart_costs_s(name, config.restart_cost_s), draft.expected_s or 0.0
    if max(parked_s, usual_s) < cost_s:
        draft.waits.append((name, f"parked: {lacks}{kept}"))
        return
    others = unclaimed(state, draft.free, name)
    room = min(len(others), max(0, len(draft.free) - config.reserve))
    if room >= job.spec.workers_min:
        count = min(room, job.spec.workers_max)
        usual = f", such usually lasts {usual_s:.0f} s" if parked_s < cost_s else ""
        why = f"parked for {parked_s:.0f} s{usual}, a restart costs {cost_s:.0f} s"
        draft.moves.append(StopJob(name, f"{why}: goes on with {count} workers", preempts=True))
        _take(draft, others[:count])
    else:
        draft.waits.append((name, f"parked: {lacks}{kept}, and the {room} that it could restart on are too few"))


def _start(state: PoolState, job: JobRecord, usable: list[SlotId], draft: Draft, config: PolicyConfig) -> None:
    name, spec = job.spec.name, job.spec
    if draft.contested and name in minima_owed(state) and len(draft.owed) >= spec.workers_min:
        slots = packed(state, draft.owed, spec.workers_min)
        draft.owed = [slot for slot in draft.owed if slot not in slots]
        draft.moves.append(GrantJob(name, slots, f"its minimum of {spec.workers_min}, which replicas leave to it"))
        return
    if draft.contested:
        draft.waits.append((name, "waits: replicas need slots, they go first"))
        return
    room = unclaimed(state, usable, name)
    if len(room) < spec.workers_min:
        kept = f", {config.reserve} in reserve" if config.reserve else ""
        claimed = _claimed_for(state, usable, room)
        draft.waits.append((name, f"waits: needs {spec.workers_min} slots, {len(room)} are free for it{kept}{claimed}"))
        return
    slots = packed(state, room, min(len(room), spec.workers_max))
    _take(draft, slots)
    draft.moves.append(GrantJob(name, slots, f"{len(room)} slots are free; it takes {len(slots)}"))


def _claimed_for(state: PoolState, usable: list[SlotId], room: tuple[SlotId, ...]) -> str:
    """Who keeps free slots from a job, in words: parked jobs that can come back on these only."""
    claims = awaited(state.jobs)
    kept = [slot for slot in usable if slot not in room]
    who = sorted({name for slot in kept for name in claims.get(slot, ())})
    return f", {len(kept)} wait for {', '.join(who)}, parked" if who else ""


def _may_grow(state: PoolState, job: JobRecord, usable: list[SlotId], draft: Draft) -> bool:
    if draft.contested or len(job.gang) >= job.spec.workers_max or not usable:
        return False
    return bool(unclaimed(state, usable, job.spec.name))


def _grow(
    now_s: float, job: JobRecord, room: tuple[SlotId, ...], since_s: float, draft: Draft, config: PolicyConfig
) -> None:
    name, spec = job.spec.name, job.spec
    if now_s - since_s < config.grow_after_s or now_s - job.ran_since_s < spec.min_runtime_s:
        return
    count = min(len(job.gang) + len(room), spec.workers_max)
    _take(draft, room[: count - len(job.gang)])
    why = f"{len(room)} slots have been free for {now_s - since_s:.0f} s"
    draft.moves.append(StopJob(name, f"{why}: goes on with {count} workers instead of {len(job.gang)}", preempts=False))
