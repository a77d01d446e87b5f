"""What each team has, as the referee reckons it."""

from collections.abc import Sequence

from ebbtide.pool.ids import JobName
from ebbtide.pool.state import JobRecord
from ebbtide.pool.transitions import JobState
from ebbtide_autoscaler.core.plan.fair_share import Team
from tests.autoscaler.referee import Case

HOLDS = frozenset({JobState.STARTING, JobState.RUNNING, JobState.RESUMING})  # those aside hold nothing of their team's


def team_of(case: Case, job: JobRecord) -> Team:
    """Its own, or that of all whom the file does not name."""
    return next((team for team in case.config.teams if team.name == job.spec.team), Team("others"))


def held(case: Case, team: Team, *, leaves: Sequence[JobName] = ()) -> int:
    """Slots that a team has before the moves, but for those of jobs that leave."""
    return sum(
        len(job.gang)
        for name, job in case.state.jobs.items()
        if job.state in HOLDS and name not in leaves and team_of(case, job).name == team.name
    )
