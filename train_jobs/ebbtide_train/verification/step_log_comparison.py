"""Comparing the step logs of two runs: same losses, bit for bit, and same samples?

A crash makes a job run some steps again. For each step the newest lines count; a step that was run twice by the same
number of workers must have given the same losses both times, or the run is not identical to itself. That holds as long
as all steps before it were run by the same numbers of workers both times too: another number is another order of
summation, and what comes after it is another run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ebbtide_train.session.step_log import StepLine
from ebbtide_train.verification.control_run import Segment


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two step logs have in common."""

    steps: int  # steps that both have
    losses_identical: bool  # every loss of every rank of every step, as hex; no step is missing on either side
    samples_identical: bool  # every step took the same samples, in the same order
    first_difference: str  # empty if there is none


@dataclass(frozen=True, slots=True)
class StepSeen:
    """One step as all its ranks saw it."""

    world: int
    losses: tuple[str, ...]  # by rank
    samples: tuple[int, ...]  # of the global batch, in order


def final_steps(lines: Iterable[StepLine]) -> dict[int, StepSeen]:
    """By step, what counted in the end: the lines of the last gang that finished it."""
    newest: dict[int, dict[int, StepLine]] = {}
    for line in sorted(lines, key=lambda line: line.t):
        ranks = newest.setdefault(line.step, {})
        if ranks and next(iter(ranks.values())).world != line.world:
            ranks.clear()  # the step was run again by another number of workers
        ranks[line.rank] = line
    return {
        step: StepSeen(
            world=next(iter(ranks.values())).world,
            losses=tuple(ranks[rank].loss for rank in sorted(ranks)),
            samples=tuple(sample for rank in sorted(ranks) for sample in ranks[rank].samples),
        )
        for step, ranks in sorted(newest.items())
    }


def repeat_difference(lines: Iterable[StepLine]) -> str:
    """The first step, in time, that gave another loss when the same rank ran it again after the same history.

    The history of a step is how many workers ran each step up to it. Empty if no step differed.
    """
    histories: dict[tuple[int, int, int], int] = {}  # a number for each (step, history before it, workers)
    upto: dict[int, int] = {-1: -1}  # by step: the history that led to its newest run
    seen: dict[tuple[int, int, int], str] = {}
    for line in sorted(lines, key=lambda line: line.t):
        before = upto.get(line.step - 1, -1)
        here = histories.setdefault((line.step, before, line.world), len(histories))
        upto[line.step] = here
        first = seen.setdefault((line.step, line.rank, here), line.loss)
        if first != line.loss:
            return f"step {line.step} rank {line.rank} gave {first} first and {line.loss} when it was run again"
    return ""


def segments_of(lines: Iterable[StepLine]) -> list[Segment]:
    """The run's steps cut where the number of workers changed: what a control run must replay.

    Raises:
        ValueError: a step is missing.
    """
    segments: list[Segment] = []
    for step, seen in final_steps(lines).items():
        expected = segments[-1].last_step + 1 if segments else 0
        if step != expected:
            raise ValueError(f"the log has no step {expected}")
        if segments and segments[-1].world == seen.world:
            segments[-1] = Segment(segments[-1].first_step, step, seen.world)
        else:
            segments.append(Segment(step, step, seen.world))
    return segments


def compare(run: Iterable[StepLine], control: Iterable[StepLine]) -> Comparison:
    """Compare a job's lines with those of its control run."""
    run, control = list(run), list(control)
    here, there = final_steps(run), final_steps(control)
    loss_difference = repeat_difference(run) or _difference(here, there, "losses")
    sample_difference = _difference(here, there, "samples")
    return Comparison(
        steps=len(here.keys() & there.keys()),
        losses_identical=not loss_difference,
        samples_identical=not sample_difference,
        first_difference=loss_difference or sample_difference,
    )


def _difference(here: Mapping[int, StepSeen], there: Mapping[int, StepSeen], what: str) -> str:
    for step in sorted(here.keys() | there.keys()):
        if step not in here or step not in there:
            return f"step {step} is only in the {'run' if step in here else 'control run'}"
        mine, other = here[step], there[step]
        if what == "losses" and (mine.world, mine.losses) != (other.world, other.losses):
            return (
                f"step {step}: losses {list(mine.losses)} with {mine.world} workers, "
                f"{list(other.losses)} with {other.world} in the control run"
            )
        if what == "samples" and mine.samples != other.samples:
            return f"step {step}: samples {list(mine.samples)}, {list(other.samples)} in the control run"
    return ""
