"""Which checkpoints stay. Pure.

The newest few of those that count, and every so many steps one for good. Never removed: the newest, the newest that
can be opened, and, until the gang has one of its own, the one that it has read. What a stale gang left beside the line
goes at once, since nobody reads it.

A gang removes nothing once a later one has begun. That one has made its epoch's directory before it looked for the
newest; so if this gang does not see the directory after its own commit, the later one has seen that commit, and went
on from it or from something newer. (On NFS either may look at a listing that is up to 60 s old: keep at least two.)
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ebbtide.storage.checkpoints.run_directory.lineage import EpochFound, lineage, overtaken_by
from ebbtide.storage.checkpoints.run_directory.run_paths import CheckpointId


@dataclass(frozen=True, slots=True)
class Retention:
    """How many stay.

    Attributes:
        keep_last: the newest so many; 2: the one that counts, and one that a slow reader may still have open.
        keep_every: those whose step is a multiple of it stay for good; None for none.
    """

    keep_last: int = 2
    keep_every: int | None = None

    def __post_init__(self) -> None:
        # guard: a retention that keeps nothing is refused
        if self.keep_last < 1 or (self.keep_every is not None and self.keep_every < 1):
            raise ValueError(f"{self} would remove the last good checkpoint; both numbers must be at least 1")


@dataclass(frozen=True, slots=True)
class Judged:
    """A committed checkpoint, whether it stays, and why."""

    id: CheckpointId
    stays: bool
    why: str


def judge(
    epochs: Collection[EpochFound],
    retention: Retention,
    *,
    epoch: int,
    sound: CheckpointId | None,
    held: Iterable[CheckpointId] = (),
    origin: CheckpointId | None = None,
) -> list[Judged]:
    """What stays and what goes.

    Args:
        epochs: all that was found.
        retention: how many stay.
        epoch: of the gang that asks.
        sound: the newest that can be opened, which stays.
        held: those that somebody reads.
        origin: the one that the gang has read. Only that tells that its content is whole.

    Returns:
        Each committed checkpoint once, the highest first.
    """
    there = sorted((CheckpointId(one.epoch, step) for one in epochs for step in one.steps), reverse=True)
    line = [one for one in lineage(epochs) if one in set(there)]  # one that is missing takes the place of none
    places = {one: place for place, one in enumerate(line)}
    busy, later = frozenset(held), overtaken_by(epochs, epoch)
    has_own = any(one.epoch == epoch and one.steps for one in epochs)

    def why_it_stays(one: CheckpointId) -> str:
        if later is not None:  # guard: a gang that was replaced removes no checkpoint
            return f"epoch {later} has begun, and decides"
        if one in busy:  # guard: a checkpoint that is read stays
            return "somebody reads it"
        if one == sound:  # guard: the newest that opens stays, however many newer ones are damaged
            return "the newest that can be opened"
        # guard: the checkpoint that a gang has read stays until it has one of its own
        if one == origin and not has_own:
            return "the gang goes on from it"
        if one not in places:
            return ""
        if places[one] < retention.keep_last:  # guard: the newest few checkpoints stay
            return f"one of the newest {retention.keep_last}"
        if retention.keep_every is not None and one.step % retention.keep_every == 0:
            return f"one in {retention.keep_every} steps is kept"
        return ""

    def why_it_goes(one: CheckpointId) -> str:
        return f"newer ones are kept ({retention.keep_last})" if one in places else "a gang wrote it that was replaced"

    return [Judged(one, bool(why), why or why_it_goes(one)) for one in there for why in [why_it_stays(one)]]
