"""Stopped and started again at random steps, with the same number of workers or another, a job loses nothing."""

from pathlib import Path
from random import Random

import pytest

from ebbtide.client.messages import DesiredState
from ebbtide_train.session.coordination.gate import Away
from ebbtide_train.session.step_log import step_lines
from ebbtide_train.verification.control_run import replay
from ebbtide_train.verification.step_log_comparison import compare, segments_of
from tests.train_jobs import gangs
from tests.train_jobs.exact.courses import (
    DROPOUT,
    GLOBAL_BATCH,
    Course,
    lost_steps,
    must_equal,
    must_have_taken_every_sample_once,
)

STOPS = 20


def restarted(job: Path, course: Course, stops: list[int], worlds: list[int], parks: list[int]) -> None:
    """Gangs of ``worlds``, one after the other, which are told to stop after ``stops`` finished steps."""
    begins = [0, *stops]
    for number, (begin, world) in enumerate(zip(begins, worlds, strict=True)):
        end = begins[number + 1] if number + 1 < len(begins) else course.steps
        wants: dict[int, DesiredState | Away] = {step: Away() for step in parks if begin < step < end}
        if end < course.steps:
            wants[end] = DesiredState.STOP
        gangs.run(course.plan(job, world=world, epoch=10 * (number + 1)), wants)  # a park takes a lease epoch too


def must_equal_a_control_run(job: Path, folder: Path, course: Course) -> None:
    """Which changes the number of workers at the same steps, in fresh processes, and is disturbed by nobody."""
    lines = step_lines(job)
    control = replay(
        gangs.TINY,
        {"steps": course.steps, "dropout": DROPOUT},
        segments=segments_of(lines),
        run_dir=folder / "control",
        global_batch=GLOBAL_BATCH,
        options={"bucket_cap_mb": course.bucket_cap_mb, "micro_batch_max": 2},
        launch=gangs.launch,
    )
    found = compare(lines, control)
    assert (found.steps, found.losses_identical, found.samples_identical) == (course.steps, True, True), found
    assert len(lines) == len(control), "a step was lost or repeated"
    assert lost_steps(job) == 0
    must_have_taken_every_sample_once(job, steps=course.steps)


@pytest.mark.timeout(200)
def test_one_then_three_then_two_workers_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """Parked in each of them, too, in small buckets."""
    course = Course(steps=18, bucket_cap_mb=0.01)
    restarted(tmp_path / "job", course, [5, 11], [1, 3, 2], parks=[2, 8, 15])
    must_equal_a_control_run(tmp_path / "job", tmp_path, course)


@pytest.mark.hunt
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_twenty_restarts_with_random_numbers_of_workers(tmp_path: Path, seed: int) -> None:
    random, course = Random(seed), Course(steps=60, bucket_cap_mb=[25.0, 0.01][seed % 2])
    stops = sorted(random.sample(range(1, course.steps), STOPS))
    worlds = [random.choice([1, 2, 3]) for _ in range(STOPS + 1)]
    restarted(tmp_path / "job", course, stops, worlds, parks=random.sample(range(1, course.steps), 10))
    must_equal_a_control_run(tmp_path / "job", tmp_path, course)


@pytest.mark.hunt
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bucket_cap_mb", [25.0, 0.01])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_twenty_restarts_at_one_number_of_workers_leave_no_trace(
    tmp_path: Path, world: int, bucket_cap_mb: float
) -> None:
    """Against a run that is not disturbed at all."""
    course = Course(steps=50, bucket_cap_mb=bucket_cap_mb)
    stops = sorted(Random(world).sample(range(1, course.steps), STOPS))
    restarted(tmp_path / "job", course, stops, [world] * (STOPS + 1), parks=[])
    must_equal(tmp_path / "job", course.calm(tmp_path / "calm", world=world), world=world, steps=course.steps)
    assert lost_steps(tmp_path / "job") == 0
