"""Which checkpoints count, and in which order. Pure.

Each start of a gang has a higher epoch than the one before, and says from which checkpoint it went on. Readers begin
at the highest epoch: its steps from the highest down, then the checkpoint that it went on from, and what that one had
behind it. A gang that was stopped, replaced, and goes on writes into its old epoch, from where no way leads any more:
neither what it finishes late nor what it removes is ever seen by a reader. That needs no lock and no clock.

An epoch of which nobody said from where it went on has all lower ones behind it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ebbtide.storage.checkpoints.run_directory.run_paths import CheckpointId


@dataclass(frozen=True, slots=True)
class Claim:
    """With which lease a gang began: ``ledger`` is the identity of the one within which ``lease`` epochs grow."""

    ledger: str
    lease: int


@dataclass(frozen=True, slots=True)
class Start:
    """From where a gang went on.

    Attributes:
        origin: None for the very beginning.
        claim: see `epoch_numbering`; None if nobody said.
    """

    origin: CheckpointId | None
    claim: Claim | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class EpochFound:
    """What there is of one epoch.

    Attributes:
        steps: committed checkpoints.
        start: None if nobody said.
    """

    epoch: int
    steps: frozenset[int] = frozenset()
    start: Start | None = None


def lineage(epochs: Iterable[EpochFound]) -> list[CheckpointId]:
    """The checkpoints that lead to the newest, newest first.

    The newest is in it even if it is not there any more, as long as an epoch says that it went on from it and has none
    of its own: whoever opens it must hear that it is missing, and not be given an older one in silence.
    """
    found: list[CheckpointId] = []
    origin: CheckpointId | None = None
    for epoch in sorted(epochs, key=lambda one: one.epoch, reverse=True):
        steps = epoch.steps
        if origin is not None:
            if epoch.epoch > origin.epoch:  # guard: readers go over epochs that lead nowhere
                continue
            # guard: what a gang commits after the step from which the next one went on does not count
            if epoch.epoch == origin.epoch:
                steps = frozenset(step for step in steps if step <= origin.step)
            if not found and (
                epoch.epoch < origin.epoch or origin.step not in steps
            ):  # guard: a missing origin is named
                found.append(origin)
        found += [CheckpointId(epoch.epoch, step) for step in sorted(steps, reverse=True)]
        # guard: a gang that began from nothing has nothing behind it
        if epoch.start is not None and epoch.start.origin is None:
            return found
        if epoch.start is not None:
            origin = epoch.start.origin
    if origin is not None and not found:  # guard: a missing origin is named also if there is nothing below it
        found.append(origin)
    return found


def newest(epochs: Iterable[EpochFound]) -> CheckpointId | None:
    """The checkpoint from which a job goes on; None before the first."""
    line = lineage(epochs)
    return line[0] if line else None


def overtaken_by(epochs: Iterable[EpochFound], epoch: int) -> int | None:
    """The highest epoch above ``epoch``, or None: then that one is the last that began."""
    highest = max((one.epoch for one in epochs), default=epoch)
    return highest if highest > epoch else None  # guard: a later epoch is one with a directory, whatever is in it
