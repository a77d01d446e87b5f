"""How teams share a pool: guarantees, loans that are given back, weights, quotas; in a pool under a virtual clock."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.pool.events import GrantJob, JobEnded, JobSubmitted, ParkJob, ResumeJob, SlotFreed, StopJob
from ebbtide.pool.ids import JobName
from ebbtide.pool.rules.promises import check
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JOB_HOLDS_SLOTS
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.plan.fair_share import OTHERS, Shares, Team
from ebbtide_autoscaler.core.plan.inputs import Memory, PolicyConfig, Snapshot
from ebbtide_simulator.model.engine import Times
from ebbtide_simulator.model.pool import Pool
from tests.autoscaler.closed_loop import a_job
from tests.builders.policy import CHAT, CONFIG, NOW, SEAT0, a_pool, fold, parked, signals, slots, with_job, with_ready
from tests.examples import examples

TICK_S = 5.0
LONG_S = 1e6  # of work: for ever, as these tests go
GIB = 1 << 30


class Day:
    """A pool of jobs alone. ``moves``: all that was decided so far, with its second."""

    def __init__(self, slots: int, *teams: Team, per_node: int = 4, reserve: int = 0) -> None:
        self.pool = Pool(slots // per_node, per_node, 1 << 40, Times(), 0, now_s=0.0, from_s=0.0)
        self.config = PolicyConfig(teams=teams, reserve=reserve)
        self.memory, self.second, self.jobs = Memory(), 0.0, 0
        self.moves: list[tuple[float, object]] = []
        self.waits: dict[str, str] = {}

    def submit(self, team: str, least: int = 1, most: int | None = None, work_s: float = LONG_S, **more: object) -> str:
        """A job, now."""
        name, self.jobs = f"{team}-{self.jobs:03}", self.jobs + 1
        spec = a_job(name, team=team, workers_min=least, workers_max=most or least, host_bytes_per_worker=GIB)
        self.pool.submit(replace(spec, **more), work_s * (most or least))  # type: ignore[arg-type]
        return name

    def run(self, for_s: float) -> "Day":
        """Tick by tick."""
        until_s = self.second + for_s
        while self.second < until_s:
            while self.pool.agenda.next_s() <= self.second:
                self.pool.now_s = self.pool.agenda.next_s()
                self.pool.agenda.pop()()
            self.pool.now_s = self.second
            decision, self.memory = decide(self.second, Snapshot(self.pool.state), self.memory, self.config)
            self.moves += [(self.second, move) for move in decision.moves]
            self.waits = dict(decision.waits)
            self.pool.carry_out(decision.moves)
            check(self.pool.state)
            for team in self.config.teams:
                assert team.quota is None or self.held(team.name) <= team.quota
            self.second += TICK_S
        assert self.pool.refused == []
        return self

    def held(self, team: str) -> int:
        """Slots of its jobs."""
        jobs = self.pool.state.jobs.values()
        return sum(len(job.gang) for job in jobs if job.spec.team == team and job.state in JOB_HOLDS_SLOTS)

    def asked_aside(self) -> list[str]:
        """Jobs that were told to leave."""
        return [str(move.job) for _, move in self.moves if isinstance(move, ParkJob | StopJob)]


def test_what_is_promised_comes_back_and_what_lends_keeps_its_own() -> None:
    day = Day(16, Team("vision", 8), Team("text", 8))
    for _ in range(16):
        day.submit("vision")
    assert day.run(60).held("vision") == 16, "nobody else is there: all of it is lent"
    claimer = day.submit("text", 6)
    day.run(120)
    assert day.held("text") == 6 and day.held("vision") == 10
    assert len(day.asked_aside()) == 6 and day.asked_aside()[0] == "vision-015", "who came last goes first"
    moves = [move for _, move in day.moves if isinstance(move, ParkJob)]
    assert "team text holds 0 of its guarantee of 8" in moves[0].reason
    assert "team vision holds 16 of its guarantee of 8" in moves[0].reason
    day.submit("text", 4)  # it would have 10, two more than it was promised
    day.run(120)
    assert day.held("text") == 6 and len(day.asked_aside()) == 6
    assert claimer in day.pool.state.jobs


def test_who_is_asked_is_asked_for_something() -> None:
    """Of a team whose jobs may not be asked nothing is taken, and nobody parks for too little."""
    day = Day(8, Team("text", 8))
    for _ in range(4):
        day.submit("vision", 1, workload_class=WorkloadClass.NON_PREEMPTIBLE)
        day.submit("vision", 1)
    day.run(60)
    day.submit("text", 6)
    day.run(300)
    assert day.asked_aside() == [] and day.held("vision") == 8
    day.submit("text", 4)
    assert day.run(300).held("text") == 4


def test_a_higher_priority_is_not_asked_for_a_guarantee() -> None:
    day = Day(8, Team("text", 8))
    for _ in range(8):
        day.submit("vision", priority=5)
    day.run(60)
    day.submit("text", 2)
    assert day.run(300).held("vision") == 8


@pytest.mark.proves("a quota is never passed")
def test_a_quota_holds_whatever_is_free_and_who_waits_for_it_is_told() -> None:
    day = Day(16, Team("text", 0, quota=6))
    day.submit("text", 2, 16)
    day.submit("text", 2, 4)
    day.run(600)
    assert day.held("text") == 6
    waiting = next(iter(day.waits))
    assert "its quota is 6" in day.waits[waiting] and "needs 2 slots" in day.waits[waiting]


@settings(max_examples=examples(8), deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(1, 3), st.integers(0, 100))
def test_endless_lines_share_by_weight_within_a_gang(weights: list[int], gang: int, seed: int) -> None:
    random = Random(seed)
    teams = [Team(f"t{number}", weight=float(weight)) for number, weight in enumerate(weights)]
    day = Day(24, *teams)
    order = [team.name for team in teams for _ in range(120)]
    random.shuffle(order)
    for name in order:
        day.submit(name, gang, work_s=random.uniform(200.0, 400.0))
    day.run(600)
    usable = 24 - 24 % gang
    for team in teams:
        fair = usable * team.weight / sum(weights)
        assert abs(day.held(team.name) - fair) <= 2 * gang, "one that has just come, one that has just gone"


@settings(max_examples=examples(20), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(1, 6), st.integers(0, 4), st.floats(0.0, 900.0)),
        min_size=1,
        max_size=25,
    ),
    st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 4)),
    st.integers(0, 2),
)
def test_under_constant_load_it_comes_to_rest_with_every_promise_kept(
    jobs: list[tuple[str, int, int, float]], promised: tuple[int, int, int], reserve: int
) -> None:
    """No ping-pong: with jobs that never end nothing moves any more, and no claim that could be met is open."""
    teams = [Team(name, guarantee) for name, guarantee in zip("abc", promised, strict=True)]
    day = Day(24, *teams, reserve=reserve)
    for team, least, more, at_s in sorted(jobs, key=lambda job: job[3]):
        day.run(max(0.0, at_s - day.second))
        day.submit(team, least, least + more)
    day.run(1500)
    before = len(day.moves)
    day.run(1500)
    assert day.moves[before:] == []
    assert len(day.moves) <= 12 * len(jobs)
    shares = Shares(teams, day.pool.state.jobs)
    waiting = [job for job in day.pool.state.jobs.values() if job.state not in JOB_HOLDS_SLOTS]
    free = len(day.pool.state.free_slots()) - reserve
    for job in waiting:
        lent = sum(
            count
            for _, count in shares.lenders(job, [j for j in day.pool.state.jobs.values() if j.state in JOB_HOLDS_SLOTS])
        )
        assert not shares.within(job) or free + lent < job.spec.workers_min, day.waits[job.spec.name]


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 6), st.integers(-1, 1)), max_size=20),
    st.integers(0, 6),
    st.integers(0, 6),
)
def test_in_turn_is_a_permutation_by_priority_and_no_lender_falls_below_its_own(
    jobs: list[tuple[str, int, int]], first: int, second: int
) -> None:
    day = Day(128, Team("a", first), Team("b", second))
    for team, count, priority in jobs:
        day.submit(team, max(1, count), priority=priority)
    day.run(10)
    shares, all_jobs = Shares(day.config.teams, day.pool.state.jobs), list(day.pool.state.jobs.values())
    line = sorted(all_jobs, key=lambda job: (-job.spec.priority, job.submitted_s))
    asked = list(shares.in_turn(line))
    assert sorted(job.spec.name for job in asked) == sorted(job.spec.name for job in line)
    assert [job.spec.priority for job in asked] == [job.spec.priority for job in line]
    for job in all_jobs:
        lent = shares.lenders(job, all_jobs)
        for lender in (*day.config.teams, OTHERS):
            mine = sum(count for one, count in lent if shares.of(one).name == lender.name)
            assert not mine or shares.of_team(lender) - mine >= lender.guarantee
        assert all(shares.of(one) is not shares.of(job) for one, _ in lent)
        for one, count in lent:
            stays = len(one.gang) - count
            assert count > 0 and (stays == 0 or stays >= one.spec.workers_min)


@pytest.mark.proves("who is within a guarantee goes first")
def test_who_is_within_a_guarantee_goes_first() -> None:
    """Of one priority, also before a team that has less by its weight and whose job came first."""
    state = with_job(a_pool(), a_job("has", team="a", workers_max=1), slots(1))
    for at_s, team in ((2_000.0, "b"), (2_001.0, "a")):
        state = fold(state, JobSubmitted(a_job(f"{team}-waits", team=team), "i"), at_s=at_s)
    line = [state.jobs[JobName(name)] for name in ("b-waits", "a-waits")]
    for guarantee, first in ((2, "a-waits"), (1, "b-waits")):
        shares = Shares((Team("a", guarantee), Team("b")), state.jobs)
        assert next(shares.in_turn(line)).spec.name == first


@pytest.mark.proves("no job of a higher priority lends", "only preemptible jobs lend")
def test_preemptible_jobs_of_no_higher_priority_lend_and_no_others() -> None:
    state = fold(a_pool(nodes={"n0": 8}), JobSubmitted(a_job("asks", team="a", workers_max=1), "i"))
    those: dict[str, dict[str, Any]] = {
        "lends": {},
        "semi": {"workload_class": WorkloadClass.SEMI_PREEMPTIBLE},
        "urgent": {"priority": 5},
    }
    for slot, (name, changes) in zip(slots(3), those.items(), strict=True):
        state = with_job(state, a_job(name, team="b", workers_max=1, **changes), (slot,))
    asks, *running = state.jobs.values()
    lent = Shares((Team("a", 8), Team("b")), state.jobs).lenders(asks, running)
    assert [(one.spec.name, count) for one, count in lent] == [("lends", 1)]


def test_replicas_ask_the_team_that_is_most_over_each_time() -> None:
    """Vision has one more than it was promised, text ten: after one of vision nobody falls below for another's sake."""
    day = Day(24, Team("vision", 8), Team("text", 2))
    for _ in range(12):
        day.submit("text")
    for _ in range(9):
        day.submit("vision")
    day.run(60)
    shares = Shares(day.config.teams, day.pool.state.jobs)
    running = [job for job in day.pool.state.jobs.values() if job.state in JOB_HOLDS_SLOTS]
    asked = [str(job.spec.team) for job in shares.asked(running[::-1], lambda job: (0, False))]
    assert asked[:9] == ["text"] * 9
    assert sorted(asked[:11]) == ["text"] * 10 + ["vision"]
    assert len(asked) == 21


