"""What a supervisor needs of others: its node's helper, its slot's lock, the pool's ear, a GPU's meter."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ebbtide.client.messages import Lease
from ebbtide_train.interactive.process_tree.tree import Process


@dataclass(frozen=True, slots=True)
class InTheWay:
    """What would keep a session where it is, each with what would work; "": nothing that can be seen from outside.

    Attributes:
        park: of leaving its slot, in whichever way this node has.
        image: of becoming an image, which must be when its node goes.
    """

    park: str = ""
    image: str = ""


class Snapshots(Protocol):
    """Taking a tree off its slot and putting it back."""

    def register(self, leader: Process) -> None:
        """Make a tree known; again after each start.

        Raises:
            CannotPark: there is nobody to make images on this node: the session runs, and cannot be parked.
        """

    def image(self, leader: Process, image_dir: Path) -> None:
        """Put the whole tree into an image. When this returns the image is committed and no process of it is left.

        Raises:
            CannotPark: nothing has changed, or all is as before.
            OutcomeUnknown: look at the image and at the tree.
        """

    def revive(self, image_dir: Path) -> Process:
        """Make the processes of an image run again, with the pids they had; gives their leader.

        Those that were on a GPU are still off it: `return_to_gpu`.

        Raises:
            CannotRevive: nothing runs, the image is as it was.
            OutcomeUnknown: look for the tree.
        """

    def settled(self, image_dir: Path) -> None:
        """Wait until nobody is at work on an image any more, as far as this node can say: what is there, stays so."""

    def discard(self, image_dir: Path) -> None:
        """Remove an image that nobody needs any more; what cannot be removed now is left."""

    def forget(self) -> None:
        """The session is over; what cannot be forgotten now is left."""

    def leave_gpu(self, leader: Process) -> bool:
        """Take the tree off its GPU, its processes stay. False: nothing of it is on a GPU, as far as a driver says.

        Raises:
            CannotPark: tried, and all is as before.
            SessionCrashed: the driver has lost a process of it.
            OutcomeUnknown: nobody can say where it stands.
        """

    def return_to_gpu(self, leader: Process, gpu_map: Mapping[str, str]) -> None:
        """Back on the GPU that it came from, or by ``gpu_map`` (uuid then to uuid now) on another one of the same chip.

        Nothing happens if it is not off.

        Raises:
            CannotRevive: the driver refuses.
            OutcomeUnknown: nobody can say where it stands.
        """

    def in_the_way(self) -> InTheWay:
        """What would keep it from being parked now; touches nothing. For another thread than the others."""


class SharedLock(Protocol):
    """The part of the slot lock that a session uses."""

    def acquire(self, timeout_s: float) -> None:
        """Take it, or raise that another process holds it."""

    def release(self) -> None:
        """Let go, for all that share it; idempotent."""

    def answer_for(self, leader: tuple[int, int] | None, *, expected_s: float = 0.0) -> None:
        """Name the tree for which it is held: pid and start time of its leader, None where there is none any more."""

    def share(self) -> int:
        """A descriptor for another process, which then keeps the lock beyond this one's death. To be closed."""

    def hand_over(self) -> None:
        """Leave it to those that share it: it is held until the last of them lets go."""


class LockFor(Protocol):
    """The lock of the session's slot under a lease."""

    def __call__(self, lease: Lease, /) -> SharedLock: ...


class Wishes(Protocol):
    """How a session asks the pool for what a person could ask for. True: taken in."""

    def park(self, why: str) -> bool:
        """Park it, and do not resume it by yourself."""

    def resume(self, why: str) -> bool:
        """It may run again."""


class GpuMeter(Protocol):
    """What the driver says of a GPU."""

    def use(self) -> float | None:
        """Share of the last moments in which it did something; None: nobody can say."""
