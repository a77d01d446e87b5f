"""All that can happen to a pool: moves (decided, each with its reason) and facts (observed).

They are the ledger's records: the state of the pool is their fold, nothing else. Every class has a ``kind``, by
which its JSON form is recognised.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ebbtide.pool.ids import EndpointName, JobName, NodeId, RecordId, SeatId, SlotId
from ebbtide.pool.spec import EndpointSpec, JobSpec


@dataclass(frozen=True, slots=True)
class Slot:
    """One GPU: where it is and what it is."""

    id: SlotId
    node: NodeId
    index: int
    uuid: str = ""


# ---- moves: what the policy decides ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GrantJob:
    """Start a waiting job on these slots: the number of slots is its number of workers."""

    job: JobName
    slots: tuple[SlotId, ...]
    reason: str
    kind: Literal["grant_job"] = "grant_job"


@dataclass(frozen=True, slots=True)
class ParkJob:
    """Ask a running job to step aside in place.

    ``tiers``: what it is to try, by name, this first; each falls back to the next. Empty: nobody has reckoned.
    """

    job: JobName
    reason: str
    tiers: tuple[str, ...] = ()
    kind: Literal["park_job"] = "park_job"


@dataclass(frozen=True, slots=True)
class ResumeJob:
    """Give a parked job exactly its slots back."""

    job: JobName
    reason: str
    kind: Literal["resume_job"] = "resume_job"


@dataclass(frozen=True, slots=True)
class StopJob:
    """Ask a job to publish a checkpoint and leave its slots, to be granted others later."""

    job: JobName
    reason: str
    # True: it counts as a preemption. False: it is to come back larger, its node drains, or it is parked and shall
    # leave memory.
    preempts: bool
    kind: Literal["stop_job"] = "stop_job"


@dataclass(frozen=True, slots=True)
class CancelJob:
    """End a job for good, at its next safe point."""

    job: JobName
    reason: str
    kind: Literal["cancel_job"] = "cancel_job"


@dataclass(frozen=True, slots=True)
class GrantSeat:
    """Start a replica at this seat on these slots."""

    seat: SeatId
    slots: tuple[SlotId, ...]
    reason: str
    kind: Literal["grant_seat"] = "grant_seat"


@dataclass(frozen=True, slots=True)
class DrainSeat:
    """Let the replica of this seat finish its requests and leave."""

    seat: SeatId
    reason: str
    kind: Literal["drain_seat"] = "drain_seat"


@dataclass(frozen=True, slots=True)
class ParkSeat:
    """Let the replica of this seat finish its requests, give up its GPUs, and live on without them."""

    seat: SeatId
    reason: str
    kind: Literal["park_seat"] = "park_seat"


@dataclass(frozen=True, slots=True)
class WakeSeat:
    """Give a warm replica exactly its slots back."""

    seat: SeatId
    reason: str
    kind: Literal["wake_seat"] = "wake_seat"


# ---- facts: what was observed ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeFound:
    """A node of the pool, with the host memory that parked workers may use there."""

    node: NodeId
    host_bytes: int
    kind: Literal["node_found"] = "node_found"


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node died; all its slots are lost."""

    node: NodeId
    kind: Literal["node_lost"] = "node_lost"


@dataclass(frozen=True, slots=True)
class NodeForgotten:
    """A node that was lost leaves the state, and its lost slots with it; under the same id it may join as a new one."""

    node: NodeId
    slots: tuple[SlotId, ...]  # all that it had, for whoever tells of them; they never come back
    kind: Literal["node_forgotten"] = "node_forgotten"


@dataclass(frozen=True, slots=True)
class NodeDraining:
    """The node is to be emptied, by a person or by the arbiter (see `drain`).

    Nothing is granted there, and what is there leaves in good order.
    """

    node: NodeId
    reason: str
    kind: Literal["node_draining"] = "node_draining"


@dataclass(frozen=True, slots=True)
class NodeUndrained:
    """The node may be used again."""

    node: NodeId
    kind: Literal["node_undrained"] = "node_undrained"


@dataclass(frozen=True, slots=True)
class PoolFrozen:
    """A person stopped all decisions; what is observed is still taken in."""

    reason: str
    kind: Literal["pool_frozen"] = "pool_frozen"


