"""How long preemptions last in this pool: what the policy expects of the next one, from those that it has seen. Pure.

Only parks are counted: one ends when the job could have its slots back, or has lasted for as long as a restart costs
and is turned into one. (A job that was restarted on fewer slots does not tell when it could have had all of them.)

What is old counts no more. So a pool whose traffic has changed forgets, parks first again, and learns anew.
"""

from collections.abc import Iterable, Mapping
from statistics import median

from ebbtide.pool.events import Move, ResumeJob, StopJob
from ebbtide.pool.ids import JobName
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState
from ebbtide_autoscaler.core.plan.inputs import Away

KEPT = 15  # a median of more would follow a change of traffic too slowly
ENOUGH = 3  # a median of fewer is one event's word
OLD_S = 3600.0  # as preemptions are counted: within an hour


def expected_s(away: tuple[Away, ...], now_s: float, *, park_first: bool = False) -> float | None:
    """How long the next preemption will last; None: too few were seen within the hour, or `park_first` is the rule."""
    if park_first:
        return None
    recent = [one.lasted_s for one in away if now_s - one.at_s < OLD_S]
    return median(recent) if len(recent) >= ENOUGH else None


def with_ended(
    away: tuple[Away, ...], now_s: float, state: PoolState, moves: Iterable[Move], worth_s: Mapping[JobName, float]
) -> tuple[Away, ...]:
    """``away`` and the preemptions that these moves end.

    Args:
        state: before the moves.
        worth_s: by job, after how long a park is turned into a restart; one that was cut short before says nothing.
    """
    found = list(away)
    for move in moves:
        if not isinstance(move, ResumeJob | StopJob):
            continue
        job = state.jobs[move.job]
        if job.state is not JobState.PARKED or job.asked_s > job.since_s:  # the latter: a person has kept it aside
            continue
        lasted_s = now_s - job.asked_s
        whole = isinstance(move, ResumeJob) or (move.preempts and lasted_s >= worth_s.get(move.job, lasted_s + 1.0))
        if whole:
            found.append(Away(now_s, lasted_s))
    return tuple(found[-KEPT:])
