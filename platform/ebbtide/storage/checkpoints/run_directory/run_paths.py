"""Where the checkpoints of a run lie, and which names mean something.

::

    train/<run>/                      the run's directory; others may keep files of theirs in it
        e<epoch>/                     what one gang wrote: epochs only rise, and each start of a gang has its own
            start.json                from which checkpoint it went on
            step-<n>/                 a committed checkpoint, immutable
                rank<r>.safetensors   the shards that one rank wrote, and beside it its index of chunk hashes
                state.json            which tensors there are, where their parts lie, and all that is no tensor
                about.json            what the writer wanted to say about it
                manifest.json, COMMIT as of every object of the store
            .tmp-step-<n>/            being written, or left by a crash; no reader looks at names with a dot
        leases/                       who reads which checkpoint, besides the gang
        gang/                         the leases of the gangs that run, parked ones too
        decisions.jsonl               what people decided about it
    train/<run>@<time>/               the same of a run that was begun anew then: see ``fresh_start``

Numbers are written without leading zeros, so that a thing has one name. The rename of ``.tmp-step-<n>`` is the commit.
"""

import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from ebbtide.storage.errors import Refused
from ebbtide.storage.names import FileName, tag

STATE = FileName("state.json")
ABOUT = FileName("about.json")
START = "start.json"
DECISIONS = "decisions.jsonl"
GANG = "gang"
ASIDE = "@"  # in no name of a job; a run that was put aside has its own name, this, and a time as its directory's
TEMPORARY = ".tmp-"
WORK = f"{TEMPORARY}step-"
_NUMBER = "(0|[1-9][0-9]{0,17})"  # below 2^63
_EPOCH = re.compile(f"e{_NUMBER}")
_STEP = re.compile(f"step-{_NUMBER}")


@dataclass(frozen=True, slots=True, order=True)
class CheckpointId:
    """Which checkpoint of a run: the gang that wrote it, and how many steps were finished."""

    epoch: int
    step: int

    def __post_init__(self) -> None:
        for what, number in (("an epoch", self.epoch), ("a step", self.step)):
            if type(number) is not int or not 0 <= number < 10**18:
                raise Refused(f"{number!r} cannot be {what}: a whole number from 0 is expected")

    def __str__(self) -> str:
        return f"e{self.epoch}/step-{self.step}"

    @classmethod
    def parse(cls, text: str) -> "CheckpointId":
        """The other way round.

        Raises:
            Refused: it is not of that form.
        """
        epoch, _, step = text.partition("/")
        numbers = epoch_of(epoch), step_of(step)
        if numbers[0] is None or numbers[1] is None:
            raise Refused(f"{text[:80]!a} names no checkpoint: e<epoch>/step-<n> is expected, such as e3/step-100")
        return cls(numbers[0], numbers[1])


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The places of one run."""

    directory: Path
    run: str

    @property
    def shared_dir(self) -> Path:
        """Of the pool that it belongs to."""
        return self.directory.parent.parent

    def epoch(self, number: int) -> Path:
        """What one gang wrote."""
        return self.directory / f"e{number}"

    def start(self, epoch: int) -> Path:
        """From where a gang went on."""
        return self.epoch(epoch) / START

    def checkpoint(self, wanted: CheckpointId) -> Path:
        """A committed checkpoint."""
        return self.directory / str(wanted)

    def work(self, wanted: CheckpointId) -> Path:
        """Where a checkpoint is being written."""
        return self.epoch(wanted.epoch) / f"{WORK}{wanted.step}"

    def removed(self, wanted: CheckpointId) -> Path:
        """A free name for a checkpoint that is being removed."""
        return self.epoch(wanted.epoch) / f"{TEMPORARY}removed-{wanted.step}.{secrets.token_hex(8)}"

    @property
    def leases(self) -> Path:
        """Who reads; a gang makes it, and without it nothing is removed."""
        return self.directory / "leases"

    @property
    def gang(self) -> Path:
        """Who runs it now."""
        return self.directory / "gang"

    def key(self, wanted: CheckpointId) -> dict[str, str]:
        """What the manifest of a checkpoint says of it; its hashes are salted with this."""
        return {"run": self.run, "epoch": str(wanted.epoch), "step": str(wanted.step)}


def run_paths(shared: Path, run: str) -> RunPaths:
    """The places of a run below the shared directory.

    Raises:
        Refused: ``run`` cannot be a name.
    """
    return RunPaths(shared / "train" / tag(run), run.partition(ASIDE)[0])


def rank_file(rank: int) -> FileName:
    """The name of the file that a rank writes."""
    return FileName(f"rank{rank}.safetensors")


def epoch_of(name: str) -> int | None:
    """The epoch that a directory's name means, or None."""
    found = _EPOCH.fullmatch(name)
    return int(found[1]) if found else None  # guard: numbers in names have one spelling


def step_of(name: str) -> int | None:
    """The step that a directory's name means, or None."""
    found = _STEP.fullmatch(name)
    return int(found[1]) if found else None
