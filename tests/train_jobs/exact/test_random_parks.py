"""Parked in place twenty times at random steps, a job is bit for bit what it is undisturbed."""

from pathlib import Path
from random import Random

import pytest

from ebbtide_train.session.coordination.gate import Away
from tests.train_jobs import gangs
from tests.train_jobs.exact.courses import Course, SocketsWhileParked, must_equal, noting_main, parks_of, random_parks

PARKS, STEPS = 20, 64


def parked_at_random(folder: Path, course: Course, *, world: int, seed: int) -> None:
    calm = course.calm(folder / "calm", world=world)
    wants = random_parks(Random(seed), course.steps, PARKS)
    gangs.run(course.plan(folder / "job", world=world), wants)
    must_equal(folder / "job", calm, world=world, steps=course.steps)
    assert parks_of(folder / "job") == PARKS


@pytest.mark.timeout(200)
def test_twenty_parks_at_three_workers_leave_no_trace(tmp_path: Path) -> None:
    """The hardest: at three the order of the sum over ranks shows, and small buckets have much of it."""
    parked_at_random(tmp_path, Course(steps=STEPS, bucket_cap_mb=0.01), world=3, seed=5)


@pytest.mark.hunt
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("bucket_cap_mb", [25.0, 0.01])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_twenty_parks_leave_no_trace(tmp_path: Path, world: int, bucket_cap_mb: float, seed: int) -> None:
    parked_at_random(tmp_path, Course(steps=STEPS, bucket_cap_mb=bucket_cap_mb), world=world, seed=seed)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.hunt), 3])
def test_a_parked_gang_has_no_socket_left(tmp_path: Path, world: int) -> None:
    """So its group is really gone, and not only out of sight: what stays in place is claimed by this."""
    course = Course(steps=4)
    wants = {2: Away(until=SocketsWhileParked(tmp_path, world))}
    gangs.run(course.plan(tmp_path, world=world), wants, noting_main)
    while_running = [(tmp_path / f"sockets-running-{rank}").read_text().splitlines() for rank in range(world)]
    assert all(len(sockets) >= world - 1 for sockets in while_running), "or nothing is counted here"
    assert (tmp_path / "sockets-parked").read_text() == ""
