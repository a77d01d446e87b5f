"""The words of a single flight: states, what may happen, and what may be to do; `flight_machine` puts them together."""

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """Where a participant stands."""

    LOOKING = "looking for the result"
    READING = "reading who is at work"
    CLAIMING = "claiming the work"
    LOOKING_AGAIN = "looking for the result, having the claim"
    LEADING = "at work"
    WAITING = "waiting"
    SETTLING = "looking for a result that is said to be there"
    FINISHED = "the result is there"
    FAILED = "there will be no result"


ENDED = frozenset({State.FINISHED, State.FAILED})


class Standing(Enum):
    """How the newest attempt stands."""

    NONE = "nobody has begun"
    LIVING = "at work"
    DEAD = "died at work"
    DONE = "finished"
    LEFT = "left it"  # without any outcome
    REFUSED = "cannot be done"
    FAILED = "failed, another try may do better"


OVER = frozenset(Standing) - {Standing.LIVING, Standing.DEAD}


# --- what happened -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Looked:
    """For the result."""

    found: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest attempt.

    Attributes:
        number: which one; 0: there is none.
        failures: how many attempts in a row have failed, this one included.
        what: in words for people: who, how far, which error.
    """

    number: int
    standing: Standing
    failures: int = 0
    what: str = ""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The directory could not be read this time."""

    why: str


@dataclass(frozen=True, slots=True)
class Claimed:
    """The claim was had."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Somebody else was first."""


@dataclass(frozen=True, slots=True)
class NotClaimable:
    """The claim failed, whoever else may have it. ``hopeless``: it will not go better later."""

    why: str
    hopeless: bool


@dataclass(frozen=True, slots=True)
class Worked:
    """The work is done, and the result there for all."""


@dataclass(frozen=True, slots=True)
class Erred:
    """The work failed. ``final``: nobody is to try again on this one's behalf."""

    final: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """While at work, the claim was lost to somebody else."""


@dataclass(frozen=True, slots=True)
class Elapsed:
    """A pause is over."""


Event = Looked | Seen | Unreadable | Claimed | Taken | NotClaimable | Worked | Erred | Lost | Elapsed


# --- what to do ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """Look for the result."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read the newest attempt, which has at least this number."""

    at_least: int


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim this attempt."""

    number: int


@dataclass(frozen=True, slots=True)
class Work:
    """Do the work; so many attempts before it failed in a row."""

    failures: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait, and tell why."""

    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class Return:
    """Give back the result that was found or made; whoever has a claim lets go of it."""


@dataclass(frozen=True, slots=True)
class RaiseOwnError:
    """Raise the error of one's own work or claim."""


@dataclass(frozen=True, slots=True)
class RaiseLeadersError:
    """Raise what another's attempt met; ``Seen.what`` of it."""

    what: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It takes too long, or was tried too often."""

    why: str


Instruction = Look | Read | Claim | Work | Pause | Return | RaiseOwnError | RaiseLeadersError | GiveUp
