"""The state of the pool: frozen records, which only :mod:`ebbtide.pool.handlers.apply` makes anew.

Every change returns a new state and leaves the old one as it was, so that a snapshot costs nothing and an illegal
event changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ebbtide.pool.events import Slot
from ebbtide.pool.ids import EndpointName, Epoch, JobName, NodeId, RecordId, SeatId, SlotId
from ebbtide.pool.lookup import index
from ebbtide.pool.spec import EndpointSpec, JobSpec
from ebbtide.pool.transitions import JobState, SeatState, SlotState


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """A slot and its one occupant, a job or a seat, with the epoch of its lease."""

    slot: Slot
    state: SlotState
    occupant: JobName | SeatId | None = None
    epoch: Epoch = Epoch(0)
    since_s: float = 0.0
    foreign: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """A person's wish that a job stays aside: who, why, since when (seconds since 1970), and whether all in files."""

    by: str
    reason: str
    since_s: float
    off_node: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job: ``gang`` are the slots of its present lease, or, while it is parked, the slots that it claims."""

    spec: JobSpec
    incarnation: str
    state: JobState
    gang: tuple[SlotId, ...] = ()
    epoch: Epoch = Epoch(0)
    gang_epoch: Epoch = Epoch(0)  # of the lease that the present gang was started with; parking keeps the gang
    directive: int = 0  # number of the last thing that was asked of the gang
    loading: bool = False  # STARTING, and its ranks are up: its train function has not begun to train
    left_early: bool = False  # told to leave before it began to train: it is ended, and no step is lost by that
    cancelled: bool = False
    held: Hold | None = None  # by a person, also while it is still on its way aside; never of a cancelled job
    stood_aside: bool = False  # it left its slots because a person asked, and has not run since: none is owed to it
    since_s: float = 0.0  # in this state
    submitted_s: float = 0.0
    submission: int = 0  # how many were submitted before it: those of one moment have their turn by this, not by name
    registered_s: float = 0.0  # by its present driver; later than submitted_s when it was restored
    ran_since_s: float = 0.0  # last time it began to train
    asked_s: float = 0.0  # last time it was asked to step aside, or, parked, was released by a person
    stopped_to_grow: bool = False  # the last stop was no preemption: to grow, a drain, or parked and to leave memory
    preempted_s: tuple[float, ...] = ()  # times of preemptions within the last hour
    step: int = 0  # finished steps
    durable_step: int = 0
    parks: int = 0
    restarts: int = 0  # preemptions that ended in a restart
    crashes: int = 0
    crash_lost_steps: int = 0
    furthest_step: int = 0  # finished steps that any gang of it has reached
    started_from: int = 0  # furthest_step when its present gang was granted its slots
    failures_in_a_row: int = 0  # crashes since it last got further
    not_before_s: float = 0.0  # it is granted nothing before this
    last_error: str = ""  # why it crashed last
    crashed_s: float = 0.0  # when that was; later than ran_since_s: it has not trained since
    restores: int = 0  # in a row, by the arbiter itself, without a durable step in between
    outcome: str = ""
    tiers: tuple[str, ...] = ()  # of its last park: what it was to try, by name, in that order
    cause: RecordId | None = None  # the last move made on it


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatRecord:
    """The place of one replica of an endpoint."""

    id: SeatId
    endpoint: EndpointName
    state: SeatState = SeatState.COLD
    slots: tuple[SlotId, ...] = ()
    epoch: Epoch = Epoch(0)
    replica: str = ""
    since_s: float = 0.0
    granted_s: float = 0.0
    ready_since_s: float = 0.0
    asked_s: float = 0.0  # when it was told to drain or stop
    fenced: bool = False  # the fences of its slots stay, as under a job: its replica has none of Ray's GPUs
    parks: bool = False  # it was told to park, and has neither woken nor ended since
    park_bytes: int = 0  # host memory that its replica needs in order to park; 0: it cannot
    cannot_park: str = ""  # why not
    wakes: int = 0
    starts: int = 0  # replicas that landed here
    failures: int = 0  # in a row: starts that ended before READY, and deaths soon after it
    permanent: bool = False  # the last of these was for what its revision says: no other start of it can succeed
    revision: str = ""  # of its present or last replica
    last_error: str = ""  # why its last replica failed
    failure: RecordId | None = None  # the event that says so
    cause: RecordId | None = None


@dataclass(frozen=True, slots=True)
class EndpointRecord:
    """An endpoint, and how long its last replica took from grant to ready (0: not measured yet)."""

    spec: EndpointSpec
    start_s: float = 0.0
    wake_s: float = 0.0  # the same, for the last one that woke
    park_failed_s: float = 0.0  # when a replica failed to park or to wake last
    park_error: str = ""  # and why


@dataclass(frozen=True, slots=True)
class PoolState:
    """Everything the ledger says, at one moment."""

    nodes: Mapping[NodeId, int] = field(default_factory=dict)  # host bytes that parked workers may use
    slots: Mapping[SlotId, SlotRecord] = field(default_factory=dict)
    jobs: Mapping[JobName, JobRecord] = field(default_factory=dict)
    endpoints: Mapping[EndpointName, EndpointRecord] = field(default_factory=dict)
    seats: Mapping[SeatId, SeatRecord] = field(default_factory=dict)
    next_epoch: Epoch = Epoch(1)
    draining: Mapping[NodeId, str] = field(default_factory=dict)  # why, for nodes that are to be emptied
    drained_from: Mapping[NodeId, Epoch] = field(default_factory=dict)  # leases there are older than this epoch
    frozen: str = ""  # why a person stopped all decisions; "": they have not
    frozen_since_s: float = 0.0
    submissions: int = 0  # of jobs, ever

    def held_by(self, workload: JobName | SeatId, epoch: Epoch) -> tuple[SlotId, ...]:
        """The slots that ``workload`` occupies under the lease ``epoch``, proven empty ones left out."""
        return index.held_slots(self.slots, workload, epoch)

    def free_slots(self) -> tuple[SlotId, ...]:
        """Slots that may be granted, in order of node and index; none of a draining node."""
        return index.free(self.slots, self.draining)

    def free_on_nodes(self) -> Mapping[NodeId, tuple[SlotId, ...]]:
        """The same by node; nodes without any are left out."""
        return index.free_on_nodes(self.slots, self.draining)

    def claims_on(self, slot: SlotId) -> tuple[JobName, ...]:
        """Parked jobs that can only resume when they get ``slot`` back."""
        return index.claims(self.jobs).get(slot, ())

    def parked_bytes(self, node: NodeId) -> int:
        """Host memory lent on ``node`` to parked gangs."""
        return index.parked_bytes(self.jobs).get(node, 0)

    def warm_bytes(self, node: NodeId) -> int:
        """Host memory lent on ``node`` to warm replicas, those on their way there or back too."""
        return index.warm_bytes(self.seats).get(node, 0)

    def seats_of(self, endpoint: EndpointName) -> tuple[SeatRecord, ...]:
        """The endpoint's known seats, by number."""
        return index.seats(self.seats).get(endpoint, ())
