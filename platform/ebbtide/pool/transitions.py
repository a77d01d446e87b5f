"""The three state machines of the pool, each as one table.

A table maps a state to the states that may follow it, and every edge says when it is taken; ``docs/concepts.md``
draws its diagrams from here. An edge that is missing raises :class:`IllegalTransition` and changes nothing.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from ebbtide.pool.errors import IllegalTransition


class SlotState(Enum):
    """Who may use a GPU, as far as the ledger knows."""

    __hash__ = object.__hash__  # members are singletons, and a decision looks up thousands of them

    UNFENCED = "unfenced"  # known, but Ray's scheduler could still place a stranger there
    FREE = "free"  # fenced, and proven empty
    OPENING = "opening"  # granted to a replica: the fence goes, Ray places the replica
    LEASED = "leased"  # one workload may use it
    RECLAIMING = "reclaiming"  # the occupant was told to go; its memory is not yet proven gone
    FOREIGN = "foreign"  # somebody who is not ours sits there
    LOST = "lost"  # its node is gone


class JobState(Enum):
    """Where a training job stands."""

    __hash__ = object.__hash__

    WAITING = "waiting"  # has no slots
    STARTING = "starting"  # slots granted, ranks on their way
    RUNNING = "running"  # all ranks are training
    PARKING = "parking"  # told to step aside in place, not all slots proven free yet
    PARKED = "parked"  # its processes live and hold nothing on any GPU
    RESUMING = "resuming"  # slots granted again, ranks on their way back
    STOPPING = "stopping"  # told to publish a checkpoint and leave
    RECOVERING = "recovering"  # lost a rank; its slots are being proven free
    ENDED = "ended"  # finished, failed, cancelled or lost


class SeatState(Enum):
    """Where the place of one replica stands."""

    __hash__ = object.__hash__

    COLD = "cold"  # no replica and no slots
    PLACING = "placing"  # slots granted, Ray has not placed the replica yet
    STARTING = "starting"  # the replica's process is on its slots and loads
    READY = "ready"  # answers requests
    DRAINING = "draining"  # gets no new requests, finishes those it has
    PARKING = "parking"  # told to take all that it has off its slots; that is not yet proven
    WARM = "warm"  # its process lives and holds nothing on any GPU
    WAKING = "waking"  # exactly its slots granted again, its state on the way back
    STOPPING = "stopping"  # told to exit; its memory is not yet proven gone


OCCUPIED = frozenset({SlotState.OPENING, SlotState.LEASED, SlotState.RECLAIMING})
"""Slots that have exactly one occupant on record; all others have none."""

JOB_HOLDS_SLOTS = frozenset({JobState.STARTING, JobState.RUNNING, JobState.RESUMING})
"""Jobs whose gang may touch its GPUs."""

JOB_CLAIMS_SLOTS = frozenset({JobState.PARKING, JobState.PARKED})
"""Jobs with a parked claim on their gang's slots: they can only resume on exactly these."""

JOB_IN_HOST_MEMORY = JOB_CLAIMS_SLOTS | {JobState.RESUMING}
"""Jobs whose state is in host memory that is lent to them, or goes there: until the last worker is back."""

SEAT_PARKS = frozenset({SeatState.PARKING, SeatState.WARM, SeatState.WAKING})
"""Seats with a replica that has given its GPU up, or is about to, or gets it back."""

SEAT_HOLDS_SLOTS = frozenset(SeatState) - {SeatState.COLD, SeatState.WARM}

SLOT_TABLE: Mapping[SlotState, Mapping[SlotState, str]] = {
    SlotState.UNFENCED: {
        SlotState.FREE: "our fence holds its logical GPU and nobody holds its slot lock",
        SlotState.FOREIGN: "the fence cannot be had: a stranger holds the logical GPU or the memory",
        SlotState.LOST: "its node died",
    },
    SlotState.FREE: {
        SlotState.LEASED: "granted to a rank of a job, or to a replica that may park; the fence stays",
        SlotState.OPENING: "granted to a replica; the fence will be removed",
        SlotState.UNFENCED: "the fence vanished",
        SlotState.LOST: "its node died",
    },
    SlotState.OPENING: {
        SlotState.LEASED: "the replica reported from this very slot",
        SlotState.RECLAIMING: "the placement was given up, or the seat was drained before it landed",
        SlotState.FOREIGN: "a stranger was placed there instead",
        SlotState.LOST: "its node died",
    },
    SlotState.LEASED: {
        SlotState.RECLAIMING: "the occupant was told to go, or died",
        SlotState.LOST: "its node died",
    },
    SlotState.RECLAIMING: {
        SlotState.FREE: "slot lock free, memory gone, fence held: proven empty",
        SlotState.FOREIGN: "its occupant is gone, but a stranger got the logical GPU before our fence",
        SlotState.LOST: "its node died",
    },
    SlotState.FOREIGN: {
        SlotState.UNFENCED: "the stranger left",
        SlotState.LOST: "its node died",
    },
    SlotState.LOST: {SlotState.UNFENCED: "the node came back"},
}

