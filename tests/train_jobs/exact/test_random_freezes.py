"""Frozen at random steps, each rank by the node's helper (a real one, with a fake driver), a gang is what it was.

State evicted, the rest taken off by the driver: what parks on a GPU. The driver is a fake; the order of who lets go of
what, and the helper between, are real.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from ebbtide_testing.gpu_driver.fake_driver_state import open_state
from tests.platform.helper.trees import helping
from tests.train_jobs import gangs
from tests.train_jobs.exact.courses import Course, must_equal, random_parks
from tests.train_jobs.frozen_ranks import frozen_rank

FREEZES = 20


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """With a helper beside the jobs."""
    tmp_path.chmod(0o700)
    with helping(tmp_path.resolve(), None, "--fake-driver", str(tmp_path / "driver")):
        yield tmp_path.resolve()


def frozen_at_random(folder: Path, course: Course, *, world: int, freezes: int, seed: int) -> None:
    calm = course.calm(folder / "calm", world=world)
    wants = random_parks(Random(seed), course.steps, freezes)
    gangs.run(course.plan(folder / "job", world=world), wants, frozen_rank)
    must_equal(folder / "job", calm, world=world, steps=course.steps)
    there = (folder / "job" / "there").read_text().splitlines()
    assert len(there) == freezes * world and all(line.startswith("False") for line in there), "none had its group"
    with open_state(folder / "driver") as book:
        calls = Counter(call for call, _pid in book.calls)
    each = (freezes + 1) * world  # and the rehearsal, once for each rank
    assert calls == {"lock": each, "checkpoint": each, "restore": each, "unlock": each}


@pytest.mark.timeout(200)
def test_five_freezes_of_three_workers_leave_no_trace(folder: Path) -> None:
    """The hardest: at three the order of the sum over ranks shows, and small buckets have much of it."""
    frozen_at_random(folder, Course(steps=16, bucket_cap_mb=0.01), world=3, freezes=5, seed=6)


@pytest.mark.hunt
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bucket_cap_mb", [25.0, 0.01])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_twenty_freezes_leave_no_trace(folder: Path, world: int, bucket_cap_mb: float) -> None:
    course = Course(steps=64, bucket_cap_mb=bucket_cap_mb)
    frozen_at_random(folder, course, world=world, freezes=FREEZES, seed=world)
