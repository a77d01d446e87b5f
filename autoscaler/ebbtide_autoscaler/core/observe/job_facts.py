"""What has become of each job, from what its ranks and its Train controller say. Pure."""

from collections.abc import Iterator, Mapping

from ebbtide.client.messages import ControllerPhase, RankPhase, RankReport
from ebbtide.pool.events import (
    Body,
    JobCrashed,
    JobDurable,
    JobEnded,
    JobLoading,
    JobParked,
    JobRecovered,
    JobRunning,
    JobStopped,
    StopJob,
)
from ebbtide.pool.ids import NodeId, SlotId
from ebbtide.pool.lookup.index import in_state
from ebbtide.pool.plural import many
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide.pool.transitions import JobState, SlotState
from ebbtide_autoscaler.core.observe.observation import STRAGGLER_S, Limits, Observation

GANG_EXISTS = frozenset({JobState.STARTING, JobState.RUNNING, JobState.PARKING, JobState.PARKED, JobState.RESUMING})
STEPS_ASIDE = frozenset({JobState.PARKING, JobState.STOPPING})
COMES_UP = frozenset({JobState.STARTING, JobState.RESUMING})
LOADS_AFTER_S = 10.0  # of a gang that starts: most that load nothing train by then
HANGS_S = 5.0  # past `startup_timeout_s`: the rank writes its stack into its log first
WHY_CHARS = 500  # of what a process says went wrong
LOG_TAIL_CHARS = 2000  # as a controller sends at most; one record of the ledger holds it well


def facts(state: PoolState, seen: Observation, now_s: float, limits: Limits) -> Iterator[Body]:
    """At most one new fact per job, and its durable step."""
    lost = in_state(state.slots, SlotState.LOST)
    for job in state.jobs.values():
        if job.state is JobState.ENDED:
            continue
        ranks = _gang(job, seen)
        durable = _durable(job, seen, ranks)
        if durable > job.durable_step:
            yield JobDurable(job.spec.name, durable)
        fact = _silent(job, seen, now_s, limits) or _cut_off(job, seen, ranks, now_s, limits, lost)
        fact = fact or _next(state, job, seen, ranks, durable, now_s)
        if fact is not None:
            yield fact


def _gang(job: JobRecord, seen: Observation) -> dict[int, RankReport]:
    """The reports of the present gang's ranks."""
    found = {}
    for rank in range(len(job.gang)):
        heard = seen.ranks.get((job.spec.name, rank))
        if (
            heard is None
            or heard.report.incarnation != job.incarnation  # guard: ranks of an earlier submission say nothing
        ):
            continue
        if (
            heard.report.lease_epoch >= job.gang_epoch  # guard: ranks of an earlier gang say nothing
            and heard.report.world == len(job.gang)  # guard: ranks of a gang of another size say nothing
        ):
            found[rank] = heard.report
    return found


def _durable(job: JobRecord, seen: Observation, ranks: dict[int, RankReport]) -> int:
    """Finished steps that are published, by whoever knows most: the last rank may be gone before it could say."""
    heard = seen.controllers.get(job.spec.name)
    ours = heard is not None and heard.report.incarnation == job.incarnation
    # guard: the controller's word on the durable step counts
    said = heard.report.durable_step if heard is not None and ours else 0
    return max([job.durable_step, said, *(r.durable_step for r in ranks.values())])


def _silent(job: JobRecord, seen: Observation, now_s: float, limits: Limits) -> Body | None:
    heard = seen.controllers.get(job.spec.name)
    silent_s = seen.silent_s(
        max(  # guard: a driver's silence counts from its registration
            heard.at_s if heard else 0.0,
            job.registered_s,
        ),
        now_s,
    )
    if silent_s < limits.silence_s:  # guard: a driver may be silent for some seconds
        return None
    return JobEnded(job.spec.name, "lost", f"its driver has been silent for {silent_s:.0f} s")


