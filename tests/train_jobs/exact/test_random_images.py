"""A session that trains is put into an image at random moments, again and again, and is bit for bit what it was.

Its processes are gone each time, between any two of their instructions: nothing of it cooperates.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from ebbtide.client.messages import DesiredState
from ebbtide_train.interactive.parking.helper_snapshots import HelperSnapshots
from ebbtide_train.interactive.supervision.session_supervisor import End
from tests.criu import criu_or_skip
from tests.train_jobs.interactive.helped import Running, helped
from tests.train_jobs.interactive.kept import Kept, lease

IMAGES = 20
MOST_STEPS_EACH = 200  # a step takes 12 ms; order and dump come within 30 steps on a quiet machine
TRAINING = Path(__file__).parents[2] / "platform" / "helper" / "training.py"


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[Running]:
    folder = tmp_path / "helper"
    folder.mkdir(mode=0o700)
    with helped(folder, criu_or_skip().path) as running:
        yield running


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def imaged_at_random(folder: Path, helper: Running, *, ranks: int, images: int, seed: int) -> None:
    random, out, most = Random(seed), folder / "parked", MOST_STEPS_EACH * (images + 1)
    command = [sys.executable, str(TRAINING), str(folder), str(most), str(ranks)]
    one = Kept(folder, command, snapshots=HelperSnapshots(helper.client, "s")).start()
    one.until(lambda: lines(out) > 0 or one.error or one.verdict, "its first step", timeout_s=90.0)
    for number in range(1, images + 1):
        wanted = lines(out) + random.randint(1, 25)
        one.until(lambda w=wanted: lines(out) >= w, f"step {wanted}, seed {seed}")  # type: ignore[misc]
        time.sleep(random.uniform(0.0, 0.012))
        one.parks()
        done = lines(out)
        assert done < most, f"it ended before image {number}"
        assert one.holder() is None and not one.leader().alive() and one.place.numbers() == [number]
        time.sleep(random.uniform(0.0, 0.1))
        assert lines(out) == done
        one.obeyed(one.gate.want(DesiredState.RUN, lease(number + 1)))
        one.until(lambda d=done: lines(out) > d, "it to go on")  # type: ignore[misc]
    (folder / "enough").touch()
    one.thread.join(90.0)
    assert one.ends().end is End.FINISHED
    steps = lines(out)
    for rank in ("", "-1")[:ranks]:
        undisturbed = (folder / f"undisturbed{rank}").read_bytes().splitlines()
        assert (folder / f"parked{rank}").read_bytes().splitlines() == undisturbed[:steps]


@pytest.mark.timeout(200)
def test_two_ranks_go_on_bit_for_bit_from_three_images(tmp_path: Path, helper: Running) -> None:
    imaged_at_random(tmp_path, helper, ranks=2, images=3, seed=1)


@pytest.mark.hunt
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_training_goes_on_bit_for_bit_from_twenty_images(
    tmp_path: Path, helper: Running, ranks: int, seed: int
) -> None:
    imaged_at_random(tmp_path, helper, ranks=ranks, images=IMAGES, seed=seed)