def test_teams_that_are_not_named_are_one() -> None:
    day = Day(8, Team("text", 4))
    day.submit("x", 2)
    day.submit("y", 3)
    shares = Shares(day.config.teams, day.run(60).pool.state.jobs)
    job = day.pool.state.jobs[JobName("x-000")]
    assert shares.of(job) is OTHERS and shares.held(job) == 5 and not shares.within(job)


def test_the_reason_of_a_grant_says_what_the_team_has() -> None:
    day = Day(8, Team("text", 4, 2.0, 6))
    day.submit("text", 2)
    day.run(10)
    grant = next(move for _, move in day.moves if isinstance(move, GrantJob))
    assert grant.reason.endswith("team text holds 0 of its guarantee of 4, its quota is 6")


@pytest.mark.parametrize("teams", [(), (Team("else", 3),)])
def test_where_nobody_of_a_team_is_there_it_changes_nothing_but_words(teams: tuple[Team, ...]) -> None:
    day = Day(12, *teams)
    for least, most, work_s in ((2, 6, 300.0), (4, 4, 200.0), (1, 3, 900.0), (8, 8, 100.0), (1, 1, 50.0)):
        day.submit("x", least, most, work_s)
    day.run(2000)
    plain = Day(12)
    for least, most, work_s in ((2, 6, 300.0), (4, 4, 200.0), (1, 3, 900.0), (8, 8, 100.0), (1, 1, 50.0)):
        plain.submit("x", least, most, work_s)
    plain.run(2000)
    told = [[(at_s, type(move), getattr(move, "slots", ())) for at_s, move in one.moves] for one in (day, plain)]
    assert told[0] == told[1]