def _cut_off(
    job: JobRecord,
    seen: Observation,
    ranks: dict[int, RankReport],
    now_s: float,
    limits: Limits,
    lost: Mapping[SlotId, NodeId],
) -> Body | None:
    """What nobody of the job can say: a node died under its gang, or the gang does not come up."""
    why = ""
    mine = [slot for slot in job.gang if slot in lost] if lost else []
    if mine and job.state in GANG_EXISTS:  # guard: a dead node under a gang is a crash
        why = f"its node is gone, and {', '.join(mine)} with it"
    waited_s = seen.waited_s(job.since_s, now_s)
    if job.loading:  # guard: a gang that loads is given its own time
        return _hangs(job, ranks, waited_s) or _lost(job, seen, ranks, why)
    if job.state in COMES_UP and waited_s > limits.gang_timeout_s:  # guard: a gang that does not come up is a crash
        came = sum(r.phase is RankPhase.RUNNING and r.lease_epoch == job.epoch for r in ranks.values())
        why = why or f"{len(job.gang) - came} of its {len(job.gang)} ranks did not train within {waited_s:.0f} s"
    return _lost(job, seen, ranks, why)


def _lost(job: JobRecord, seen: Observation, ranks: dict[int, RankReport], why: str) -> Body | None:
    return JobCrashed(job.spec.name, why, _lost_steps(job, seen, ranks)) if why else None


def _hangs(job: JobRecord, ranks: dict[int, RankReport], waited_s: float) -> Body | None:
    """The end of a job whose train function does not come to its steps: another try would hang as well."""
    if waited_s <= job.spec.startup_timeout_s + HANGS_S:  # guard: loading has a bound
        return None
    slow = [rank for rank, report in sorted(ranks.items()) if report.phase is RankPhase.STARTING]
    where = next((ranks[rank].stands_at for rank in slow if ranks[rank].stands_at), "")
    detail = (
        f"its train function did not begin its steps within {job.spec.startup_timeout_s:g} s (startup_timeout_s)"
        f"{f': rank {slow[0]} stands at {where}' if slow and where else ''}; its stack is in its log"
    )
    return JobEnded(job.spec.name, "failed", detail)


def _is_up(job: JobRecord, ranks: dict[int, RankReport]) -> bool:
    """Whether every rank of a gang that starts has said that its session is there."""
    return len(ranks) == len(job.gang) and all(report.lease_epoch == job.epoch for report in ranks.values())


def _lost_steps(job: JobRecord, seen: Observation, ranks: dict[int, RankReport]) -> int:
    """Finished steps that are not durable, as far as is known."""
    step = max([job.step, *(r.step for r in ranks.values())])
    return max(0, step - _durable(job, seen, ranks))


def _given_up(job: JobRecord, seen: Observation) -> JobEnded:
    """The end of a job that crashes again and again, with what its author needs to see why."""
    heard = seen.controllers.get(job.spec.name)
    tail = heard.report.log_tail[-LOG_TAIL_CHARS:] if heard is not None else ""
    detail = f"crashed {many(job.failures_in_a_row, 'time')} without progress, the last time because: {job.last_error}"
    return JobEnded(job.spec.name, "failed", f"{detail}\n{tail}" if tail else detail)


