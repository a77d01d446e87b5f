"""What workloads and the arbiter tell each other.

Everything here is level-triggered: it is sent again and again, says the whole present state, and a message that is
lost, repeated or late does no harm. Answers carry the arbiter's wish together with the lease epoch it is based on;
a receiver refuses an epoch lower than one it has seen. Ray may hand messages of one sender over in another order than
they were sent, so each report carries ``seq``, which grows with every report of one process; a lower one is dropped.
Times called ``boot_s`` are CLOCK_BOOTTIME, others seconds since 1970.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class DesiredState(Enum):
    """What the arbiter wants of a gang."""

    RUN = "run"
    PARK = "park"
    STOP = "stop"  # publish a checkpoint and leave; the job goes on later
    CANCEL = "cancel"  # publish a checkpoint and leave for good


@dataclass(frozen=True, slots=True)
class SlotRef:
    """Where a slot is: enough for a process to find its GPU and its slot lock."""

    node: str
    index: int
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to use slots. For a job, slot ``i`` belongs to rank ``i``."""

    workload: str
    epoch: int
    slots: tuple[SlotRef, ...]


# ---- training ---------------------------------------------------------------------------------------------------


class RankPhase(Enum):
    """Where one rank stands."""

    STARTING = "starting"
    RUNNING = "running"
    PARKED = "parked"  # holds nothing on its GPU; its slot lock is released
    RESUMING = "resuming"
    STOPPED = "stopped"  # its checkpoint is committed; it is leaving
    DONE = "done"  # the train function returned


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank's state. Sent about ten times a second by rank 0, less often by the others."""

    job: str
    incarnation: str
    rank: int
    world: int
    node: str
    pid: int
    lease_epoch: int  # of the lease it runs under, or ran under when it parked
    directive: int  # the number of the last directive that it has carried out
    phase: RankPhase
    step: int  # finished steps, over the whole life of the job
    durable_step: int  # finished steps covered by the job's own published checkpoint
    step_s: float = 0.0  # duration of the last step
    lost_steps: int = 0  # steps that this gang had to run again after a crash
    park_refused: str = ""  # why it cannot park in place, or cannot leave, if it was asked and cannot
    seq: int = 0
    commit_error: str = ""  # why its last checkpoint could not be published; the job goes on, ``durable_step`` stays
    tracked_bytes: int = 0  # measured: of its tracked tensors, what leaves its slot when it parks; 0: not known yet
    at_session: bool = False  # while it starts: its train function has called prepare()
    stands_at: str = ""  # while it starts: where in the author's code, as file.py:12; "": nowhere there
    in_place_hindered: str = ""  # why it could not park in place when it last looked; "": nothing is known of
    interactive: bool = False  # a session: where it refuses to leave, it does not try again by itself


@dataclass(frozen=True, slots=True)
class JobDirective:
    """What the gang should do: ``number`` grows with each change, so that all ranks can agree on one."""

    number: int
    want: DesiredState
    lease: Lease | None  # with RUN: under which lease


class ControllerPhase(Enum):
    """What the job's Train controller has."""

    NO_GANG = "no_gang"  # no worker process is left; it asks for a grant
    GANG = "gang"


@dataclass(frozen=True, slots=True)
class ControllerReport:
    """Sent by the job's Train controller a few times a second while the job lives."""

    job: str
    incarnation: str
    phase: ControllerPhase
    lease_epoch: int  # of the lease that its present or last gang was started with; 0 before the first
    failures: int = 0  # of its gangs so far, preemptions not counted
    last_error: str = ""
    durable_step: int = 0  # of the job's own published checkpoint, where a controller knows it; 0: it does not say
    log_tail: str = ""  # the last lines that a failed gang printed, 2,000 characters at most
    seq: int = 0
    failed_epoch: int = 0  # as lease_epoch, of the last gang that failed; 0: none has