def test_who_borrows_goes_on_with_what_its_team_was_promised() -> None:
    """An elastic job grew into what another team was promised: it gives that back, and no more."""
    day = Day(8, Team("a", 4), Team("b", 4))
    day.submit("b", 4, 8)
    day.run(120)
    assert day.held("b") == 8, "nobody else wants them"
    day.submit("a", 4)
    day.run(120)
    assert (day.held("a"), day.held("b")) == (4, 4)
    day.run(600)
    assert (day.held("a"), day.held("b")) == (4, 4), "and that is that"


def test_two_elastic_teams_do_not_take_turns() -> None:
    """What a job would have to give back at once it does not begin on."""
    day = Day(8, Team("a", 4), Team("b", 4))
    day.submit("b", 4, 8)
    day.run(120)
    day.submit("a", 4, 8)
    day.run(300)
    assert (day.held("a"), day.held("b")) == (4, 4)
    before = len(day.moves)
    day.run(1200)
    assert day.moves[before:] == []


@pytest.mark.proves("no lender's team falls below its guarantee")
def test_a_gang_that_is_partly_borrowed_leaves_in_the_end() -> None:
    """Gangs of five and three where their team was promised four: neither can leave without breaking that at once."""
    day = Day(8, Team("a", 4), Team("b", 4))
    five, _ = day.submit("b", 5), day.submit("b", 3)
    day.run(30)
    day.submit("a", 4)
    day.run(600)
    assert day.held("a") == 0 and day.asked_aside() == [], "it is not worth it yet"
    day.run(PolicyConfig().starve_after_s)
    assert day.asked_aside()[0] == five
    assert (day.held("a"), day.held("b")) == (4, 3)
    before = len(day.moves)
    day.run(1200)
    assert day.moves[before:] == []


