"""What the helper does to a workload, step by step, and where the workload stands: one table each. Pure.

::

    LIVE -> DUMPING -> DUMPED -> REVIVING -> LIVE      and back from DUMPING to LIVE, from REVIVING to DUMPED

Between two steps the helper may be killed. What decides then is never the last line of the journal but the one fact
that can be read back: whether the image stands, committed (a dump), or whether the tree runs (a revival).
"""

from collections.abc import Mapping
from enum import Enum


class Standing(Enum):
    """Where a workload is."""

    LIVE = "live"  # its processes are there (unless they ended by themselves)
    DUMPING = "dumping"  # they are being written to an image
    DUMPED = "dumped"  # the image holds it, and no process does
    REVIVING = "reviving"  # processes are being made from the image


class Op(Enum):
    """What can be done to a workload and is journaled."""

    REGISTER = "register"
    FORGET = "forget"
    DUMP = "dump"
    REVIVE = "revive"
    DISCARD = "discard"
    LOCK = "lock"
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    UNLOCK = "unlock"


class Step(Enum):
    """How far an operation has come. Each is durable in the journal before the next one is begun."""

    INTENT = "intent"  # all checks have passed; nothing was touched yet
    SPAWNED = "spawned"  # CRIU's process is there and waits for our word
    STOPPED = "stopped"  # dump: CRIU has ended well, the tree is stopped and lives
    SEALED = "sealed"  # dump: all files are hashed, synced, with manifest and COMMIT, in a folder of another name
    PLACED = "placed"  # dump: the image stands under its name: from here on it counts, and the tree does not
    KILLED = "killed"  # dump: the tree is gone
    RESTORED = "restored"  # revive: CRIU has ended well, the tree runs
    DONE = "done"
    UNDONE = "undone"  # it failed, and all is as before
    READ_BACK = "read back"  # a driver call whose outcome was unknown: the driver was asked where the process stands


ENDS = frozenset({Step.DONE, Step.UNDONE, Step.READ_BACK})
"""After these an operation is over."""

_SHORT: Mapping[Step, frozenset[Step]] = {Step.INTENT: frozenset({Step.DONE, Step.UNDONE, Step.READ_BACK})}

NEXT: Mapping[Op, Mapping[Step, frozenset[Step]]] = {
    Op.REGISTER: {},  # one line, DONE
    Op.FORGET: {},
    Op.DUMP: {
        Step.INTENT: frozenset({Step.SPAWNED, Step.UNDONE}),
        Step.SPAWNED: frozenset({Step.STOPPED, Step.UNDONE}),
        Step.STOPPED: frozenset({Step.SEALED, Step.UNDONE}),
        Step.SEALED: frozenset({Step.PLACED, Step.UNDONE}),
        Step.PLACED: frozenset({Step.KILLED}),  # never back: the image counts
        Step.KILLED: frozenset({Step.DONE}),
    },
    Op.REVIVE: {
        Step.INTENT: frozenset({Step.SPAWNED, Step.UNDONE}),
        Step.SPAWNED: frozenset({Step.RESTORED, Step.UNDONE}),
        Step.RESTORED: frozenset({Step.DONE}),
    },
    Op.DISCARD: {Step.INTENT: frozenset({Step.DONE, Step.UNDONE})},  # UNDONE: what is left is no image any more
    Op.LOCK: _SHORT,
    Op.CHECKPOINT: _SHORT,
    Op.RESTORE: _SHORT,
    Op.UNLOCK: _SHORT,
}

FIRST: Mapping[Op, Step] = {op: Step.INTENT if NEXT[op] else Step.DONE for op in Op}

STANDING: Mapping[tuple[Op, Step], Standing] = {
    (Op.REGISTER, Step.DONE): Standing.LIVE,
    (Op.DUMP, Step.INTENT): Standing.DUMPING,
    (Op.DUMP, Step.DONE): Standing.DUMPED,
    (Op.REVIVE, Step.INTENT): Standing.REVIVING,
    (Op.REVIVE, Step.DONE): Standing.LIVE,
}
"""Where a line of the journal puts the workload. UNDONE puts it back to where it was; others leave it where it is."""


def may_follow(op: Op, last: Step | None, step: Step) -> bool:
    """Whether ``step`` may come after ``last`` (None: it is the first)."""
    # guard: an operation begins with its first step
    return step is FIRST[op] if last is None else step in NEXT[op].get(last, frozenset())


def edges(op: Op) -> tuple[tuple[Step, Step], ...]:
    """Every edge of an operation's table, in order."""
    return tuple((last, step) for last, nexts in NEXT[op].items() for step in sorted(nexts, key=list(Step).index))
