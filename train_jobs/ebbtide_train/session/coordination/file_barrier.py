"""A roll call of ranks that have no process group any more: each says that it has let go, and waits for all others.

Without it one rank could be frozen while another is still about to end its communicator with it; both would then stand
still for ever (decision 024). Each leaves an empty file in the folder where they meet, since there is nothing else that
they share by then.

Not guaranteed: speed on network filesystems that cache negative look-ups, as with `file_broadcast`.
"""

import time
from pathlib import Path

from ebbtide_train.session.coordination.file_broadcast import POLL_S
from ebbtide_train.session.errors import GangBroken

WAIT_S = 60.0  # ending a communicator takes less than a second; a rank that takes so long hangs in it


def file_barrier(folder: Path, name: str, *, rank: int, world: int, wait_s: float = WAIT_S) -> Path:
    """Say that this rank is there, and wait until all are.

    Args:
        folder: where they meet, which is there.
        name: of this roll call; no other in that folder has it.
        rank: this one.
        world: how many there are.
        wait_s: for all of them.

    Returns:
        This rank's file. It may go once this rank knows that all have passed.

    Raises:
        GangBroken: some were not there in time, or nobody can be told.
    """
    mine = folder / f"{name}-{rank}"
    try:
        mine.touch()
    except OSError as error:
        raise GangBroken(f"the other ranks cannot be told that rank {rank} has let go of its group: {error}") from error
    deadline_s = time.monotonic() + wait_s
    missing = [other for other in range(world) if other != rank]
    while missing := [other for other in missing if not (folder / f"{name}-{other}").exists()]:
        if time.monotonic() > deadline_s:
            raise GangBroken(
                f"ranks {missing} have not let go of the process group within {wait_s:g} s, and one that others wait "
                "for must not be frozen; what is parked is in host memory, from where the next gang goes on"
            )
        time.sleep(POLL_S)
    return mine
