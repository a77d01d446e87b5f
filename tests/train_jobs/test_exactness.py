"""Stepping aside changes nothing: bit for bit, at one, two and three workers.

Two ranks prove little, since a + b = b + a; at three the order of the reduction shows.
"""

from pathlib import Path

import pytest
from torch.nn.parallel import DistributedDataParallel

from ebbtide.client.messages import DesiredState
from ebbtide_train.session.coordination.gate import Away
from ebbtide_train.session.state.ddp_wrapper import DdpWrapper
from ebbtide_train.session.step_log import gang_lines, step_lines
from ebbtide_train.verification import plain_training
from ebbtide_train.verification.control_run import GangPlan, Segment, replay
from ebbtide_train.verification.step_log_comparison import compare, final_steps, segments_of
from tests.train_jobs import gangs, lent

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize(
    ("world", "bucket_cap_mb", "dropout"), [(1, 25.0, 0.2), (2, 25.0, 0.2), (3, 25.0, 0.0), (3, 0.01, 0.2)]
)
def test_parks_and_restarts_leave_no_trace(tmp_path: Path, world: int, bucket_cap_mb: float, dropout: float) -> None:
    """1. undisturbed; 2. parked twice, in lent memory; 3. stopped and started again, then parked: all the same."""

    def plan(name: str) -> GangPlan:
        options = {"bucket_cap_mb": bucket_cap_mb, "micro_batch_max": 2}
        return gangs.plan_of(tmp_path / name, world=world, steps=9, dropout=dropout, global_batch=7, options=options)

    gangs.run(plan("calm"))
    gangs.run(plan("parked"), {2: Away(), 5: Away(polls=5)}, lent.rank_main)
    gangs.run(plan("stopped"), {3: DesiredState.STOP})
    gangs.run(gangs.stopping(plan("stopped"), epoch=2), {6: Away()})

    calm = step_lines(tmp_path / "calm")
    for name in ("parked", "stopped"):
        found = compare(step_lines(tmp_path / name), calm)
        assert (found.steps, found.losses_identical, found.samples_identical) == (9, True, True), found
        assert len(step_lines(tmp_path / name)) == 9 * world, "no step may be lost or repeated"
        assert gangs.digests(tmp_path / name, world) == gangs.digests(tmp_path / "calm", world)
    assert [line.lost_steps for line in gang_lines(tmp_path / "stopped")] == [0, 0]
    assert len({text.split()[0] for text in gangs.digests(tmp_path / "calm", world)}) == 1, "ranks hold one model"


def _without_remedy(plan: GangPlan, rank: int, wants: dict[int, DesiredState | Away]) -> None:
    def wrap(self: DdpWrapper, *, device: object, bucket_cap_mb: float, init_sync: bool) -> None:
        self._wrap[:] = [DistributedDataParallel(self.module, bucket_cap_mb=bucket_cap_mb, init_sync=init_sync)]

    DdpWrapper.wrap = wrap  # type: ignore[method-assign]
    gangs.rank_main(plan, rank, wants)


def test_without_the_remedy_three_workers_would_differ(tmp_path: Path) -> None:
    """If this fails, torch no longer reorders its buckets and decision 003 can be taken back."""
    for name, wants in (("calm", {}), ("parked", {2: Away()})):
        gangs.run(gangs.plan_of(tmp_path / name, world=3, steps=6), wants, _without_remedy)
    assert gangs.digests(tmp_path / "calm", 3) != gangs.digests(tmp_path / "parked", 3)


def test_changing_the_number_of_workers_equals_a_control_run_with_the_same_changes(tmp_path: Path) -> None:
    """The job: 2 workers, parked once, shrunk to 1, grown to 3. The control run: fresh processes, undisturbed."""
    job = tmp_path / "job"
    gangs.run(gangs.plan_of(job, world=2, steps=9, dropout=0.1), {2: Away(), 4: DesiredState.STOP})
    gangs.run(gangs.plan_of(job, world=1, epoch=10, steps=9, dropout=0.1), {6: DesiredState.STOP})
    gangs.run(gangs.plan_of(job, world=3, epoch=11, steps=9, dropout=0.1))
    lines = step_lines(job)
    segments = segments_of(lines)
    assert segments == [Segment(0, 3, 2), Segment(4, 5, 1), Segment(6, 8, 3)]
    control = replay(
        gangs.TINY,
        {"steps": 9, "dropout": 0.1},
        segments=segments,
        run_dir=tmp_path / "control",
        global_batch=6,
        launch=gangs.launch,
    )
    found = compare(lines, control)
    assert (found.steps, found.losses_identical, found.samples_identical) == (9, True, True), found


@pytest.mark.parametrize("world", [1, 2])
def test_a_plain_pytorch_loop_gives_the_same_losses(tmp_path: Path, world: int) -> None:
    """From nothing for four steps, then from the session's checkpoint for the rest; uneven shares at two workers."""
    job = tmp_path / "job"
    gangs.run(gangs.plan_of(job, world=world, steps=8, dropout=0.2, global_batch=7), {1: Away(), 4: DesiredState.STOP})
    session = final_steps(step_lines(job))
    for first in (0, 4):
        run = plain_training.PlainRun(
            build="tests.train_jobs.tiny:build",
            args={"dropout": 0.2},
            first_step=first,
            last_step=first + 3,
            world=world,
            global_batch=7,
            start_dir=str(job) if first else "",
        )
        losses = gangs.plain_losses(run, tmp_path / f"plain{first}")
        if first:
            gangs.run(gangs.plan_of(job, world=world, epoch=2, steps=8, dropout=0.2, global_batch=7))
            session = final_steps(step_lines(job))
        assert losses == {step: session[step].losses for step in range(first, first + 4)}


def test_the_global_batch_gives_the_same_gradient_at_any_number_of_workers(tmp_path: Path) -> None:
    """7 samples over 1, 2 and 3 ranks in micro batches of 2: equal up to rounding, not only in the mean of losses."""
    for world in (1, 2, 3):
        plan = gangs.plan_of(
            tmp_path / str(world), world=world, steps=4, global_batch=7, options={"micro_batch_max": 2}
        )
        gangs.run(plan)
    runs = [final_steps(step_lines(tmp_path / str(world))) for world in (1, 2, 3)]
    shares = {1: [7], 2: [4, 3], 3: [3, 2, 2]}
    for step in range(4):
        means = []
        for run in runs:
            seen = run[step]
            assert seen.samples == runs[0][step].samples
            weighted = zip(seen.losses, shares[seen.world], strict=True)
            means.append(sum(float.fromhex(loss) * count for loss, count in weighted) / 7)
        assert means == pytest.approx([means[0]] * 3, rel=1e-5)
