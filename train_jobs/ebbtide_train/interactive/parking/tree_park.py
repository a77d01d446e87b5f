"""Taking a session off its slot and bringing it back: image or driver, and what is true when the answer was lost.

An image that stands is the session: its processes are stopped from before it was written until they are killed, so
whatever of them is still there is killed. Without one the processes are the session, and it goes on.

Whatever comes of a revival, the lock stays until nothing that may have come of it is left.
"""

from collections.abc import Mapping

from ebbtide_train.interactive.errors import CannotPark, CannotRevive, OutcomeUnknown, SessionCrashed
from ebbtide_train.interactive.parking.tree_occupancy import TreeOccupancy
from ebbtide_train.interactive.ports import Snapshots
from ebbtide_train.interactive.process_tree.tree import Process
from ebbtide_train.interactive.session_folder import SessionFolder


def image(snapshots: Snapshots, place: SessionFolder, occupation: TreeOccupancy, number: int) -> None:
    """Put the tree into image ``number``. When this returns, the image stands and nothing of the tree is left.

    Raises:
        CannotPark: it runs on as before.
        SessionCrashed: its processes are gone, and there is no image.
    """
    assert occupation.tree is not None, "only what runs can be put aside"
    leader = occupation.tree.leader
    try:
        snapshots.image(leader, place.image(number))
    except OutcomeUnknown as error:
        snapshots.settled(place.image(number))  # a helper that was killed is started again, and ends what it had begun
        if not place.is_complete(number):
            if leader.alive():
                raise CannotPark(f"{error}; no image stands, and it runs on") from error
            raise SessionCrashed(f"its processes are gone, and no image of them stands: {error}") from error
        occupation.end(0.0)
        return
    if not place.is_complete(number):
        raise SessionCrashed(f"the image {place.image(number)} was reported as made, and is not there")
    occupation.end(0.0)


def revive(
    snapshots: Snapshots, place: SessionFolder, occupation: TreeOccupancy, number: int, gpu_map: Mapping[str, str]
) -> Process:
    """Make image ``number`` run again under a watchdog, on the GPU that it left or that ``gpu_map`` names.

    Raises:
        CannotRevive: nothing of it runs, or its watchdog ends what still comes; the image is as it was.
        SessionCrashed: what runs of it cannot be ended: the lock stays.
    """
    if not place.is_complete(number):
        raise CannotRevive(f"{place.image(number)} is no whole image; the session cannot go on from it")
    occupation.expect()
    try:
        leader = snapshots.revive(place.image(number))
    except OutcomeUnknown as error:
        came = occupation.came()
        if came is None and not error.over:
            occupation.leave_to_watchdog()
            raise CannotRevive(f"{error}; its watchdog keeps the slot, and ends what still comes of it") from error
        if came is not None:
            occupation.revived(came)
        occupation.end(0.0)  # half of it may be there; the image still is all of it
        raise CannotRevive(f"{error}; what was there of it has been ended") from error
    except CannotRevive:
        occupation.left()
        raise
    occupation.revived(leader)
    try:
        snapshots.return_to_gpu(leader, gpu_map)
    except (CannotRevive, OutcomeUnknown) as error:
        occupation.end(0.0)  # it lives, off its GPU: the lock must not go before it is gone
        raise CannotRevive(f"{error}; what was brought back of it has been ended") from error
    return leader
