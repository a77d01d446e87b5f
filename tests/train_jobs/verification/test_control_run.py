"""Control runs and the comparison of step logs."""

from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide_train.session.step_log import StepLine, step_lines
from ebbtide_train.verification import plain_training
from ebbtide_train.verification.control_run import ControlFailed, Segment, replay
from ebbtide_train.verification.step_log_comparison import compare, final_steps, repeat_difference, segments_of
from ebbtide_train.worker.train_function import load_function
from tests.train_jobs import gangs


def line(step: int, rank: int = 0, *, world: int = 1, loss: float = 1.0, t: float = 0.0) -> StepLine:
    samples = (step * 2, step * 2 + 1) if world == 1 else (step * 2 + rank,)
    return StepLine(step, rank, world, loss.hex(), samples, t or float(step), 0.1)


def test_a_replay_runs_fresh_processes_and_logs_every_step(tmp_path: Path) -> None:
    lines = replay(gangs.TINY, {"steps": 2}, segments=[Segment(0, 1, 1)], run_dir=tmp_path / "control", global_batch=4)
    gangs.run(gangs.plan_of(tmp_path / "job", world=1, steps=2, global_batch=4))
    assert compare(step_lines(tmp_path / "job"), lines).losses_identical
    run = plain_training.PlainRun(
        build="tests.train_jobs.tiny:build", args={}, first_step=0, last_step=1, world=1, global_batch=4
    )
    losses = plain_training.run(run, work_dir=tmp_path / "plain")
    assert losses == {step: seen.losses for step, seen in final_steps(lines).items()}


def test_a_failing_rank_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ControlFailed, match=r"(?s)rank 0 of 1 ended with 1.*names no function"):
        replay("no.such:thing", {}, segments=[Segment(0, 1, 1)], run_dir=tmp_path, global_batch=4)
    with pytest.raises(ControlFailed, match="not empty"):
        replay(gangs.TINY, {}, segments=[], run_dir=tmp_path, global_batch=4)
    with pytest.raises(ValueError, match=r"write package\.module:function"):
        load_function("ebbtide_train.verification.control_run:nothing")


def test_equal_logs_are_identical() -> None:
    run = [line(0), line(1), line(2, 0, world=2), line(2, 1, world=2, loss=3.0)]
    found = compare(run, reversed(run))
    assert (found.steps, found.losses_identical, found.samples_identical, found.first_difference) == (3, True, True, "")
    assert segments_of(run) == [Segment(0, 1, 1), Segment(2, 2, 2)]


def test_one_bit_of_one_loss_is_a_difference() -> None:
    run = [line(0), line(1, loss=0.1 + 0.2)]
    found = compare(run, [line(0), line(1, loss=0.3)])
    assert not found.losses_identical
    assert found.samples_identical
    assert found.first_difference.startswith("step 1: losses")


def test_other_samples_and_missing_steps_are_differences() -> None:
    other = replace(line(1), samples=(9, 3))
    assert compare([line(0), line(1)], [line(0), other]).samples_identical is False
    assert "step 1 is only in the run" in compare([line(0), line(1)], [line(0)]).first_difference


def test_a_repeated_step_must_repeat_its_loss_and_the_last_one_counts() -> None:
    """Steps 1 and 2 are run again after a crash; step 2 by another number of workers."""
    run = [line(0), line(1, t=1.0), line(2, t=2.0), line(1, t=5.0)]
    again = [line(2, 0, world=2, loss=7.0, t=6.0), line(2, 1, world=2, loss=8.0, t=6.0)]
    assert final_steps([*run, *again])[2].world == 2
    assert compare([*run, *again], [line(0), line(1), *again]).losses_identical
    found = compare([*run, line(1, loss=2.0, t=9.0)], [*run, line(1, loss=2.0, t=9.0)])
    assert not found.losses_identical
    assert "run again" in found.first_difference


def test_a_repeated_step_may_differ_after_another_history_and_must_not_after_the_same() -> None:
    """Step 1 is run by one worker, again by two after a crash, and step 2 by one each time."""
    first = [line(0), line(1, t=1.0), line(2, t=2.0)]
    by_two = [line(1, 0, world=2, t=5.0), line(1, 1, world=2, t=5.0)]
    assert repeat_difference([*first, *by_two, line(2, loss=3.0, t=6.0)]) == ""
    by_one = [line(1, t=8.0), line(2, loss=3.0, t=9.0)]
    assert repeat_difference([*first, *by_two, *by_one]).startswith("step 2 rank 0 gave")
    # The same roundabout way twice.
    assert repeat_difference([*first, *by_two, line(2, loss=3.0, t=6.0), *by_one[:1], line(2, t=9.0)]) == ""
    twice = [replace(seen, t=seen.t + 5) for seen in by_two]
    again = [*first, *by_two, line(2, loss=3.0, t=6.0), *twice, line(2, loss=4.0, t=11.0)]
    assert repeat_difference(again).startswith("step 2 rank 0 gave")


def test_a_log_with_a_hole_has_no_segments() -> None:
    with pytest.raises(ValueError, match="no step 1"):
        segments_of([line(0), line(2)])
