"""Who gets what is free, in which order, and for how long anything is kept for somebody."""

from dataclasses import replace

from ebbtide.pool.events import GrantJob, JobSubmitted, ParkJob, ResumeJob, StopJob
from ebbtide.pool.ids import JobName
from ebbtide.pool.state import PoolState
from tests.autoscaler.closed_loop import a_job
from tests.autoscaler.test_policy import CONFIG, NOW, S0, S1, S2, a_pool, fold, look, parked, slots, with_job

HOUR_S = 3600.0
STARVES = replace(CONFIG, starve_after_s=HOUR_S)
S3 = slots(4)[3]


def waiting(state: PoolState, name: str, workers: int, at_s: float) -> PoolState:
    spec = a_job(name, workers_min=workers, workers_max=workers)
    return fold(state, JobSubmitted(spec, "i"), at_s=at_s)


def crowded(large_since_s: float) -> PoolState:
    """Four slots: an old job on one, two young ones, one free; a job of three waits."""
    state = a_pool(nodes={"n0": 4})
    state = with_job(state, a_job("old", workers_max=1), (S0,), at_s=NOW - 9 * HOUR_S)
    state = waiting(state, "large", 3, large_since_s)
    state = with_job(state, a_job("young", workers_max=1), (S1,), at_s=NOW - 600.0)
    return with_job(state, a_job("younger", workers_max=1), (S2,), at_s=NOW - 300.0)


def test_a_small_job_passes_a_large_one_that_lacks_slots() -> None:
    state = waiting(crowded(NOW - 0.9 * HOUR_S), "small", 1, NOW - 10.0)
    found = look(state, config=STARVES)
    assert [(type(move), getattr(move, "job", "")) for move in found.moves] == [(GrantJob, "small")]
    assert "large" in dict(found.waits)


def test_one_that_has_waited_for_too_long_has_what_is_free_kept_and_those_after_it_step_aside() -> None:
    state = waiting(crowded(NOW - 1.1 * HOUR_S), "small", 1, NOW - 10.0)
    found = look(state, config=STARVES)
    assert {(type(move), getattr(move, "job", "")) for move in found.moves} == {
        (ParkJob, "young"),
        (ParkJob, "younger"),
    }
    assert "has waited for 1.1 h" in dict(found.waits)["large"]
    assert "small" in dict(found.waits)


def test_no_more_step_aside_than_it_lacks_and_the_last_one_first() -> None:
    state = a_pool(nodes={"n0": 4})
    state = waiting(state, "large", 2, NOW - 2 * HOUR_S)
    state = with_job(state, a_job("young", workers_max=1), (S1,), at_s=NOW - 600.0)
    state = with_job(state, a_job("younger", workers_max=1), (S2,), at_s=NOW - 300.0)
    state = with_job(state, a_job("youngest", workers_max=1), (S3,), at_s=NOW - 200.0)
    found = look(state, config=STARVES)
    assert [getattr(move, "job", "") for move in found.moves] == ["youngest"]


def test_nothing_is_kept_for_what_the_pool_cannot_come_to_give() -> None:
    state = a_pool(nodes={"n0": 4})
    state = with_job(state, a_job("old", workers_max=2), (S0, S1), at_s=NOW - 9 * HOUR_S)
    state = waiting(state, "large", 3, NOW - 2 * HOUR_S)
    state = waiting(state, "small", 1, NOW - 10.0)
    found = look(state, config=STARVES)
    assert [(type(move), getattr(move, "job", "")) for move in found.moves] == [(GrantJob, "small")]


def test_those_of_higher_priority_and_within_their_minimum_runtime_stay() -> None:
    state = waiting(a_pool(nodes={"n0": 4}), "large", 3, NOW - 2 * HOUR_S)
    state = with_job(state, a_job("urgent", workers_max=1, priority=1), (S1,), at_s=NOW - 300.0)
    state = with_job(state, a_job("new", workers_max=1, min_runtime_s=900.0), (S2,), at_s=NOW - 300.0)
    assert look(state, config=STARVES).moves == ()


def test_a_job_that_has_just_parked_keeps_its_slots_for_as_long_as_a_restart_costs() -> None:
    state = with_job(a_pool(nodes={"n0": 4}), a_job("gang", workers_min=3, workers_max=3), (S0, S1, S2))
    for ago_s, taken in ((CONFIG.restart_cost_s - 1.0, False), (CONFIG.restart_cost_s + 1.0, True)):
        aside = parked(state, JobName("gang"), at_s=NOW - ago_s)
        aside = with_job(aside, a_job("other", workers_max=1), (S0,), at_s=NOW - 1.0)
        aside = with_job(aside, a_job("more", workers_max=1), (S3,), at_s=NOW - 1.0)
        found = look(waiting(aside, "small", 1, NOW - 0.5), config=CONFIG)
        assert any(isinstance(move, GrantJob) and move.job == "small" for move in found.moves) is taken


def test_a_parked_job_takes_its_own_slots_before_jobs_that_came_after_it() -> None:
    state = parked(with_job(a_pool(), a_job("gang", workers_min=2, workers_max=2), (S0, S1)), JobName("gang"))
    found = look(waiting(state, "small", 2, NOW - 1.0))
    assert [(type(move), getattr(move, "job", "")) for move in found.moves] == [(ResumeJob, "gang")]


def test_a_long_line_is_answered_name_by_name() -> None:
    state = with_job(a_pool(), a_job("gang", workers_max=3), (S0, S1, S2))
    for number in range(30):
        state = waiting(state, f"j{number}", 1 + number % 3, NOW - 100.0)
    found = look(state, config=STARVES)
    assert {name for name, _ in found.waits} >= {f"j{number}" for number in range(30)}
    assert not [move for move in found.moves if not isinstance(move, StopJob)]
