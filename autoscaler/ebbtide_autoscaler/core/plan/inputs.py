"""What the policy sees and remembers: frozen values, so that a replay decides alike."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ebbtide.pool.ids import EndpointName, JobName
from ebbtide.pool.state import PoolState
from ebbtide.snapshot.tiers.step_aside import StepAside
from ebbtide_autoscaler.core.forecast.outlook import Outlook
from ebbtide_autoscaler.core.plan.fair_share import Team

NOTED_EVERY_S = 30.0
"""How often it is noted that a condition lasts: each note is a record of the ledger, for which the tick waits.

What asks how long ago it was counts in quarters of an hour (`surge_headroom.HALF_S`, `slo.SLOW_KEPT_S`), of which
this is a thirtieth: a fortieth of the room for surges may go too early.
"""


@dataclass(frozen=True, slots=True)
class EndpointSignals:
    """Traffic of one endpoint, summed over all gateways."""

    held: int = 0  # requests waiting because no replica is ready
    inflight: int = 0  # requests at a replica
    arrivals: int = 0  # since the gateways started; never falls while they live
    last_arrival_s: float = 0.0  # seconds since 1970; 0 = never
    arriving_per_s: float = 0.0  # over the last 15 s
    stay_s: float = 0.0  # mean time of a request at its replica, of the last minute; 0: none ended
    ttft_p90_s: float = 0.0  # of the last seconds; 0 = nothing was answered
    tpot_p90_s: float = 0.0  # of streams that ended in the last seconds; 0 = none did
    waiting: int = 0  # of those at a replica: queued in its engine
    kv_usage: float = 0.0  # of the replica whose KV cache is fullest, 0..1
    known: bool = False  # a gateway was heard recently: the other fields mean something
    unheard_s: float = 0.0  # for how long a gateway that may live has been silent; its part is in no field. 0: none is


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The world at one tick."""

    state: PoolState
    traffic: Mapping[EndpointName, EndpointSignals] = field(default_factory=dict)
    asides: Mapping[JobName, StepAside] = field(default_factory=dict)  # of a job that is not there nothing is known
    outlooks: Mapping[EndpointName, Outlook] = field(default_factory=dict)  # what is expected of its demand


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """The policy's knobs, from the pool's file; the reasons of the defaults stand there."""

    reserve: int = 0  # slots that jobs leave free
    restart_cost_s: float = 20.0  # assumed: of a restart, the reading of the checkpoint left out
    park_first: bool = False  # whatever earlier preemptions lasted
    grow_after_s: float = 10.0
    starve_after_s: float = 14_400.0  # then what becomes free is kept for a job, and those after it step aside
    up_after_s: float = 1.0
    teams: tuple[Team, ...] = ()  # none: first come, first served
    forecast_share: float = 0.98  # of the cases in which what is expected shall be enough; 0: nothing is expected


@dataclass(frozen=True, slots=True)
class EndpointMemory:
    """What an endpoint aims at, and since when it has been in a condition (None: it is not).

    The aim goes up at once or after a moment and comes down slowly, whether or not the replicas are there yet: demand
    that dips while slots are being reclaimed must not call the reclaim off.
    """

    aim: int = 0  # replicas

    busy_since_s: float | None = None  # wants at least one replica
    over_since_s: float | None = None  # demand is for more replicas than the aim
    slow_since_s: float | None = None  # TTFT or TPOT over its SLO
    under_since_s: float | None = None  # demand is for fewer replicas than the aim
    under_most: int = 0  # the most replicas that demand was for since then
    slow_replicas: int = 0  # with so many replicas the SLO was missed last; 0: not of late
    slow_per_s: float = 0.0  # requests that arrived per second then
    slow_at_s: float = 0.0  # when that was noted last
    strained_at_s: float = 0.0  # when it was noted last that its replicas have as much as they can do with; 0: never


@dataclass(frozen=True, slots=True)
class Away:
    """A preemption that is over: when it ended, and for how long the job had to do without its slots."""

    at_s: float
    lasted_s: float


@dataclass(frozen=True, slots=True)
class Memory:
    """What the policy carries from tick to tick. It changes as conditions begin or end, seldom while they last."""

    endpoints: Mapping[EndpointName, EndpointMemory] = field(default_factory=dict)
    grow_since_s: Mapping[JobName, float] = field(default_factory=dict)  # a larger gang has been possible since
    away: tuple[Away, ...] = ()  # the last ones, oldest first
