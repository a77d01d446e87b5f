"""No rank leaves before all know that the state is committed."""

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from ebbtide.client.messages import DesiredState
from ebbtide_train.session.checkpoints.checkpoint_ref import Ref, durable_step
from ebbtide_train.session.checkpoints.checkpoint_store import CheckpointStore
from ebbtide_train.session.coordination.gate import Away
from ebbtide_train.session.errors import CheckpointFailed
from ebbtide_train.session.loop import safe_point as safe_point_module
from ebbtide_train.verification.control_run import GangPlan
from tests.train_jobs import gangs

pytestmark = pytest.mark.timeout(150)


def _held_up(plan: GangPlan, rank: int, wants: Mapping[int, DesiredState | Away]) -> None:
    """The first attempt to commit waits to be told, and then fails."""
    publish, calls, folder = CheckpointStore.publish, [0], Path(plan.run_dir)

    def held_up(self: CheckpointStore, state: Mapping[str, object], ref: Ref) -> None:
        calls[0] += 1
        if calls[0] == 1:
            (folder / "in commit").touch()
            gangs.wait_until((folder / "go").exists, what="the word", timeout_s=60.0)
            raise CheckpointFailed("no space left")
        publish(self, state, ref)

    CheckpointStore.publish = held_up  # type: ignore[method-assign]
    safe_point_module.RETRY_S = 0.05  # type: ignore[attr-defined]
    gangs.rank_main(plan, rank, wants)


def test_no_rank_leaves_before_the_first_has_committed(tmp_path: Path) -> None:
    plan = gangs.plan_of(tmp_path, world=2, steps=6)
    ranks = gangs.start(plan, {3: DesiredState.STOP}, _held_up)
    try:
        gangs.wait_until((tmp_path / "in commit").exists, what="the commit to begin", timeout_s=60.0)
        time.sleep(0.3)
        assert durable_step(tmp_path) == 0
        assert not any("stopped" in line for rank in (0, 1) for line in gangs.reports(plan, rank))
        (tmp_path / "go").touch()
        gangs.join(ranks)
    finally:
        gangs.kill(ranks)
    for rank in (0, 1):
        told = gangs.reports(plan, rank)
        assert told[-1].startswith("stopped step=3 durable=3")
        assert any("refused=no space left" in line for line in told), "the other ranks hear of a failure too"
    assert durable_step(tmp_path) == 3
