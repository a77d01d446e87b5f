"""What became of a session so far, as written beside its images; and how the next supervisor begins. Pure.

The record is written *before* each thing that it speaks of (started, imaged), so whatever a supervisor was killed in
the middle of, the next one knows what may have happened, and looks which it was.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Self


class Life(Enum):
    """How far it came."""

    STARTING = "starting"  # about to be started: its leader says whether that came to pass
    RUNNING = "running"  # it lives, or it died without anybody having noted it
    IMAGING = "imaging"  # image ``images + 1`` is being made
    IMAGED = "imaged"  # nothing of it runs; image ``images`` is all of it
    ENDED = "ended"


class How(Enum):
    """What a new supervisor does first."""

    START = "start"
    REVIVE = "revive"
    TELL = "tell"  # it is over; say how


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """``images``: the number of the last committed image, which is how many there ever were; 0: none.

    ``gpu``: uuid of the GPU that it left last; "": none, or a logical one.
    """

    life: Life
    command: str  # the spec's digest
    images: int = 0
    code: int | None = None  # of a command that has ended
    outcome: str = ""
    gpu: str = ""

    def as_json(self) -> dict[str, Any]:
        """For the file."""
        return {**asdict(self), "life": self.life.value}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Of the file.

        Raises:
            ValueError: it is none of ours.
        """
        try:
            return cls(
                life=Life(found["life"]),
                command=str(found["command"]),
                images=int(found["images"]),
                code=None if found["code"] is None else int(found["code"]),
                outcome=str(found["outcome"]),
                gpu=str(found.get("gpu", "")),  # a supervisor of before wrote none
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"record.json lacks {error}; remove the folder to begin the session anew") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is there beside the record."""

    began: bool  # the leader has said that it lives
    code: int | None  # the command has ended with this
    newer: bool  # image ``images + 1`` is complete


@dataclass(frozen=True, slots=True)
class Beginning:
    """How to go on. ``image``: which one is revived. ``why``: for people, where something was lost."""

    how: How
    image: int = 0
    why: str = ""


def begin(record: Record | None, found: Found, *, command: str) -> Beginning:
    """How the next supervisor goes on. Nothing of the session runs any more when this is asked.

    Raises:
        ValueError: the folder has an image of another command.
    """
    if record is None or record.life is Life.ENDED:
        return Beginning(How.START)
    if record.command != command:
        if record.images == 0 and record.life is not Life.IMAGING:
            return Beginning(How.START)
        raise ValueError(
            "there is a parked image of another command under this name: cancel that session, or choose another name"
        )
    if record.life is Life.IMAGED:
        return Beginning(How.REVIVE, record.images)
    if found.code is not None:
        return Beginning(How.TELL)
    if record.life is Life.IMAGING and found.newer:
        return Beginning(How.REVIVE, record.images + 1)  # committed: its processes were gone, or have died since
    if record.life is Life.STARTING and not found.began:
        return Beginning(How.START)
    if record.images:
        return Beginning(How.REVIVE, record.images, "its processes were killed: it goes back to its last image")
    return Beginning(How.TELL, why="its processes were killed, and there is no image of it: start it again")