@dataclass(frozen=True, slots=True)
class PoolUnfrozen:
    """Decisions are made again."""

    kind: Literal["pool_unfrozen"] = "pool_unfrozen"


@dataclass(frozen=True, slots=True)
class SlotFound:
    """A GPU that the pool manages from now on; also one that came back with its node."""

    slot: Slot
    kind: Literal["slot_found"] = "slot_found"


@dataclass(frozen=True, slots=True)
class SlotFreed:
    """Fence held and slot lock free: the slot is proven empty."""

    slot: SlotId
    kind: Literal["slot_freed"] = "slot_freed"


@dataclass(frozen=True, slots=True)
class SlotUnfenced:
    """The fence of a free slot vanished, or a stranger left."""

    slot: SlotId
    kind: Literal["slot_unfenced"] = "slot_unfenced"


@dataclass(frozen=True, slots=True)
class SlotForeign:
    """A stranger sits on the slot."""

    slot: SlotId
    who: str
    kind: Literal["slot_foreign"] = "slot_foreign"


@dataclass(frozen=True, slots=True)
class EndpointDeclared:
    """``ebbtide up`` named this endpoint, or changed it."""

    spec: EndpointSpec
    kind: Literal["endpoint_declared"] = "endpoint_declared"


@dataclass(frozen=True, slots=True)
class EndpointRemoved:
    """``ebbtide up`` no longer names this endpoint; its seats must be cold."""

    endpoint: EndpointName
    kind: Literal["endpoint_removed"] = "endpoint_removed"


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A driver registered this job; ``incarnation`` tells this submission from earlier ones of the same name.

    ``restored``: the arbiter itself submitted it again, after its driver was lost.
    ``aside``: how it would step aside, as far as that could be told then; "": it could not.
    """

    spec: JobSpec
    incarnation: str
    restored: bool = False
    aside: str = ""
    fresh: bool = False  # it begins at step 0, whatever one of its name has done
    kind: Literal["job_submitted"] = "job_submitted"


@dataclass(frozen=True, slots=True)
class JobLoading:
    """Every rank of the gang is up, and its train function has not begun to train: it imports, or loads its data."""

    job: JobName
    kind: Literal["job_loading"] = "job_loading"


@dataclass(frozen=True, slots=True)
class JobRunning:
    """Every rank of the gang trains. ``lost_steps``: finished steps that it must run again, after a crash."""

    job: JobName
    step: int
    lost_steps: int = 0
    kind: Literal["job_running"] = "job_running"


@dataclass(frozen=True, slots=True)
class JobParked:
    """Every rank is parked and every slot of the gang is proven free."""

    job: JobName
    step: int  # finished steps
    kind: Literal["job_parked"] = "job_parked"


@dataclass(frozen=True, slots=True)
class JobDurable:
    """What the job holds up to and including ``step`` is on the shared filesystem."""

    job: JobName
    step: int
    kind: Literal["job_durable"] = "job_durable"


@dataclass(frozen=True, slots=True)
class JobStopped:
    """The gang has left with its checkpoint published; all its slots are proven free."""

    job: JobName
    step: int
    kind: Literal["job_stopped"] = "job_stopped"


@dataclass(frozen=True, slots=True)
class JobCrashed:
    """A rank died, or the gang outlived its grace: it will go on from its last durable step."""

    job: JobName
    why: str
    lost_steps: int  # finished steps that are not durable, as far as was reported; the next gang knows exactly
    kind: Literal["job_crashed"] = "job_crashed"


@dataclass(frozen=True, slots=True)
class JobRecovered:
    """No rank is left and the slots are proven free: the job may be granted again."""

    job: JobName
    kind: Literal["job_recovered"] = "job_recovered"


@dataclass(frozen=True, slots=True)
class JobHeld:
    """A person wants the job aside: it parks at its next safe point and gets no slots until :class:`JobReleased`.

    ``off_node``: nothing of it shall stay in memory; also of one that is held already.
    """

    job: JobName
    by: str
    reason: str
    off_node: bool = False
    kind: Literal["job_held"] = "job_held"


@dataclass(frozen=True, slots=True)
class JobReleased:
    """The job may have slots again."""

    job: JobName
    by: str
    kind: Literal["job_released"] = "job_released"


JobOutcome: TypeAlias = Literal["finished", "failed", "cancelled", "lost"]


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job is over."""

    job: JobName
    outcome: JobOutcome
    detail: str
    kind: Literal["job_ended"] = "job_ended"


