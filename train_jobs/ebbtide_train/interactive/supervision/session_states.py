"""Where a session stands with its supervisor: one table, and what the pool is told in each state."""

from collections.abc import Mapping
from enum import Enum

from ebbtide.client.messages import RankPhase


class SessionState(Enum):
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


TABLE: Mapping[SessionState, Mapping[SessionState, str]] = {
    SessionState.NEW: {
        SessionState.STARTING: "granted a slot, and there is no image of it",
        SessionState.RESUMING: "granted a slot, and there is an image of it",
        SessionState.OVER: "it has ended, or was lost, under an earlier supervisor",
    },
    SessionState.STARTING: {
        SessionState.RUNNING: "its leader lives",
        SessionState.OVER: "it could not be started",
    },
    SessionState.RUNNING: {
        SessionState.LEAVING: "told to park or to stop, or idle for too long",
        SessionState.ENDING: "its command has ended, it was cancelled, or one of its guards was killed",
    },
    SessionState.LEAVING: {
        SessionState.RUNNING: "it cannot be taken off: it runs on as before",
        SessionState.ASIDE: "its image is committed and its processes are gone; or the driver has taken it off the GPU",
        SessionState.ENDING: "its processes are gone without an image, or its command ended meanwhile",
    },
    SessionState.ASIDE: {
        SessionState.PARKED: "the pool wants it parked: the lock is released",
        SessionState.RESUMING: "touched, or told to run, before the pool took the slot",
        SessionState.OVER: "it leaves: its image goes on elsewhere",
        SessionState.ENDING: "cancelled",
    },
    SessionState.PARKED: {
        SessionState.RESUMING: "granted its slot again",
        SessionState.OVER: "it leaves: its image goes on elsewhere",
        SessionState.ENDING: "cancelled",
    },
    SessionState.RESUMING: {
        SessionState.RUNNING: "every process of it is back",
        SessionState.OVER: "it cannot be revived here; its image stays",
    },
    SessionState.ENDING: {SessionState.OVER: "no process of it is left and the lock is released"},
    SessionState.OVER: {},
}

PHASES: Mapping[SessionState, RankPhase] = {
    SessionState.NEW: RankPhase.STARTING,
    SessionState.STARTING: RankPhase.STARTING,
    SessionState.RUNNING: RankPhase.RUNNING,
    SessionState.LEAVING: RankPhase.RUNNING,
    SessionState.ASIDE: RankPhase.RUNNING,  # to the pool it has its slot until it has let it go
    SessionState.PARKED: RankPhase.PARKED,
    SessionState.RESUMING: RankPhase.RESUMING,
    SessionState.ENDING: RankPhase.RUNNING,
    SessionState.OVER: RankPhase.DONE,
}


def advance(name: str, now: SessionState, then: SessionState) -> SessionState:
    """Take the edge ``now -> then``.

    Raises:
        AssertionError: the table has no such edge: a bug of ours.
    """
    assert then in TABLE[now], f"session {name} is {now.value}: it cannot become {then.value}"
    return then
