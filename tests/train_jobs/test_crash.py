"""A killed rank costs at most the steps since the last commit, and they come out the same again."""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ebbtide.client.messages import DesiredState, RankReport
from ebbtide.storage.checkpoints.manager.two_phase_save import Saving
from ebbtide.storage.checkpoints.run_directory.run_paths import CheckpointId
from ebbtide_train.session.coordination.gate import Away
from ebbtide_train.session.step_log import gang_lines, step_lines
from ebbtide_train.verification.control_run import GangPlan
from ebbtide_train.verification.step_log_comparison import compare
from tests.builders.training import once_durable
from tests.train_jobs import gangs

pytestmark = pytest.mark.timeout(200)


def never(report: RankReport) -> bool:
    """Stay parked."""
    return False


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The undisturbed run that all others must equal."""
    path = tmp_path_factory.mktemp("calm") / "job"
    gangs.run(gangs.plan_of(path, world=2, steps=10, dropout=0.1))
    return path


def goes_on(run_dir: Path, calm: Path, *, lost: int) -> None:
    """The next gang ends the job: nothing missing, repeats equal, losses counted."""
    gangs.run(gangs.plan_of(run_dir, world=2, epoch=50, steps=10, dropout=0.1))
    assert gang_lines(run_dir)[-1].lost_steps == lost
    assert f"lost={lost}" in gangs.reports(gangs.plan_of(run_dir, world=2, epoch=50))[-1]
    found = compare(step_lines(run_dir), step_lines(calm))
    assert (found.steps, found.losses_identical, found.samples_identical) == (10, True, True), found
    assert gangs.digests(run_dir, 2) == gangs.digests(calm, 2)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_while_parked_loses_nothing_once_the_spill_is_committed(
    tmp_path: Path, calm: Path, victim: int
) -> None:
    plan = gangs.plan_of(tmp_path, world=2, steps=10, dropout=0.1)
    ranks = gangs.start(plan, {5: Away(until=never)})
    try:
        gangs.wait_until(lambda: "parked step=5 durable=5" in "".join(gangs.reports(plan)), what="the spill")
        gangs.wait_until(lambda: "parked step=5" in "".join(gangs.reports(plan, 1)), what="rank 1 to park")
        ranks[victim].kill()
    finally:
        gangs.kill(ranks)
    goes_on(tmp_path, calm, lost=0)


def _dies_at_step_7(plan: GangPlan, rank: int, wants: Mapping[int, DesiredState | Away]) -> None:
    """Rank 1 kills itself in the middle of its eighth step, after a commit at step 4."""
    from tests.train_jobs import tiny

    plain_getitem = tiny.Numbers.__getitem__
    calls = [0]

    def getitem(self: tiny.Numbers, index: int) -> object:
        calls[0] += 1
        if rank == 1 and calls[0] > 7 * 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain_getitem(self, index)

    tiny.Numbers.__getitem__ = getitem  # type: ignore[method-assign,assignment]
    gangs.rank_main(plan, rank, wants)


def test_a_rank_killed_in_a_step_costs_the_steps_since_the_commit(tmp_path: Path, calm: Path) -> None:
    """The park at step 4 committed it; seven steps were finished; three must be run again."""
    plan = gangs.plan_of(tmp_path, world=2, steps=10, dropout=0.1)
    ranks = gangs.start(plan, {4: Away(until=once_durable)}, _dies_at_step_7)
    try:
        ranks[1].join(40)
        assert ranks[1].exitcode == -signal.SIGKILL
        ranks[0].join(40)
        assert ranks[0].exitcode not in (0, None), "gloo must notice the closed socket"
    finally:
        gangs.kill(ranks)
    goes_on(tmp_path, calm, lost=3)


def _stuck_in_spill(plan: GangPlan, rank: int, wants: Mapping[int, DesiredState | Away]) -> None:
    """The checkpoint of step 6 is written but its commit never comes."""
    plain_commit = Saving.commit

    def commit(self: Saving, *arguments: Any) -> CheckpointId:
        if self.id.step == 6:
            (Path(plan.run_dir) / "in-spill").touch()
            time.sleep(600)
        return plain_commit(self, *arguments)

    Saving.commit = commit  # type: ignore[method-assign,assignment]
    gangs.rank_main(plan, rank, wants)


def test_a_rank_killed_during_a_spill_falls_back_to_the_commit_before(tmp_path: Path, calm: Path) -> None:
    plan = gangs.plan_of(tmp_path, world=2, steps=10, dropout=0.1)
    wants = {3: Away(until=once_durable), 6: Away(until=never)}
    ranks = gangs.start(plan, wants, _stuck_in_spill)
    try:
        gangs.wait_until((tmp_path / "in-spill").exists, what="the spill to begin")
    finally:
        gangs.kill(ranks)
    assert (tmp_path / "e1" / ".tmp-step-6").exists(), "written, but not committed"
    goes_on(tmp_path, calm, lost=3)


def test_a_crash_is_counted_once(tmp_path: Path, calm: Path) -> None:
    """A second gang that dies before its first step has lost nothing more than the first one."""
    plan = gangs.plan_of(tmp_path, world=2, steps=10, dropout=0.1)
    ranks = gangs.start(plan, {4: Away(until=once_durable)}, _dies_at_step_7)
    ranks[1].join(40)
    gangs.kill(ranks)
    second = gangs.plan_of(tmp_path, world=2, epoch=20, steps=10, dropout=0.1, train="tests.train_jobs.tiny:train_dies")
    ranks = gangs.start(second)
    for rank in ranks:
        rank.join(40)
    gangs.kill(ranks)
    goes_on(tmp_path, calm, lost=0)
    assert [line.lost_steps for line in gang_lines(tmp_path)] == [0, 3, 0]