def of_two_teams(*, quota: int | None = None, guarantee: int = 0) -> tuple[PoolState, PolicyConfig]:
    """``old`` was parked long ago, of 4 slots; it can do with 2. Its team has another job on 2 slots, others have 2."""
    here = slots(8)
    state = with_job(
        a_pool(nodes={"n0": 8}), a_job("old", team="t", workers_min=2, workers_max=4), here[:4], at_s=100.0
    )
    state = parked(state, JobName("old"), at_s=NOW - 3600.0)
    state = with_ready(state, SEAT0, here[:1], at_s=NOW - 3500.0)
    state = with_job(state, a_job("young", team="t", workers_max=2), here[1:3], at_s=NOW - 3400.0)
    state = with_job(state, a_job("lent", team="o", workers_max=5), here[3:], at_s=NOW - 3400.0)
    return state, replace(CONFIG, teams=(Team("t", guarantee, 1.0, quota), Team("o")))


def test_a_parked_job_goes_on_with_what_its_teams_quota_leaves() -> None:
    state, config = of_two_teams(quota=4)
    state = fold(state, JobEnded(JobName("lent"), "finished", ""), *(SlotFreed(slot) for slot in slots(8)[3:]))
    found, _ = decide(NOW, Snapshot(state, {CHAT: signals(inflight=4, last_arrival_s=NOW)}), Memory(), config)
    assert [type(move) for move in found.moves if getattr(move, "job", "") == "old"] == [StopJob]
    assert "goes on with 2 workers" in next(move.reason for move in found.moves if getattr(move, "job", "") == "old")
    state, config = of_two_teams(quota=3)
    found, _ = decide(NOW, Snapshot(state, {CHAT: signals(inflight=4, last_arrival_s=NOW)}), Memory(), config)
    assert "needs 2 slots, and team t holds 2 of its guarantee of 0, its quota is 3" in dict(found.waits)["old"]


