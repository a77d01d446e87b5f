"""Split over its ranks by FSDP2, a job is stopped and started again with any number of workers, and loses nothing."""

from pathlib import Path
from random import Random

import pytest

from ebbtide.client.messages import Want
from ebbtide_train.control import GangPlan
from ebbtide_train.session.step_log import step_lines
from tests.train_jobs import gangs, tiny_sharded
from tests.train_jobs.exact.courses import (
    lost_steps,
    must_equal,
    must_have_taken_every_sample_once,
)

pytestmark = pytest.mark.timeout(200)


def plan(run_dir: Path, *, world: int, steps: int, epoch: int = 1, **more: object) -> GangPlan:
    options = {"micro_batch_max": tiny_sharded.MICRO_BATCH, **more.pop("options", {})}  # type: ignore[dict-item]
    return gangs.plan_of(
        run_dir,
        world=world,
        epoch=epoch,
        steps=steps,
        train="tests.train_jobs.tiny_sharded:train",
        global_batch=tiny_sharded.GLOBAL_BATCH,
        options=options,
        **more,
    )


def restarted(job: Path, steps: int, stops: list[int], worlds: list[int], **more: object) -> None:
    """Gangs of ``worlds``, one after the other, which are told to stop after ``stops`` finished steps."""
    for number, (end, world) in enumerate(zip([*stops, steps], worlds, strict=True)):
        wants = {end: Want.STOP} if end < steps else {}
        gangs.run(plan(job, world=world, steps=steps, epoch=10 * (number + 1), **more), wants)


def must_have_come_back_whole(job: Path, stops: list[int], worlds: list[int]) -> None:
    """Parameters, buffers and the optimizer's state, put together from all ranks: as they were when the gang left."""
    for step, before, after in zip(stops, worlds, worlds[1:], strict=False):
        ended = {(job / f"ended-{step}-{rank}").read_text() for rank in range(before)}
        begun = {(job / f"begun-{step}-{after}-{rank}").read_text() for rank in range(after)}
        assert begun == ended and len(ended) == 1, f"step {step}, {before} -> {after} workers"


def losses_by_torch(folder: Path, steps: int, stops: list[int], worlds: list[int]) -> dict[tuple[int, int], str]:
    """Of a run without a session, that changes its number of workers by torch's own full state dict; by step, rank."""
    folder.mkdir()
    segments = list(zip([0, *stops], [*stops, steps], worlds, strict=True))
    found: dict[tuple[int, int], str] = {}
    for number, (first, _, world) in enumerate(segments):
        ranks = [
            gangs._context.Process(target=tiny_sharded.by_torch, args=(folder, segments, number, rank))
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        gangs.join(list(ranks))
        for rank in range(world):
            losses = (folder / f"losses-{first}-{rank}").read_text().split()
            found |= {(first + at, rank): loss for at, loss in enumerate(losses)}
    return found


def must_equal_torch(job: Path, folder: Path, steps: int, stops: list[int], worlds: list[int]) -> None:
    lines = step_lines(job)
    assert {(line.step, line.rank): line.loss for line in lines} == losses_by_torch(folder, steps, stops, worlds)
    assert len(lines) == len({(line.step, line.rank) for line in lines}), "a step was lost or repeated"
    assert lost_steps(job) == 0
    must_have_taken_every_sample_once(job, steps=steps)


def test_two_then_three_then_two_workers_lose_and_repeat_nothing(tmp_path: Path) -> None:
    stops, worlds = [3, 6], [2, 3, 2]
    restarted(tmp_path / "job", 9, stops, worlds)
    must_have_come_back_whole(tmp_path / "job", stops, worlds)
    must_equal_torch(tmp_path / "job", tmp_path / "torch", 9, stops, worlds)


def test_three_workers_restarted_at_random_leave_no_trace(tmp_path: Path) -> None:
    """At three the order of the sum over ranks shows; an evaluation in each step leaves parameters whole."""
    steps, stops = 6, sorted(Random(3).sample(range(1, 6), 2))
    gangs.run(plan(tmp_path / "calm", world=3, steps=steps, look=True))
    restarted(tmp_path / "job", steps, stops, [3, 3, 3], look=True, options={"checkpoint_every_s": 0.0})
    must_equal(tmp_path / "job", tmp_path / "calm", world=3, steps=steps)
