"""A gang that starts takes over what the last one left parked: not a step of it is lost, though all its processes are.

Parked state is in host memory before the slot is free, and on the shared directory some time later. If every process
of the gang dies in between, its region still holds the whole state. The first rank of the next gang finds it, has it
published where it lies as what it is, a checkpoint of the gang that parked it, and goes on from there in the usual
way.

Never used: what is half written or damaged; what is of a gang that lives, though it may stand still; what a later gang
or a person has overruled. A node that is gone took its memory along.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from ebbtide.snapshot.errors import RegionBusy, SnapshotError
from ebbtide.snapshot.regions.region_takeover import read_region
from ebbtide.storage.checkpoints.run_directory.lineage import EpochFound
from ebbtide.storage.checkpoints.run_directory.run_paths import RunPaths
from ebbtide.storage.checkpoints.run_directory.run_survey import look
from ebbtide.storage.errors import StorageError
from ebbtide_train.session.checkpoints.checkpoint_store import CheckpointStore
from ebbtide_train.session.errors import CheckpointFailed, CheckpointMismatch, CommitHopeless, ParkedStateUnusable
from ebbtide_train.session.parking.host_checkpoint import read_note, read_state
from ebbtide_train.session.parking.leftover_regions import Left, LeftoverRegions, Outcome, Taken, over, worth_having
from ebbtide_train.session.settings import SessionSettings
from ebbtide_train.session.step_log import last_nodes

ANSWER_S = 20.0  # a killed agent answers again after some 2 s, as the arbiter does; on a busy machine after 5
SETTLE_S = 2.0  # for old checkpoints to be removed; what is not, the next gang removes
_AGAIN_S = 1.0
_logger = logging.getLogger(__name__)


def take_over(settings: SessionSettings, left_behind: LeftoverRegions, tell: Callable[[str], None]) -> int:
    """Publish what the last gang left, if it is further than any checkpoint; for rank 0, before its gang begins.

    Args:
        settings: of this gang.
        left_behind: how nodes are reached.
        tell: is given why it cannot be done at the moment; it is tried again.

    Returns:
        The step that was published, or 0.

    Raises:
        CheckpointMismatch: there is such a state and it cannot be published now; nothing is lost yet.
    """
    deadline_s = time.monotonic() + settings.last_commit_s
    useless: list[Left] = []
    while True:
        left = [one for one in _look_everywhere(settings, left_behind) if one not in useless]
        found = worth_having(left, settings.job, _epochs(settings.run_dir))
        if found is None:
            return 0
        chosen, noted = found
        taken = left_behind.publish(chosen, settings.run_dir, keep=settings.keep_checkpoints)
        if taken.outcome is Outcome.PUBLISHED:
            _logger.warning("job %s: step %d was parked and not published; it is now", settings.job, noted.ref.step)
            return noted.ref.step
        if taken.outcome is Outcome.USELESS:
            _logger.warning("parked step %d of %s is not used: %s", noted.ref.step, settings.job, taken.why)
            useless.append(chosen)
            continue
        tell(taken.why)
        if time.monotonic() > deadline_s:
            raise CheckpointMismatch(
                f"this gang cannot begin: step {noted.ref.step} of the last one lies in the memory of node "
                f"{chosen.node} and cannot be published: {taken.why}"
            )
        time.sleep(_AGAIN_S)


def settle(settings: SessionSettings, left_behind: LeftoverRegions) -> None:
    """Free what earlier gangs have left on nodes; for rank 0, once it has begun and before the ranks borrow."""
    for node in left_behind.nodes(last_nodes(settings.run_dir, also=settings.node)):
        for _, lease_epoch in sorted(over(left_behind.look(node) or (), settings.job)):
            left_behind.settle(node, settings.job, lease_epoch)


def publish_region(path: Path, run_dir: Path, *, keep: int) -> Taken:
    """Make a checkpoint of the state in a region; on the node where it lies.

    Args:
        path: of the region, of which the borrower is dead.
        run_dir: of the job.
        keep: how many checkpoints stay.
    """
    try:
        region = read_region(path)
        noted = read_note(region.note)
        state = read_state(noted, region.bytes)
    except (RegionBusy, MemoryError) as error:  # its borrower lives after all
        return Taken(Outcome.LATER, str(error) or "there is no memory to read it into")
    except (SnapshotError, ParkedStateUnusable, OSError) as error:
        return Taken(Outcome.USELESS, str(error))
    store = CheckpointStore(run_dir, keep=keep)
    try:
        store.publish(state, noted.ref)
    except CommitHopeless as error:
        return Taken(Outcome.USELESS, str(error))
    except CheckpointFailed as error:
        return Taken(Outcome.LATER, str(error))
    finally:
        store.settle(SETTLE_S)
    return Taken(Outcome.PUBLISHED)


def _look_everywhere(settings: SessionSettings, left_behind: LeftoverRegions) -> list[Left]:
    """What there is on the nodes of the last gangs. A node that says nothing for long is taken to have nothing."""
    left: list[Left] = []
    silent = list(left_behind.nodes(last_nodes(settings.run_dir, also=settings.node)))
    deadline_s = time.monotonic() + ANSWER_S
    while silent:
        asked, silent = silent, []
        for node in asked:
            there = left_behind.look(node)
            if there is None:
                silent.append(node)
            else:
                left += there
        if silent and time.monotonic() > deadline_s:
            _logger.warning("nobody on %s says what the last gang has left there; it counts as lost", ", ".join(silent))
            break
        if silent:
            time.sleep(_AGAIN_S)
    return left


def _epochs(run_dir: Path) -> list[EpochFound]:
    try:
        return look(RunPaths(run_dir, run_dir.name))
    except StorageError as error:
        raise CheckpointMismatch(f"this gang cannot begin: {error}") from error