@dataclass(frozen=True, slots=True)
class JobForgotten:
    """One of the oldest ended jobs leaves the state, so that this stays bounded; its name may be used as a new one."""

    job: JobName
    kind: Literal["job_forgotten"] = "job_forgotten"


@dataclass(frozen=True, slots=True)
class SeatLanded:
    """The seat's replica reported from exactly its slots."""

    seat: SeatId
    replica: str
    kind: Literal["seat_landed"] = "seat_landed"


@dataclass(frozen=True, slots=True)
class Loaded:
    """How some ranks of a replica got their weights.

    Attributes:
        way: the load format that filled the parameters in the end; ``vllm`` is its own loader.
        ranks: how many went this way.
        size_bytes: that they read, together; 0 where nobody counted them.
        seconds: of the slowest.
        why: one rank's reason why it was no better way; empty where there is none.
    """

    way: str
    ranks: int = 1
    size_bytes: int = 0
    seconds: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class SeatReady:
    """The seat's engine answers; ``stages_s`` says where its start-up time went, ``weights`` how they came."""

    seat: SeatId
    stages_s: tuple[tuple[str, float], ...]
    replica: str = ""  # its name; "": as it landed
    weights: tuple[Loaded, ...] = ()
    park_bytes: int = 0  # host memory that it needs in order to park; 0: it cannot, for the reason in cannot_park
    cannot_park: str = ""
    kind: Literal["seat_ready"] = "seat_ready"


@dataclass(frozen=True, slots=True)
class SeatDied:
    """The replica of a ready seat died; Serve starts another in its place."""

    seat: SeatId
    why: str
    kind: Literal["seat_died"] = "seat_died"


@dataclass(frozen=True, slots=True)
class SeatDrained:
    """No request is left at a seat that is to park, and no gateway sends any: its replica may give up its GPUs."""

    seat: SeatId
    kind: Literal["seat_drained"] = "seat_drained"


@dataclass(frozen=True, slots=True)
class SeatParked:
    """The seat's replica holds nothing on any GPU, and its slots are proven free."""

    seat: SeatId
    kind: Literal["seat_parked"] = "seat_parked"


@dataclass(frozen=True, slots=True)
class SeatStopped:
    """The seat's replica was told to exit: drained, given up, or dead for good.

    ``failed``: it counts as a failure, unless it drained or its node died. ``permanent``: another start ends alike.
    """

    seat: SeatId
    why: str
    failed: bool = True
    permanent: bool = False
    kind: Literal["seat_stopped"] = "seat_stopped"


@dataclass(frozen=True, slots=True)
class SeatGone:
    """The seat's process is gone and its slots are proven free."""

    seat: SeatId
    kind: Literal["seat_gone"] = "seat_gone"


Move: TypeAlias = GrantJob | ParkJob | ResumeJob | StopJob | CancelJob | GrantSeat | DrainSeat | ParkSeat | WakeSeat
Fact: TypeAlias = (
    NodeFound
    | NodeLost
    | NodeForgotten
    | NodeDraining
    | NodeUndrained
    | PoolFrozen
    | PoolUnfrozen
    | SlotFound
    | SlotFreed
    | SlotUnfenced
    | SlotForeign
    | EndpointDeclared
    | EndpointRemoved
    | JobSubmitted
    | JobLoading
    | JobRunning
    | JobParked
    | JobDurable
    | JobStopped
    | JobCrashed
    | JobRecovered
    | JobHeld
    | JobReleased
    | JobEnded
    | JobForgotten
    | SeatLanded
    | SeatReady
    | SeatDied
    | SeatDrained
    | SeatParked
    | SeatStopped
    | SeatGone
)
Body: TypeAlias = Move | Fact


@dataclass(frozen=True, slots=True)
class Event:
    """One record: what happened, when (seconds since 1970), and which record led to it."""

    id: RecordId
    at_s: float
    cause: RecordId | None
    body: Body


@dataclass(frozen=True, slots=True)
class Decision:
    """What the policy returns: moves to make now, and for whoever waits the reason why."""

    moves: tuple[Move, ...] = ()
    waits: Collection[tuple[str, str]] = ()  # (workload, why nothing is done for it)
