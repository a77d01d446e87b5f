"""What a checkpoint of a job is of. Needs no torch: a controller only asks how far its job is safe."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ebbtide.storage.checkpoints.run_directory.run_paths import CheckpointId, RunPaths
from ebbtide.storage.checkpoints.run_directory.run_survey import newest_of
from ebbtide.storage.errors import StorageError
from ebbtide_train.session.errors import BEGIN_ANEW, CheckpointMismatch

_NUMBERS = ("world", "seed", "global_batch", "dataset_len")


@dataclass(frozen=True, slots=True)
class Ref:
    """A checkpoint, and the promises of its job that must not change."""

    step: int  # finished steps
    epoch: int  # of the gang that wrote it
    world: int
    seed: int
    global_batch: int
    dataset_len: int  # 0: not known yet

    @property
    def id(self) -> CheckpointId:
        """Which checkpoint that is."""
        return CheckpointId(self.epoch, self.step)

    def note(self) -> dict[str, int]:
        """What is written beside it."""
        return {name: value for name, value in asdict(self).items() if name in _NUMBERS}

    @classmethod
    def from_note(cls, wanted: CheckpointId, note: Mapping[str, object]) -> "Ref":
        """The other way round.

        Raises:
            CheckpointMismatch: no session wrote that.
        """
        numbers = {name: note.get(name) for name in _NUMBERS}
        if not all(type(number) is int for number in numbers.values()):
            raise CheckpointMismatch(
                f"checkpoint {wanted} was not written by a session, so no job can go on from it; {BEGIN_ANEW}. Beside "
                f"it stands {dict(note)}"
            )
        return cls(wanted.step, wanted.epoch, **numbers)  # type: ignore[arg-type] # they are, see above


def durable_step(run_dir: Path) -> int:
    """How many finished steps of a job are safe; 0 before the first checkpoint.

    Raises:
        CheckpointMismatch: nobody can tell.
    """
    try:
        newest = newest_of(RunPaths(run_dir, run_dir.name))
    except StorageError as error:
        raise CheckpointMismatch(str(error)) from error
    return 0 if newest is None else newest.step
