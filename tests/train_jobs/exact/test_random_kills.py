"""Killed at random, again and again, a job goes on from its durable state: what is run again comes out the same."""

import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from ebbtide_train.session.step_log import step_lines
from ebbtide_train.verification.step_log_comparison import compare
from tests.train_jobs import gangs
from tests.train_jobs.exact.courses import Course, lost_steps, must_have_taken_every_sample_once, random_parks

KILLS = 20


def finished(job: Path) -> int:
    """Steps in the log, on the way; 0 before there is one."""
    with suppress(OSError):  # a file may be on its way out
        return 1 + max((line.step for line in step_lines(job)), default=-1)
    return 0


def killed_at_random(job: Path, course: Course, *, world: int, kills: int, seed: int) -> int:
    """SIGKILL of a random rank at a random moment, parked or not; how many kills met a gang that still ran."""
    random, met = Random(seed), 0
    for number in range(kills):
        before = finished(job)
        plan = course.plan(job, world=world, epoch=100 * (number + 1), checkpoint_every_s=0.0)
        wants = random_parks(random, course.steps, course.steps // 4)
        ranks = gangs.start(plan, wants)
        try:
            wanted = before + random.randint(0, max(1, course.steps // kills))
            gangs.wait_until(
                lambda wanted=wanted, ranks=ranks: (
                    finished(job) >= wanted or not all(rank.is_alive() for rank in ranks)
                ),  # type: ignore[misc]
                what=f"{wanted} steps, seed {seed}",
            )
            time.sleep(random.uniform(0.0, 0.05))
            victim = random.choice(ranks)
            met += victim.is_alive()
            victim.kill()
        finally:
            gangs.kill(ranks)
    gangs.run(course.plan(job, world=world, epoch=100 * (kills + 1)))
    return met


def must_have_come_out_the_same(job: Path, calm: Path, course: Course, *, world: int) -> None:
    lines = step_lines(job)
    found = compare(lines, step_lines(calm))  # lines of steps that were run again, too
    assert (found.steps, found.losses_identical, found.samples_identical) == (course.steps, True, True), found
    must_have_taken_every_sample_once(job, steps=course.steps)
    assert gangs.digests(job, world) == gangs.digests(calm, world)
    repeated = max(Counter(line.rank for line in lines).values()) - course.steps
    assert repeated <= lost_steps(job), "a step was run again and not counted"


@pytest.mark.timeout(200)
def test_three_kills_at_random(tmp_path: Path) -> None:
    course = Course(steps=24, bucket_cap_mb=0.01)
    calm = course.calm(tmp_path / "calm", world=2)
    assert killed_at_random(tmp_path / "job", course, world=2, kills=3, seed=4) > 0, "or nothing was tested"
    must_have_come_out_the_same(tmp_path / "job", calm, course, world=2)


@pytest.mark.hunt
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("world", "bucket_cap_mb"), [(1, 25.0), (2, 0.01), (3, 25.0), (3, 0.01)])
def test_twenty_kills_at_random(tmp_path: Path, world: int, bucket_cap_mb: float) -> None:
    course = Course(steps=200, bucket_cap_mb=bucket_cap_mb)
    calm = course.calm(tmp_path / "calm", world=world)
    assert killed_at_random(tmp_path / "job", course, world=world, kills=KILLS, seed=world) >= KILLS // 2
    must_have_come_out_the_same(tmp_path / "job", calm, course, world=world)
