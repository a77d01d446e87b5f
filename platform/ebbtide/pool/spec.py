"""What the pool must know of a workload in order to place it; the user's whole configuration is richer."""

from dataclasses import dataclass
from enum import Enum

from ebbtide.pool.ids import EndpointName, JobName


class WorkloadClass(Enum):
    """How far the policy may push a workload aside."""

    NON_PREEMPTIBLE = "non-preemptible"  # never asked to step aside
    SEMI_PREEMPTIBLE = "semi-preemptible"  # may shrink to its minimum, never below
    PREEMPTIBLE = "preemptible"  # may be parked or stopped altogether


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A training job, as the policy sees it. Bytes are per worker; seconds are wall clock."""

    name: JobName
    owner: str
    team: str
    workload_class: WorkloadClass
    priority: int  # larger goes first
    workers_min: int
    workers_max: int
    grace_s: float  # from "step aside" to kill
    min_runtime_s: float  # after a start or resume, before it may be asked to step aside
    max_preemptions_per_h: int
    in_place: bool  # may park in place
    host_bytes_per_worker: int  # host memory that one parked worker needs
    max_failures: int = 3  # crashes in a row without progress that are tried again
    startup_timeout_s: float = 1800.0  # from its slots to its first step; one that takes longer hangs, and is ended

    def __post_init__(self) -> None:
        if not 1 <= self.workers_min <= self.workers_max:
            raise ValueError(f"job {self.name}: workers {self.workers_min}..{self.workers_max} is no range")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """Replicas that an endpoint is to have at set times of the week.

    Attributes:
        days: on which it begins, Monday is 0.
        from_minute: of the day, by the clocks of ``zone``.
        minutes: how long.
        replicas: at least.
        zone: an IANA time zone.
    """

    days: tuple[int, ...]
    from_minute: int
    minutes: int
    replicas: int
    zone: str = "UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec:
    """An endpoint, as the policy sees it."""

    name: EndpointName
    owner: str
    team: str
    workload_class: WorkloadClass
    priority: int
    replicas_min: int
    replicas_max: int
    slots_per_replica: int  # all on one node
    target_requests: int  # in flight per replica that one replica serves within its SLO
    ttft_slo_s: float
    tpot_slo_s: float
    idle_after_s: float  # without a request, before the last replica may go
    down_after_s: float  # of lower demand, before a replica goes
    min_uptime_factor: float  # a replica lives at least this many times its measured start-up
    drain_s: float  # at most, for running requests
    warm_replicas: int = 0  # most that stay parked when they are not wanted; 0: they end
    scheduled: tuple[Scheduled, ...] = ()
    revision: str = ""  # digest of what a replica is started with; "": not said, so never stale

    def __post_init__(self) -> None:
        if not 0 <= self.replicas_min <= self.replicas_max:  # 0..0: it retires, and gets no slot any more
            raise ValueError(f"endpoint {self.name}: replicas {self.replicas_min}..{self.replicas_max} is no range")
        if self.warm_replicas < 0:
            raise ValueError(f"endpoint {self.name}: {self.warm_replicas} warm replicas")
        if self.slots_per_replica < 1:
            raise ValueError(f"endpoint {self.name}: a replica needs at least one slot")
