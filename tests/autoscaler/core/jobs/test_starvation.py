"""Who makes room for a job that has waited for too long: where that can be enough, and for nobody in vain."""

from ebbtide.pool.events import GrantJob, JobSubmitted, ParkJob
from ebbtide.pool.ids import JobName
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.plan.inputs import Memory, Snapshot
from tests.autoscaler.closed_loop import a_job, an_endpoint
from tests.builders.policy import CHAT, CONFIG, a_pool, fold, signals, slots, with_job

LATER_S = 3600.0 + CONFIG.starve_after_s
IDLE = signals(last_arrival_s=100.0)


def decided(state: PoolState, now_s: float) -> tuple[list[tuple[type, str]], dict[str, str]]:
    found, _ = decide(now_s, Snapshot(state, {CHAT: IDLE}), Memory(), CONFIG)
    return [(type(move), getattr(move, "job", "")) for move in found.moves], dict(found.waits)


def test_jobs_that_nobody_can_help_are_not_in_the_way_of_one_that_somebody_can() -> None:
    """Twelve are older, and each needs more than all that may step aside could give."""
    state, here = a_pool(nodes={"n0": 8}, endpoints=(an_endpoint(),)), slots(8)
    stays = a_job("fixed", workers_max=4, workload_class=WorkloadClass.NON_PREEMPTIBLE)
    state = with_job(state, stays, here[4:], at_s=10.0)
    for number in range(12):
        large = a_job(f"large{number}", workers_min=5 + number, workers_max=40)
        state = fold(state, JobSubmitted(large, "i"), at_s=100.0 + number)
    state = fold(state, JobSubmitted(a_job("small", workers_min=2, workers_max=2), "i"), at_s=200.0)
    state = with_job(state, a_job("young", workers_max=4), here[:4], at_s=300.0)
    moves, waits = decided(state, LATER_S)
    assert moves == [(ParkJob, "young")]
    assert "what becomes free is kept for it" in waits["small"]
    assert "kept" not in waits["large0"], "nobody can help it"


def test_slots_that_do_not_come_for_hours_are_waited_for_no_longer() -> None:
    """Nobody proves that they are empty: what is free beside them would be kept idle for ever."""
    here, there = slots(4), slots(4, "n1")
    state = a_pool(nodes={"n0": 4, "n1": 4}, endpoints=(an_endpoint(),))
    state = with_job(state, a_job("gone", workers_max=4), there, at_s=100.0)
    state = fold(state, ParkJob(JobName("gone"), "r"), at_s=3500.0)
    state = fold(state, JobSubmitted(a_job("large", workers_min=6, workers_max=6), "i"), at_s=300.0)
    state = fold(state, JobSubmitted(a_job("small", workers_min=2, workers_max=2), "i"), at_s=400.0)
    assert len(here) == len(state.free_slots()) == 4
    moves, waits = decided(state, 3000.0 + CONFIG.starve_after_s)
    assert moves == [] and "kept for it" in waits["large"]
    assert "what becomes free is kept for large" in waits["small"], "it says who has what is free"
    moves, _ = decided(state, 3600.0 + CONFIG.starve_after_s)
    assert moves == [(GrantJob, "small")]
