"""The control run: does the disturbed job's every step equal, bit for bit, that of one that nobody disturbed?"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ebbtide.config.sections.job_section import JobSection
from ebbtide_train.session.step_log import StepLine, step_lines
from ebbtide_train.verification.control_run import Segment, replay
from ebbtide_train.verification.step_log_comparison import compare, final_steps, segments_of


@dataclass(frozen=True, slots=True)
class Exactness:
    """What came of the comparison. ``lost_steps``: missing in the log, or run twice without a crash."""

    steps: int
    segments: tuple[Segment, ...]
    losses_identical: bool
    samples_identical: bool
    lost_steps: int
    first_difference: str


def prove(run_dir: Path, job: JobSection, control_dir: Path, *, crash_lost_steps: int) -> Exactness:
    """Compare the job's step log with a control run in fresh processes."""
    lines = step_lines(run_dir)
    segments = tuple(segments_of(lines))
    shutil.rmtree(control_dir, ignore_errors=True)
    parts = ", ".join(f"{s.first_step}-{s.last_step} with {s.world}" for s in segments)
    print(f"control run: fresh processes, undisturbed, the same changes of workers: steps {parts}", flush=True)
    control = replay(
        job.entrypoint,
        job.args,
        segments=segments,
        run_dir=control_dir,
        global_batch=job.global_batch,
        seed=job.seed,
        options={"micro_batch_max": job.micro_batch, "bucket_cap_mb": job.bucket_cap_mb},
    )
    found = compare(lines, control)
    return Exactness(
        steps=found.steps,
        segments=segments,
        losses_identical=found.losses_identical,
        samples_identical=found.samples_identical,
        lost_steps=lost_steps(lines, crash_lost_steps),
        first_difference=found.first_difference,
    )


def lost_steps(lines: Sequence[StepLine], crash_lost_steps: int) -> int:
    """Steps that are missing, or that rank 0 finished more than once, those that a crash cost not counted."""
    first_rank = [line.step for line in lines if line.rank == 0]
    missing = set(range(max(first_rank, default=-1) + 1)) - set(first_rank)
    repeated = len(first_rank) - len(set(first_rank))
    return len(missing) + max(0, repeated - crash_lost_steps)


def losses(lines: Sequence[StepLine]) -> Mapping[int, float]:
    """The mean loss over the ranks of every step."""
    return {
        step: sum(float.fromhex(loss) for loss in seen.losses) / len(seen.losses)
        for step, seen in final_steps(lines).items()
    }
