"""Which epoch of a run the gang of a lease gets. Pure.

The epochs of a run only rise, for as long as its directory is there. Those of leases rise within one ledger, and a pool
that was made anew counts from 1 again. So a gang says with which lease of which ledger it began, and the next one of
the same ledger keeps the distance. A gang of another ledger is a younger one, and goes above all that there is, only if
its ledger is the one that the pool has now; else it is what an older pool has left, and is turned away.

A gang that says no ledger (in control runs) has epochs that are those of its leases.
"""

from collections.abc import Callable, Iterable

from ebbtide.storage.checkpoints.run_directory.lineage import Claim, EpochFound
from ebbtide.storage.errors import Superseded


def epoch_for(epochs: Iterable[EpochFound], claim: Claim, present_ledger: Callable[[], str]) -> int:
    """The epoch of a gang.

    Args:
        epochs: all that was found.
        claim: its lease.
        present_ledger: the identity of the ledger that the pool has now; empty if it has none. Asked for only where
            it decides; what it raises goes through.

    Raises:
        Superseded: the gang is of a pool that was replaced, or it cannot be told whether it is.
    """
    found = sorted(epochs, key=lambda one: one.epoch)
    if not found:
        return claim.lease
    highest, last = found[-1].epoch, last_claim(found)
    if last is None:
        if claim.lease >= highest:  # guard: where no ledger is known a lower lease is turned away
            return claim.lease
        raise Superseded(
            f"epoch {highest} has begun, and this gang has lease epoch {claim.lease}: either it was replaced, or the "
            "pool was made anew since, and nothing here says of which ledger that epoch was. If the pool was made "
            "anew, let no gang of the old one run, and say so by deciding from where the job goes on: "
            "ebbtide checkpoints use JOB --at e<epoch>/step-<n>"
        )
    epoch, known = last
    if known.ledger == claim.ledger:  # guard: leases of one ledger keep their distance
        return claim.lease + epoch - known.lease
    if (present := present_ledger()) == claim.ledger:
        return max(claim.lease, highest + 1)  # guard: a gang of a younger ledger goes above all that there is
    raise Superseded(  # guard: a gang of the ledger of an older pool is turned away
        f"epoch {epoch} has begun under ledger {known.ledger}, and this gang is of ledger {claim.ledger}, which is not "
        f"the one that the pool has now ({present or 'none is there'}): if its pool was replaced, stop it; else bring "
        "the pool's ledger back, and start the job again"
    )


def last_claim(epochs: Iterable[EpochFound]) -> tuple[int, Claim] | None:
    """The highest epoch of which the lease is known, with that."""
    for epoch in sorted(epochs, key=lambda one: one.epoch, reverse=True):
        if epoch.start is not None and epoch.start.claim is not None:
            return epoch.epoch, epoch.start.claim
    return None
