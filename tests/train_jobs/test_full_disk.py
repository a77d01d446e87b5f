"""A gang whose shared directory is full, really: what is parked stays in memory and goes on, and nobody leaves with it.

`test_durability` has what can go wrong one by one; here the disk itself says it, through the whole way of a write.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.client.messages import DesiredState, RankPhase, RankReport
from ebbtide_train.session.checkpoints.checkpoint_ref import durable_step
from ebbtide_train.session.coordination.gate import Away
from ebbtide_train.verification.control_run import GangPlan
from tests.small_disk import grow, small_disk
from tests.train_jobs import gangs
from tests.train_jobs.exact.courses import lost_steps, must_equal

pytestmark = pytest.mark.timeout(150)
WORLD, STEPS = 2, 8
ROOM = "2g"  # a GiB is kept free for others; of what nobody writes a tmpfs has nothing


def plan_of(run_dir: Path) -> GangPlan:
    """Of 5 MB of parameters and optimizer state."""
    return gangs.plan_of(run_dir, world=WORLD, steps=STEPS, width=256, dropout=0.2, global_batch=7)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "3m") as where:
        yield where


class UntilItSays:
    """An `Away.until` that notes what rank 0 says while it is parked, and ends the park."""

    def __init__(self, folder: Path, *, room: bool) -> None:
        self._folder, self._room = folder, room

    def __call__(self, report: RankReport) -> bool:
        """Without ``room``: once a write has failed. With it, room is made, and it ends once all is durable."""
        assert report.phase is RankPhase.PARKED
        if self._room:
            grow(self._folder, ROOM)
            return report.durable_step == report.step
        if report.commit_error:
            (self._folder / "said").write_text(f"{report.durable_step} {report.commit_error}")
        return bool(report.commit_error)


def test_what_is_parked_and_cannot_be_spilled_goes_on_from_memory_and_is_spilled_once_there_is_room(
    tmp_path: Path, small: Path
) -> None:
    wants = {2: Away(until=UntilItSays(small, room=False)), 5: Away(until=UntilItSays(small, room=True))}
    gangs.run(plan_of(small / "job"), wants)
    said = (small / "said").read_text()
    assert said.startswith("0 cannot commit step 2: no room for a checkpoint of ") and str(small) in said
    calm = tmp_path / "calm"
    gangs.run(plan_of(calm))
    must_equal(small / "job", calm, world=WORLD, steps=STEPS)
    assert lost_steps(small / "job") == 0 and durable_step(small / "job") == STEPS


def test_a_gang_that_must_leave_stays_and_says_why_until_there_is_room(tmp_path: Path, small: Path) -> None:
    plan = plan_of(small / "job")
    ranks = gangs.start(plan, {3: DesiredState.STOP})
    try:
        gangs.wait_until(
            lambda: any(
                "refused=cannot commit step 3: no room for a checkpoint of " in line for line in gangs.reports(plan)
            ),
            what="the reason",
            timeout_s=60.0,
        )
        assert all(rank.is_alive() for rank in ranks), "who leaves without its state has lost it"
        grow(small, ROOM)
        gangs.join(ranks)
    finally:
        gangs.kill(ranks)
    assert durable_step(small / "job") == 3
    gangs.run(gangs.stopping(plan, epoch=10))
    gangs.run(plan_of(tmp_path / "calm"))
    must_equal(small / "job", tmp_path / "calm", world=WORLD, steps=STEPS)
    assert lost_steps(small / "job") == 0
