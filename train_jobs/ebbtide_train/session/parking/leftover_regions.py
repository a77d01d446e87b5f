"""What gangs of a job have left in the host memory of nodes, as the next gang sees it; and which of it is worth having.

Parked state outlives its processes: it lies in regions, each of which says whose it is and whether it is whole. The
decision here changes nothing; `takeover` acts on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from ebbtide.snapshot.regions.region_states import RegionState
from ebbtide.snapshot.regions.region_view import RegionView
from ebbtide.storage.checkpoints.run_directory.lineage import EpochFound, newest
from ebbtide_train.session.errors import ParkedStateUnusable
from ebbtide_train.session.parking.host_checkpoint import Noted, read_note


@dataclass(frozen=True, slots=True)
class Left:
    """One region, as it was when somebody on its node looked."""

    node: str
    region: RegionView


class Outcome(Enum):
    """What became of a region that was to be published."""

    PUBLISHED = "published"  # it is a checkpoint now, of the gang that parked it
    USELESS = "useless"  # damaged, or overtaken: nobody will ever go on from it
    LATER = "later"  # not now: the shared directory is full, or does not answer


@dataclass(frozen=True, slots=True)
class Taken:
    """The outcome, with the reason in words; no text where it was published."""

    outcome: Outcome
    why: str = ""


class LeftoverRegions(Protocol):
    """How a gang reaches the host memory of nodes. No call blocks for long, but for `publish`; none raises."""

    def nodes(self, known: Sequence[str]) -> Sequence[str]:
        """Where to look, given the nodes of the last gangs and this one's: those, or more."""

    def look(self, node: str) -> Sequence[Left] | None:
        """All regions of that node; none if the node is gone. None: nobody there can say now."""

    def publish(self, left: Left, run_dir: Path, *, keep: int) -> Taken:
        """`takeover.publish_region` on the region's own node."""

    def settle(self, node: str, job: str, lease_epoch: int) -> None:
        """What that gang has left there is not needed any more. If nobody hears, a later gang says it again."""


class NothingLeft:
    """For runs whose parked state dies with them."""

    def nodes(self, known: Sequence[str]) -> Sequence[str]:
        """None need be asked."""
        return ()

    def look(self, node: str) -> Sequence[Left] | None:
        """There is none."""
        return ()

    def publish(self, left: Left, run_dir: Path, *, keep: int) -> Taken:
        """There is none."""
        return Taken(Outcome.USELESS, "there is no host memory to take it from")

    def settle(self, node: str, job: str, lease_epoch: int) -> None:
        """There is nothing to free."""


def worth_having(left: Sequence[Left], job: str, found: Sequence[EpochFound]) -> tuple[Left, Noted] | None:
    """The region from which the next gang of ``job`` can go on, further than from any checkpoint; None: there is none.

    Args:
        left: of all nodes that the last gangs were on.
        job: whose.
        found: the epochs of its run.
    """
    candidates = [(one, noted) for one in left if (noted := _usable(one, job, found)) is not None]
    return max(candidates, key=lambda pair: pair[1].ref.step, default=None)


def over(left: Sequence[Left], job: str) -> set[tuple[str, int]]:
    """The node and lease epoch of each gang of ``job`` of which no process lives there any more."""
    mine = [one for one in left if one.region.key.job == job]
    alive = {(one.node, one.region.key.lease_epoch) for one in mine if one.region.borrower_lives}
    return {(one.node, one.region.key.lease_epoch) for one in mine} - alive


def _usable(left: Left, job: str, found: Sequence[EpochFound]) -> Noted | None:
    """What it holds, if that is a whole state of the last gang, dead now, with steps that no checkpoint has."""
    region = left.region
    if region.key.job != job or region.state is not RegionState.FULL or region.note is None:
        return None
    if region.borrower_lives:  # by its lock: also if it stands still
        return None
    try:
        noted = read_note(region.note)
    except ParkedStateUnusable:  # a rank that keeps only its own part
        return None
    owner = noted.owner
    if (owner.job, owner.lease_epoch) != (job, region.key.lease_epoch):
        return None
    last = max(found, key=lambda one: one.epoch, default=None)
    # A later gang has begun, or a person has decided from where to go on: then this is of the past.
    if last is None or last.epoch != noted.ref.epoch or not _began_with(last, owner.ledger, owner.lease_epoch):
        return None
    committed = newest(found)
    return noted if committed is None or noted.ref.step > committed.step else None


def _began_with(epoch: EpochFound, ledger: str, lease_epoch: int) -> bool:
    """Whether that epoch is of the gang of this lease, as far as anybody has said."""
    claim = None if epoch.start is None else epoch.start.claim
    return (not ledger) if claim is None else (claim.ledger, claim.lease) == (ledger, lease_epoch)
