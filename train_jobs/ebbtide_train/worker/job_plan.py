"""What a worker is told: by the driver, once for the job; and by its controller, once for each gang."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ebbtide.client.messages import Lease
from ebbtide.config.sections.job_section import JobSection
from ebbtide.system import modes
from ebbtide_train.interactive.spec import SessionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """The same for every worker of every gang of one submission."""

    section: JobSection
    incarnation: str
    shared_dir: str
    lock_dir: str  # node-local
    ledger: str = ""  # the identity of the ledger within which lease epochs grow
    train: bytes | None = None  # the train function, pickled; None: import ``section.entrypoint``
    again: bool = False  # the same code was submitted before, and its driver or controller died
    session: SessionPlan | None = None  # it does not train: its one rank keeps a process tree

    @property
    def run_dir(self) -> Path:
        """The job's own directory on the shared filesystem."""
        return Path(self.shared_dir) / "train" / self.section.name


@dataclass(frozen=True, slots=True)
class Place:
    """One worker's place in its gang."""

    rank: int
    lease: Lease


@dataclass(frozen=True, slots=True)
class Left:
    """What a rank returns to its controller when its gang left by order. (Train logs what is raised as an error.)"""

    cancelled: bool  # for good
    text: str


@dataclass(frozen=True, slots=True)
class Returned:
    """What a rank returns to its controller when its train function has returned."""

    value: object
    began: int  # finished steps with which its gang began
    finished: int
    total: int  # of how many


_place: list[Place] = []


def take_place(place: Place, environment: Mapping[str, str]) -> None:
    """Run in the worker before anything else of ours."""
    os.environ.update(environment)
    modes.took(modes.Place.VISIBLE, f"rank: {environment.get('CUDA_VISIBLE_DEVICES', 'all')}")
    _place[:] = [place]


def my_place() -> Place:
    """The place of this process."""
    assert _place, "the backend gives every worker its place before the train function runs"
    return _place[-1]