@dataclass(frozen=True, slots=True)
class ControllerOrders:
    """With NO_GANG: start a gang under ``lease`` if there is one, else wait, for the reason in ``why``."""

    lease: Lease | None
    why: str = ""
    cancelled: bool = False  # the job is to end
    kill_gang: bool = False  # a rank is lost or it outlived its grace: end what is left of the gang, then NO_GANG
    not_failed: bool = False  # with ``kill_gang``: it has not begun to train, and its slots are needed


# ---- serving ----------------------------------------------------------------------------------------------------


class ReplicaPhase(Enum):
    """Where a replica stands."""

    STARTING = "starting"
    READY = "ready"
    PARKING = "parking"  # giving up its GPUs; with an error if it cannot
    PARKED = "parked"  # holds nothing on any GPU; its slot locks are released
    WAKING = "waking"  # taking its GPUs back; with an error if it cannot
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class RankLoad:
    """How one rank of a replica got its weights."""

    rank: int
    way: str  # ebbtide_flat, ebbtide, or vllm for its own loader
    bytes_by_mode: Mapping[str, int] = field(default_factory=dict)  # of storage.report.Mode; none by vLLM's own
    seconds: float = 0.0
    why: tuple[str, ...] = ()  # it was not a better way


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """One replica's state, sent a few times a second."""

    seat: str
    replica: str  # changes when Serve starts the seat's replica anew
    node: str
    pid: int
    lease_epoch: int
    phase: ReplicaPhase
    url: str = ""  # where the gateway reaches it: a loopback or private address
    inflight: int = 0  # requests it has accepted and not finished
    running: int = 0  # sequences in the engine's batch
    waiting: int = 0  # sequences queued in the engine
    kv_usage: float = 0.0  # 0..1
    stages_s: Mapping[str, float] = field(default_factory=dict)  # start-up stages so far
    loads: tuple[RankLoad, ...] = ()  # of its ranks, once it is up
    error: str = ""
    permanent: bool = False  # `error` is about what its engine was told: another start of it ends alike, on any slot
    seq: int = 0
    park_bytes: int = 0  # host memory that it needs in order to park; 0: it cannot
    cannot_park: str = ""  # why not


@dataclass(frozen=True, slots=True)
class ReplicaOrders:
    """``draining``: accept nothing new, for the gateway sends nothing new.

    ``park``: give up all GPUs and wait. ``wake``: take them back under this lease, which names the same slots.
    """

    draining: bool = False
    park: bool = False
    wake: Lease | None = None


LATENCY_WINDOW_S = 10.0
"""How far back gateways tell of latencies: of first tokens, and of ends, within so long."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """One gateway's view of one endpoint. Totals are monotone since ``started_s`` of the gateway."""

    arrivals: int = 0
    completed: int = 0
    failed: int = 0
    held: int = 0  # requests waiting because no replica is ready, now
    held_bytes: int = 0
    inflight: int = 0  # requests at a replica, now
    oldest_held_s: float = 0.0
    last_arrival_s: float = 0.0  # seconds since 1970; 0 = never
    arriving_per_s: float = 0.0  # over the last 15 s
    stays: int = 0  # requests answered to their end in the last minute ...
    stayed_s: float = 0.0  # ... and for how long these were at replicas, in all
    recent_ttft_s: tuple[float, ...] = ()  # of streams, of `LATENCY_WINDOW_S`, without time held for lack of a replica
    recent_tpot_s: tuple[float, ...] = ()  # of streams that ended then, of each its mean
    recent_whole: tuple[tuple[float, int], ...] = ()  # answers in one piece: seconds without holding, tokens
    held_max_s: float = 0.0  # longest hold so far
    seat_inflight: Mapping[str, int] = field(default_factory=dict)  # per seat


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """Sent by each gateway about ten times a second."""

    gateway: str  # unique per process start
    node: str
    started_s: float
    url: str
    routes_seen: int  # version of the routing table that it obeys
    traffic: Mapping[str, Traffic]  # by endpoint
    keys_seen: int = -1  # version of the keys that it obeys; -1: it has not heard of any yet
    seq: int = 0
    leaving: bool = False  # it accepts nothing new, and ends what it has


