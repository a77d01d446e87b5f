"""What a simulated job has done, what of it is saved, and for how long saving held it up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide_simulator.model.engine import Saves
from ebbtide_simulator.model.training import Training

saves = st.builds(Saves, every_s=st.floats(10.0, 1e4), pause_s=st.floats(0.0, 9.0))
# In whole seconds no stretch is so short that what is left in it would be taken for a rounding.
whole_saves = st.builds(Saves, every_s=st.integers(10, 10_000), pause_s=st.floats(0.0, 9.0))
works = st.floats(1.0, 1e6)
workers = st.integers(1, 64)


@given(saves, works, workers, st.floats(0.0, 1.0))
def test_time_is_training_or_pauses_and_what_is_not_saved_is_of_the_last_stretch(
    saves: Saves, work_s: float, workers: int, share: float
) -> None:
    job = Training(work_s, work_s, 0.0, since_s=5.0)
    ran_s = job.ends_in_s(workers, saves) * share
    paused_s = job.credit(5.0 + ran_s, workers, saves)
    assert job.done_s + paused_s == pytest.approx(ran_s * workers, abs=1e-12 * work_s)  # what is left has its digits
    stretch_s = saves.every_s * workers
    assert -1e-6 <= job.done_s - job.saved_s <= stretch_s * (1 + 1e-9) + 1e-6
    assert paused_s / workers <= saves.pause_s * (job.saved_s / stretch_s + 1) + 1e-6


@given(whole_saves, st.integers(1, 10**6), workers)
def test_it_ends_when_all_is_done_and_not_before(saves: Saves, work_s: int, workers: int) -> None:
    ends_in_s = Training(work_s, work_s, 0.0).ends_in_s(workers, saves)
    for at_s, left in ((ends_in_s, False), (ends_in_s * 0.999, True)):
        job = Training(work_s, work_s, 0.0, since_s=0.0)
        job.credit(at_s, workers, saves)
        assert (job.left_s > 1e-7 * work_s) == left


def test_a_crash_while_a_checkpoint_is_taken_falls_back_to_the_one_before() -> None:
    job = Training(1e4, 1e4, 0.0, since_s=0.0)
    assert job.credit(2 * 100.0 + 0.7 + 0.3, 2, Saves(100.0, 0.7)) == pytest.approx((0.7 + 0.3) * 2)
    assert (job.done_s, job.saved_s) == (400.0, 200.0)