@pytest.mark.proves("a parked job resumes only within its team's quota")
@pytest.mark.parametrize(("quota", "resumes"), [(4, False), (6, True)])
def test_a_parked_job_does_not_resume_beyond_its_teams_quota(quota: int, resumes: bool) -> None:
    """All its slots are free; its team has two others."""
    here = slots(8)
    state = with_job(a_pool(nodes={"n0": 8}), a_job("old", team="t", workers_min=2, workers_max=4), here[:4])
    state = parked(state, JobName("old"))
    state = with_job(state, a_job("young", team="t", workers_max=2), here[4:6])
    config = replace(CONFIG, teams=(Team("t", quota=quota),))
    found, _ = decide(NOW, Snapshot(state), Memory(), config)
    assert [type(move) for move in found.moves] == ([ResumeJob] if resumes else [])


@pytest.mark.proves("a guarantee is claimed without having starved")
def test_a_guarantee_is_claimed_by_a_parked_job_as_by_one_that_never_ran() -> None:
    state, config = of_two_teams(guarantee=4)
    found, _ = decide(NOW, Snapshot(state, {CHAT: signals(inflight=4, last_arrival_s=NOW)}), Memory(), config)
    (move,) = found.moves
    assert getattr(move, "job", "") == "lent" and "old, for team t holds 2 of its guarantee of 4" in move.reason


def test_a_job_that_runs_is_not_lent_for_what_another_of_its_team_may_have_in_a_moment() -> None:
    """A storm had its guarantee filled by slots that are kept for a job which was still being stopped."""
    here = slots(8)
    state = with_job(
        a_pool(nodes={"n0": 8}), a_job("stops", team="o", priority=2, workers_min=2, workers_max=2), here[:2]
    )
    state = with_job(state, a_job("runs", team="o", workers_min=2, workers_max=2), here[2:4])
    stays = a_job("stays", team="x", workers_max=4, workload_class=WorkloadClass.NON_PREEMPTIBLE)
    state = fold(with_job(state, stays, here[4:]), JobSubmitted(a_job("first", team="t", workers_max=1), "i"))
    state = fold(state, StopJob(JobName("stops"), "r", preempts=False), *(SlotFreed(slot) for slot in here[:2]))
    config = replace(CONFIG, teams=(Team("t", 1), Team("o", 2)))
    quiet = Snapshot(state, {CHAT: signals(last_arrival_s=NOW - 5000.0)})
    assert decide(NOW, quiet, Memory(), config)[0].moves == ()
    lent = replace(config, teams=(Team("t", 1), Team("o")))
    assert [getattr(move, "job", "") for move in decide(NOW, quiet, Memory(), lent)[0].moves] == ["runs"]
