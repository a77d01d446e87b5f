"""What of a process stays on its GPU after everything tracked has left: the CUDA context, and what libraries hold.

Only a driver can take that off, from outside (see ``ebbtide_train.worker.cuda_context``). While it is off, nothing in
this process may call CUDA: such a call waits until it is back.
"""

from typing import Protocol


class DeviceContext(Protocol):
    """One process's context. Used by one thread."""

    @property
    def occupies(self) -> bool:
        """Whether the slot's lock must be kept because of it, once all tracked state has left."""

    def rehearse(self) -> None:
        """Take it off and put it back once, while there is nothing in it yet; what was found, `refusal` tells.

        Raises:
            GangBroken: it cannot be put back, or nobody knows where it is.
        """

    def refusal(self) -> str:
        """Why it cannot be taken off; empty if it can."""

    def freeze(self) -> None:
        """Take it off; the process group is gone, so no other rank waits for this one.

        Raises:
            GangBroken: it stays, or nobody knows.
        """

    def thaw(self) -> None:
        """Put it back on the GPU where it was, whose lock is held again.

        Raises:
            GangBroken: it cannot be, or nobody knows.
        """

    def close(self) -> None:
        """The session is over. A context that is off stays off."""


class NothingStays:
    """Of a process that uses no GPU."""

    occupies = False

    def rehearse(self) -> None:
        """Nothing to try."""

    def refusal(self) -> str:
        """It can leave."""
        return ""

    def freeze(self) -> None:
        """Nothing to take off."""

    def thaw(self) -> None:
        """Nothing to put back."""

    def close(self) -> None:
        """Nothing to let go."""


class ContextStays(NothingStays):
    """Of a process on a GPU of which nobody can take it."""

    occupies = True

    def refusal(self) -> str:
        """It cannot leave."""
        return "on a GPU the CUDA context would stay on the slot, and no helper is at hand that could freeze it"