JOB_TABLE: Mapping[JobState, Mapping[JobState, str]] = {
    JobState.WAITING: {
        JobState.STARTING: "granted a gang of slots",
        JobState.ENDED: "cancelled, or its driver died, before it ran",
    },
    JobState.STARTING: {
        JobState.RUNNING: "every rank reported its first turn",
        JobState.STOPPING: "its slots are needed before it ran",
        JobState.RECOVERING: "a rank died while starting",
        JobState.ENDED: "finished, failed or cancelled",
    },
    JobState.RUNNING: {
        JobState.PARKING: "told to step aside in place",
        JobState.STOPPING: "told to step aside, to come back with another number of workers",
        JobState.RECOVERING: "a rank died",
        JobState.ENDED: "finished, failed or cancelled",
    },
    JobState.PARKING: {
        JobState.PARKED: "every rank parked and every slot proven free",
        JobState.STOPPING: "parking in place is not possible; stop instead",
        JobState.RECOVERING: "a rank died on the way",
        JobState.ENDED: "finished at this very safe point, failed or cancelled",
    },
    JobState.PARKED: {
        JobState.RESUMING: "exactly its slots were granted again",
        JobState.STOPPING: "to come back on other slots, or with fewer workers",
        JobState.RECOVERING: "a parked rank died",
        JobState.ENDED: "cancelled, or its driver died",
    },
    JobState.RESUMING: {
        JobState.RUNNING: "every rank trains again",
        JobState.STOPPING: "its slots are needed before it ran",
        JobState.RECOVERING: "a rank died on the way back",
        JobState.ENDED: "finished, failed or cancelled",
    },
    JobState.STOPPING: {
        JobState.WAITING: "its checkpoint is published, its ranks are gone, its slots proven free",
        JobState.RECOVERING: "a rank died before the checkpoint was published",
        JobState.ENDED: "finished, failed or cancelled",
    },
    JobState.RECOVERING: {
        JobState.WAITING: "no rank is left and its slots are proven free",
        JobState.ENDED: "out of retries, cancelled, or its driver died",
    },
    JobState.ENDED: {JobState.WAITING: "submitted again under the same name: it goes on from its own ref"},
}

SEAT_TABLE: Mapping[SeatState, Mapping[SeatState, str]] = {
    SeatState.COLD: {SeatState.PLACING: "granted slots"},
    SeatState.PLACING: {
        SeatState.STARTING: "its replica reported from exactly its slots",
        SeatState.STOPPING: "nobody landed in time, a stranger landed, or it is no longer wanted",
    },
    SeatState.STARTING: {
        SeatState.READY: "its engine answers",
        SeatState.STOPPING: "no longer wanted, or it failed to start",
    },
    SeatState.READY: {
        SeatState.STARTING: "its replica died and Serve starts another in the same place",
        SeatState.DRAINING: "no longer wanted",
        SeatState.STOPPING: "its node died, or its replica died again and again soon after it was ready",
    },
    SeatState.DRAINING: {
        SeatState.PARKING: "no request is left, and its endpoint keeps it warm",
        SeatState.STOPPING: "no request is left, the drain limit passed, or it died",
    },
    SeatState.PARKING: {
        SeatState.WARM: "it says that it holds nothing, and its slots are proven free",
        SeatState.STOPPING: "it cannot park, did not in time, died, or is not wanted any more",
    },
    SeatState.WARM: {
        SeatState.WAKING: "exactly its slots were granted again",
        SeatState.STOPPING: "not wanted any more, its memory is needed, or it died",
    },
    SeatState.WAKING: {
        SeatState.READY: "its engine answers again",
        SeatState.STOPPING: "it did not wake, or died, or is not wanted any more",
    },
    SeatState.STOPPING: {SeatState.COLD: "its process is gone and its slots are proven free"},
}

S = TypeVar("S", bound=Enum)


def advance(table: Mapping[S, Mapping[S, str]], who: str, now: S, then: S) -> S:
    """Take the edge ``now -> then`` of ``table`` on behalf of ``who``.

    Raises:
        IllegalTransition: the table has no such edge.
    """
    if then not in table[now]:  # guard: only edges of the tables are taken
        allowed = ", ".join(state.value for state in table[now]) or "nothing"
        raise IllegalTransition(f"{who} is {now.value}: it cannot become {then.value} (only {allowed})")
    return then
