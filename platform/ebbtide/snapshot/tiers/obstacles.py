"""What stands in the way of a means of taking state off a slot, and what would mend it. Pure."""

from dataclasses import dataclass
from enum import Enum


class Means(Enum):
    """What a tier is made of. A tier holds where all its means do."""

    EVICT = "evict"  # tracked storages can leave in place
    DRIVER = "driver"  # the CUDA driver can checkpoint the processes
    STORAGE = "storage"  # the shared directory can take the state
    RESTART = "restart"  # the workload can begin again from a portable checkpoint
    CRIU = "criu"  # the process tree can be written to an image


@dataclass(frozen=True, slots=True)
class Hindrance:
    """One thing that is so and in the way; both parts are for people, and never empty."""

    what: str
    remedy: str

    def __post_init__(self) -> None:
        assert self.what and self.remedy, f"{self.what or self.remedy}: a hindrance says what is so, and what mends it"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A hindrance and the means that it takes away."""

    hinders: frozenset[Means]
    hindrance: Hindrance