@dataclass(frozen=True, slots=True)
class SeatRoute:
    """A seat that may be sent requests."""

    seat: str
    replica: str
    url: str


@dataclass(frozen=True, slots=True)
class Unavailable:
    """An endpoint has no replica, and its last starts have failed: requests are not held before the next try."""

    failure: str  # the id of the event that tells of the last failure; `ebbtide why` explains it
    again_s: float  # when the next start may be tried, seconds since 1970


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """Where requests go: per endpoint (the model's name in the API) the ready seats, or why not to wait for any."""

    version: int = 0
    endpoints: Mapping[str, tuple[SeatRoute, ...]] = field(default_factory=dict)
    unavailable: Mapping[str, Unavailable] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGrant:
    """One API key as gateways know it: by the SHA-256 of its secret. None = no limit, or all endpoints."""

    name: str
    sha256: str  # 64 hex digits
    scopes: tuple[str, ...]  # of "models", "generate", "admin"
    endpoints: tuple[str, ...] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_streams: int | None = None
    expires_s: float | None = None  # seconds since 1970
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class LimitShare:
    """One gateway's part of the limits of each key: its place, from 0 on, among so many gateways that share them."""

    place: int
    gateways: int

    def of(self, whole: int) -> int:
        """Its part of ``whole`` things that cannot be divided; the parts of all make up the whole."""
        return whole // self.gateways + (self.place < whole % self.gateways)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOrders:
    """The answer to a gateway's report. None in a field: keep what you have."""

    routes: RoutingTable | None = None
    keys_version: int = 0
    keys: tuple[KeyGrant, ...] | None = None  # all of them, when the gateway's ``keys_seen`` is another version
    share: LimitShare | None = None


# ---- nodes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Who holds a slot lock, as written by the holder itself."""

    workload: str
    epoch: int
    pid: int
    started: int  # the process's start time in clock ticks since boot (/proc/PID/stat field 22)
    rank: int = 0


@dataclass(frozen=True, slots=True)
class NodeCapabilities:
    """What a node has for state that leaves its slots; read anew every few seconds."""

    host_free_bytes: int | None = None  # that can be taken without anybody being killed for it; None: not known
    rates: tuple[tuple[str, float], ...] = ()  # measured bytes per second, by lane of the cost model
    helper: bool = False  # one has answered that its driver can take processes off their GPUs


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """What the arbiter says to a node agent, whose reports tell by it how old they are: clocks of two nodes cannot."""

    arbiter: str  # its name; each that starts has another one
    at_s: float  # by its own clock
    again: bool = False  # a slot has changed since the look that was reported: look anew at once


@dataclass(frozen=True, slots=True)
class AgentReport:
    """The node agent's proof of who sits on the node's GPUs; sent on every change and once a second."""

    node: str
    boot_id: str
    holders: Mapping[int, LockHolder | None]  # by GPU index; None: the lock is free
    sent_boot_s: float = 0.0
    uuids: Mapping[int, str] = field(default_factory=dict)  # by GPU index: NVML's, or made of machine and index
    means: NodeCapabilities = NodeCapabilities()
    after: AgentAnswer | None = None  # the last answer that had come in when it began to look
    code: str = ""  # which code it runs, see `code_digest`; "": it does not say


# ---- the pool ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PoolRuntime:
    """What a process that joins the pool needs to know of it."""

    pool: str
    shared_dir: str
    lock_dir: str  # node-local, the same path on every node
    arbiter_epoch: int
    ledger: str = ""  # the ledger's identity: lease epochs grow within it
    sessions: str = ""  # the section of the file in force, as JSON; "": nothing is said there
