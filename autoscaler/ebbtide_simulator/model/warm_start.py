"""A pool that has lived before: what is there when a simulated run begins, instead of an empty one."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ebbtide.pool.ids import EndpointName, JobName
from ebbtide_autoscaler.core.plan.inputs import Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is there at second 0.

    Attributes:
        gangs: workers of each job that trains.
        trained_s: for how long each of them has, this time.
        replicas: that answer, by endpoint.
        starts_s: how long the last replica of each endpoint took from its grant until it answered.
        wakes_s: the same for the last one that woke.
        stays_s: where requests are played one by one, what gateways still know of one that was answered before: how
            long ago, and how long it was at its replica; by endpoint.
        memory: of the policy.
    """

    gangs: Mapping[JobName, int] = field(default_factory=dict)
    trained_s: Mapping[JobName, float] = field(default_factory=dict)
    replicas: Mapping[EndpointName, int] = field(default_factory=dict)
    starts_s: Mapping[EndpointName, float] = field(default_factory=dict)
    wakes_s: Mapping[EndpointName, float] = field(default_factory=dict)
    stays_s: Mapping[EndpointName, tuple[float, float]] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)


NOTHING = Standing()
