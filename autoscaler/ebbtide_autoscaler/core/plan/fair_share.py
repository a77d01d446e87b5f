"""How teams share what replicas leave: guarantees with borrowing, weights, quotas. Pure.

Who is next: by priority; then teams that would stay within their guarantee; then the team that has the fewest slots by
its weight; then who came first. A team may have more than its guarantee as long as nobody who is within theirs waits:
then it lends no longer, and its jobs step aside or go on with fewer workers, the ones that came last first. A quota is
never passed.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf

from ebbtide.pool.ids import JobName
from ebbtide.pool.lookup.derived_maps import select
from ebbtide.pool.lookup.index import cached_by_identity
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import JobRecord
from ebbtide.pool.transitions import JOB_HOLDS_SLOTS, JobState


@dataclass(frozen=True, slots=True)
class Team:
    """What one team is promised, in slots."""

    name: str
    guarantee: int = 0
    weight: float = 1.0
    quota: int | None = None


OTHERS = Team("others")  # all that the file does not name, together


class Shares:
    """What each team has, as one decision goes on; it never leaves that decision."""

    def __init__(self, teams: Sequence[Team], jobs: Mapping[JobName, JobRecord]) -> None:
        """``teams``: at least one; ``jobs``: of the pool as it is."""
        self._teams = {team.name: team for team in teams}
        self._held = Counter({self._of(name).name: 0 for name in self._teams})
        for name, count in _held(jobs).items():
            self._held[self._of(name).name] += count
        self._later = Counter[str]()  # of these, what nobody of the team runs on yet

    def _of(self, name: str) -> Team:
        return self._teams.get(name, OTHERS)

    def of(self, job: JobRecord) -> Team:
        """Its team."""
        return self._of(job.spec.team)

    def held(self, job: JobRecord) -> int:
        """Slots that its team has."""
        return self._held[self.of(job).name]

    def of_team(self, team: Team) -> int:
        """Slots that this team has."""
        return self._held[team.name]

    def take(self, job: JobRecord, count: int, *, later: bool = False) -> None:
        """Its team has so many more; ``later``: they are kept for ``job``, which is still on its way to them."""
        self._held[self.of(job).name] += count
        self._later[self.of(job).name] += count if later else 0

    def left_of_quota(self, job: JobRecord) -> float:
        """How many more its team may have."""
        quota = self.of(job).quota
        return inf if quota is None else max(0, quota - self.held(job))  # guard: a quota is never passed

    def within(self, job: JobRecord) -> bool:
        """Whether its team stays within its guarantee if it starts as small as it can, or resumes."""
        return self.held(job) + _needs(job) <= self.of(job).guarantee

    def claims(self, job: JobRecord) -> bool:
        """Whether its team was promised the fewest slots that it runs on; one that is parked may restart on these."""
        return self.held(job) + job.spec.workers_min <= self.of(job).guarantee

    def over(self, job: JobRecord) -> float:
        """Slots that its team has beyond its guarantee, by its weight."""
        return max(0, self.held(job) - self.of(job).guarantee) / self.of(job).weight

    def in_turn(self, jobs: Sequence[JobRecord]) -> Iterator[JobRecord]:
        """``jobs``, which are in turn by priority and time, as teams are next: as what each has when it is asked."""
        for _, same in groupby(jobs, key=lambda job: job.spec.priority):
            # A job that its team was promised slots for does not wait behind one that they are too few for.
            lines: dict[tuple[str, bool], deque[JobRecord]] = {}
            for job in same:
                lines.setdefault((self.of(job).name, self.within(job)), deque()).append(job)
            while lines:
                line = min(lines, key=lambda name: self._next(lines[name][0]))
                yield lines[line].popleft()
                if not lines[line]:
                    del lines[line]

    def _next(self, job: JobRecord) -> tuple[bool, float, float, int]:
        by_weight = self.held(job) / self.of(job).weight
        # guard: who is within a guarantee goes first
        return not self.within(job), by_weight, job.submitted_s, job.submission

    def lenders(
        self, job: JobRecord, running: Sequence[JobRecord], *, straddling: bool = False
    ) -> list[tuple[JobRecord, int]]:
        """Of jobs that run, in turn: who makes room for ``job``, which is within its guarantee, first ones first.

        With each how many slots it gives: all of its gang, or as many as it can do without where its team would fall
        below its own guarantee by more. Nobody of a higher priority is asked.

        Args:
            straddling: a gang of which only a part is borrowed, and that cannot do with less, gives all of it; large
                gangs go first then, so that few do.
        """
        left, found = self._held.copy(), list[tuple[JobRecord, int]]()
        left.subtract(self._later)  # one that runs is not sent away for what another one may have in a moment
        late_first = sorted(reversed(running), key=self.over, reverse=True)  # a stable sort
        if straddling:
            late_first.sort(key=lambda one: -len(one.gang))
        for one in late_first:
            team, all_of_it = self.of(one), len(one.gang)
            lends = (
                one.spec.workload_class is WorkloadClass.PREEMPTIBLE  # guard: only preemptible jobs lend
                and one.spec.priority <= job.spec.priority  # guard: no job of a higher priority lends
            )
            if not lends or team is self.of(job):
                continue
            borrowed = left[team.name] - team.guarantee
            # guard: no lender's team falls below its guarantee
            count = all_of_it if all_of_it <= borrowed else min(borrowed, all_of_it - one.spec.workers_min)
            if straddling and count == 0 < borrowed:
                count = all_of_it
            if count > 0:
                left[team.name] -= count
                found.append((one, count))
        return found

    def beyond_claims(self, job: JobRecord, jobs: Mapping[JobName, JobRecord], room: int) -> int:
        """Of ``room`` slots those that ``job`` may start on: its team's own, else what no other team's claim is met by.

        Else it would take what it has to give back at once.
        """
        mine, left, claimed = self.of(job), room - job.spec.workers_min, self._held.copy()
        lacking = _without_slots(jobs).values()
        for other in sorted((one for one in lacking if self.of(one) is not mine), key=_needs):
            team, needs = self.of(other), _needs(other)
            if needs <= left and claimed[team.name] + needs <= team.guarantee:
                claimed[team.name] += needs
                left -= needs
        return max(mine.guarantee - self._held[mine.name], job.spec.workers_min + left)

    def asked(self, running: Sequence[JobRecord], first: Callable[[JobRecord], tuple[int, bool]]) -> list[JobRecord]:
        """Jobs in the order in which replicas ask them aside: always one of the team that is then most over.

        Args:
            running: in the order of one without teams.
            first: what goes before teams in that order.
        """
        left, found = self._held.copy(), list[JobRecord]()
        lines: dict[str, deque[JobRecord]] = {}
        for job in running:
            lines.setdefault(self.of(job).name, deque()).append(job)
        place = {job.spec.name: place for place, job in enumerate(running)}

        def turn(line: deque[JobRecord]) -> tuple[int, bool, float, int]:
            team = self.of(line[0])
            over = max(0, left[team.name] - team.guarantee) / team.weight
            return (*first(line[0]), -over, place[line[0].spec.name])

        while lines:
            name = min(lines, key=lambda name: turn(lines[name]))
            job = lines[name].popleft()
            found.append(job)
            left[name] -= len(job.gang)
            if not lines[name]:
                del lines[name]
        return found

    def words(self, job: JobRecord) -> str:
        """What its team has and is promised."""
        team = self.of(job)
        quota = "" if team.quota is None else f", its quota is {team.quota}"
        return f"team {team.name} holds {self.held(job)} of its guarantee of {team.guarantee}{quota}"

    def claimants(self, waiting: tuple[JobRecord, ...]) -> list[JobRecord]:
        """Of jobs that wait, in turn: the first of each size of each team that could claim slots within its guarantee.

        Not only the first one: it may need more than others can give back, while one after it does not.
        """
        return [job for job in _first_of_each_size(waiting) if self.claims(job)]


def _needs(job: JobRecord) -> int:
    return len(job.gang) if job.state is JobState.PARKED else job.spec.workers_min


@cached_by_identity
def _held(jobs: Mapping[JobName, JobRecord]) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    for job in jobs.values():
        if job.state in JOB_HOLDS_SLOTS:
            found[job.spec.team] += len(job.gang)
    return found


@select
def _without_slots(job: JobRecord) -> JobRecord | None:
    lacks = job.state not in JOB_HOLDS_SLOTS and job.state is not JobState.ENDED
    return job if lacks and not job.cancelled and job.held is None else None


@cached_by_identity
def _first_of_each_size(waiting: tuple[JobRecord, ...]) -> Sequence[JobRecord]:
    found: dict[tuple[str, int], JobRecord] = {}
    for job in waiting:
        found.setdefault((job.spec.team, job.spec.workers_min), job)
    return list(found.values())
