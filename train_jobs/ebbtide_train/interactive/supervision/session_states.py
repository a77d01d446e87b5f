"""Where a session stands with its keeper: one table, and what the pool is told in each state."""

from collections.abc import Mapping
from enum import Enum

from ebbtide.client.messages import RankPhase


class KeeperState(Enum):
    """Of the process tree and its hold on the slot."""

    NEW = "new"  # nothing runs and nothing is held
    STARTING = "starting"  # the lock is held, the command is being started
    RUNNING = "running"
    LEAVING = "leaving"  # it is being taken off: image, or driver checkpoint
    ASIDE = "aside"  # nothing of it is on the slot any more; the lock is still held
    PARKED = "parked"  # and the lock is released
    RESUMING = "resuming"
    ENDING = "ending"  # its processes are being ended
    OVER = "over"  # nothing runs and nothing is held; an image may be there


TABLE: Mapping[KeeperState, Mapping[KeeperState, str]] = {
    KeeperState.NEW: {
        KeeperState.STARTING: "granted a slot, and there is no image of it",
        KeeperState.RESUMING: "granted a slot, and there is an image of it",
        KeeperState.OVER: "it has ended, or was lost, under an earlier keeper",
    },
    KeeperState.STARTING: {
        KeeperState.RUNNING: "its leader lives",
        KeeperState.OVER: "it could not be started",
    },
    KeeperState.RUNNING: {
        KeeperState.LEAVING: "told to park or to stop, or idle for too long",
        KeeperState.ENDING: "its command has ended, it was cancelled, or one of its guards was killed",
    },
    KeeperState.LEAVING: {
        KeeperState.RUNNING: "it cannot be taken off: it runs on as before",
        KeeperState.ASIDE: "its image is committed and its processes are gone; or the driver has taken it off the GPU",
        KeeperState.ENDING: "its processes are gone without an image, or its command ended meanwhile",
    },
    KeeperState.ASIDE: {
        KeeperState.PARKED: "the pool wants it parked: the lock is released",
        KeeperState.RESUMING: "touched, or told to run, before the pool took the slot",
        KeeperState.OVER: "it leaves: its image goes on elsewhere",
        KeeperState.ENDING: "cancelled",
    },
    KeeperState.PARKED: {
        KeeperState.RESUMING: "granted its slot again",
        KeeperState.OVER: "it leaves: its image goes on elsewhere",
        KeeperState.ENDING: "cancelled",
    },
    KeeperState.RESUMING: {
        KeeperState.RUNNING: "every process of it is back",
        KeeperState.OVER: "it cannot be revived here; its image stays",
    },
    KeeperState.ENDING: {KeeperState.OVER: "no process of it is left and the lock is released"},
    KeeperState.OVER: {},
}

PHASES: Mapping[KeeperState, RankPhase] = {
    KeeperState.NEW: RankPhase.STARTING,
    KeeperState.STARTING: RankPhase.STARTING,
    KeeperState.RUNNING: RankPhase.RUNNING,
    KeeperState.LEAVING: RankPhase.RUNNING,
    KeeperState.ASIDE: RankPhase.RUNNING,  # to the pool it has its slot until it has let it go
    KeeperState.PARKED: RankPhase.PARKED,
    KeeperState.RESUMING: RankPhase.RESUMING,
    KeeperState.ENDING: RankPhase.RUNNING,
    KeeperState.OVER: RankPhase.DONE,
}


def advance(name: str, now: KeeperState, then: KeeperState) -> KeeperState:
    """Take the edge ``now -> then``.

    Raises:
        AssertionError: the table has no such edge: a bug of ours.
    """
    assert then in TABLE[now], f"session {name} is {now.value}: it cannot become {then.value}"
    return then