def _next(
    state: PoolState, job: JobRecord, seen: Observation, ranks: dict[int, RankReport], durable: int, now_s: float
) -> Body | None:
    name = job.spec.name
    step = max((r.step for r in ranks.values()), default=job.step)
    held = state.held_by(name, job.epoch)
    complete = len(ranks) == len(job.gang)
    if job.state in GANG_EXISTS and _gang_lost(job, seen):
        return JobCrashed(name, _last_error(job, seen), _lost_steps(job, seen, ranks))
    if job.state in (JobState.STARTING, JobState.RESUMING):
        up = (
            complete  # guard: a gang runs when no rank is missing
            # guard: a gang runs when every rank says so of this lease
            and all(r.phase is RankPhase.RUNNING and r.lease_epoch == job.epoch for r in ranks.values())
        )
        if up:
            return JobRunning(name, step, max(r.lost_steps for r in ranks.values()))
        loads = job.state is JobState.STARTING and not job.loading and _is_up(job, ranks)
        return JobLoading(name) if loads and seen.waited_s(job.since_s, now_s) > LOADS_AFTER_S else None
    if job.state is JobState.PARKING:
        refused = next((r.park_refused for r in ranks.values() if r.park_refused), "")
        if refused:  # guard: a gang that cannot park stops
            return StopJob(name, f"cannot park in place: {refused}{_then(job)}", preempts=True)
        parked = (
            complete
            and all(r.phase is RankPhase.PARKED for r in ranks.values())  # guard: a gang is parked when all ranks are
        )
        if (
            parked
            # guard: a gang is parked when it holds no slot
            and not held
        ):
            return JobParked(name, step)
    if job.state is JobState.STOPPING and not held and _gang_lost(job, seen):
        undone = max((r.step for r in ranks.values()), default=0) - durable
        # guard: a gang that was ended before it began has lost nothing
        if job.left_early and undone <= 0:
            return JobStopped(name, job.step)
        if _gang_failed(job, seen):  # steps that nobody lived to report may be lost, however much is durable
            return JobCrashed(name, _last_error(job, seen), _lost_steps(job, seen, ranks))
        if durable >= max(step, job.step):  # guard: a gang that left without a checkpoint has crashed
            return JobStopped(name, max(step, durable))
        return JobCrashed(name, "its gang left without a checkpoint", _lost_steps(job, seen, ranks))
    if job.state is JobState.RECOVERING and not held and _gang_lost(job, seen):
        # guard: a job that fails again and again is given up
        return _given_up(job, seen) if job.failures_in_a_row > job.spec.max_failures else JobRecovered(name)
    # Also a parked gang that was told to leave and does not, although it holds no slot any more.
    asked_for_s = seen.waited_s(job.since_s, now_s)
    # guard: a gang that does not step aside in its grace is given up
    if job.state in STEPS_ASIDE and asked_for_s > job.spec.grace_s:
        why = f"it did not step aside within its grace of {job.spec.grace_s:g} s: {_what_kept(job, ranks)}"
        return JobCrashed(name, why, _lost_steps(job, seen, ranks))
    return None


def _then(job: JobRecord) -> str:
    """What it falls on to, of the tiers that its park named."""
    return f"; tried {job.tiers[0]}, goes on to {job.tiers[1]}" if len(job.tiers) > 1 else ""


def _what_kept(job: JobRecord, ranks: dict[int, RankReport]) -> str:
    """Why a gang has not stepped aside, as far as its ranks say so; else which of them do not."""
    if said := next((r.park_refused or r.commit_error for r in ranks.values() if r.park_refused or r.commit_error), ""):
        return said[:WHY_CHARS]
    gone = (RankPhase.PARKED, RankPhase.STOPPED, RankPhase.DONE)
    stay = [rank for rank in range(len(job.gang)) if rank not in ranks or ranks[rank].phase not in gone]
    if not stay:
        return "all of its ranks say that they have, and its slots are not free"
    who = f"rank{'s' * (len(stay) > 1)} {', '.join(map(str, stay))}"
    steps = [ranks[rank].step for rank in stay if rank in ranks]
    return f"{who} came to no safe point after step {min(steps)}" if steps else f"nothing is heard of {who}"


def _last_error(job: JobRecord, seen: Observation) -> str:
    return (seen.controllers[job.spec.name].report.last_error or "its gang is gone")[:WHY_CHARS]


def _gang_failed(job: JobRecord, seen: Observation) -> bool:
    """Whether the controller, which has no gang any more, saw the last one die: it did not leave by order."""
    return seen.controllers[job.spec.name].report.failed_epoch >= job.gang_epoch > 0


def _gang_lost(job: JobRecord, seen: Observation) -> bool:
    """Whether the controller has no worker left of the gang that it was granted last."""
    heard = seen.controllers.get(job.spec.name)
    if (
        heard is None
        # guard: a controller of an earlier submission says nothing of this gang
        or heard.report.incarnation != job.incarnation
    ):
        return False
    if heard.report.phase is not ControllerPhase.NO_GANG:
        return False
    # A controller that hears of a stop, or of a crash, before it has taken a lease never starts a gang under it.
    aside = job.state in (JobState.STOPPING, JobState.RECOVERING)
    told_to_wait = aside and heard.at_s > job.since_s + STRAGGLER_S
    return (
        told_to_wait  # guard: a controller that was told to wait before it took the lease is believed
        # guard: a controller's word of before the lease says nothing of the gang
        or heard.report.lease_epoch >= job.gang_epoch
    )
