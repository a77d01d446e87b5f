"""Who is compared: our policy, and what teams do instead. Each is a name, and how it plays a scene.

A contender that is not ours uses the same code with other settings wherever that says what it does: a static partition
is our policy with as many replicas as the partition holds, no more and no fewer.

Rivals play twice: with our starts and our ways to step aside, which shows what the policy does, and as ``NAME-own``
with cold starts and kills, which shows what the system does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

import numpy as np

from ebbtide.pool.ids import EndpointName
from ebbtide.pool.spec import EndpointSpec, WorkloadClass
from ebbtide_autoscaler.core.decide.idle_cache import IdleCache
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.plan.inputs import PolicyConfig, Snapshot
from ebbtide_simulator.model import engine
from ebbtide_simulator.model.engine import Times
from ebbtide_simulator.policies.bounded import Bounded
from ebbtide_simulator.policies.knobs import TUNED, USUAL, Knobs
from ebbtide_simulator.policies.rehearsal import Foreseeing, rehearse
from ebbtide_simulator.policies.rivals import Schedule, Servers, newest_first, whole_servers
from ebbtide_simulator.run.run import Contender, Outcome, Scene, Service, fixed_spec
from ebbtide_simulator.traffic.draws import CURVE_S, replicas_needed
from ebbtide_simulator.traffic.traces import Array

UP_S = 15.0  # how often a usual autoscaler looks
LYRA_RESERVE = 0.02  # of the pool: assumed (docs/origins.md)
OURS = "ebbtide"
ORACLE = "oracle"
STATIC = "static-p100"
LYRA = "lyra"
ALL_SERVING, ALL_TRAINING = "all-serving", "all-training"
CONTROLS = (ALL_SERVING, ALL_TRAINING)  # not rivals: what could be had of one at most, with no care for the other


@dataclass(frozen=True, slots=True)
class Play:
    """How a contender plays a scene.

    Attributes:
        outcome: what comes of it, where that is known already.
        others: what would come of its other plans, where it has tried some.
    """

    scene: Scene
    contender: Contender
    config: PolicyConfig
    outcome: Outcome | None = None
    others: Sequence[Outcome] = ()


Make = Callable[[Scene, PolicyConfig, Knobs], Play]


def _our_policy() -> Contender:
    """With a cache of its own: each play is a pool of its own."""
    return partial(decide, cache=IdleCache())


def _ours(scene: Scene, config: PolicyConfig, knobs: Knobs) -> Play:
    share = config.forecast_share if knobs.forecast_share is None else knobs.forecast_share
    reserve = config.reserve if knobs.reserve is None else knobs.reserve
    return Play(scene, _our_policy(), replace(config, forecast_share=share, reserve=reserve))


def _unforeseeing(scene: Scene, config: PolicyConfig, knobs: Knobs) -> Play:
    """Ours without its forecast: it goes by what is there."""
    return _ours(scene, config, replace(knobs, forecast_share=0.0))


def _static(sized: Callable[[Array], float]) -> Make:
    def play(scene: Scene, config: PolicyConfig, knobs: Knobs) -> Play:
        services = tuple(partition(service, knobs.headroom) for service in scene.services)
        return Play(replace(scene, services=services), _our_policy(), replace(config, forecast_share=0.0))

    def partition(one: Service, headroom: float) -> Service:
        needed = replicas_needed(one.load, one.engine, CURVE_S)
        replicas = max(1, int(np.ceil(sized(needed) * headroom)))
        return replace(one, spec=fixed_spec(one.spec, min(replicas, one.spec.replicas_max)))

    return play


def _all_serving(scene: Scene, config: PolicyConfig, knobs: Knobs) -> Play:
    """The whole pool serves, shared by what each endpoint needs at most: a control, nobody could serve better."""
    peaks = [float(replicas_needed(service.load, service.engine, CURVE_S).max()) for service in scene.services]
    slots = sum(peak * one.engine.slots for peak, one in zip(peaks, scene.services, strict=True))
    times = scene.slots / slots if slots else 0.0
    services = tuple(
        replace(one, spec=fixed_spec(one.spec, min(max(1, int(peak * times)), one.spec.replicas_max)))
        for peak, one in zip(peaks, scene.services, strict=True)
    )
    return Play(replace(scene, services=services), _our_policy(), replace(config, forecast_share=0.0))


def _all_training(scene: Scene, config: PolicyConfig, knobs: Knobs) -> Play:
    """One replica of each endpoint, all else trains: a control, nobody could train more."""
    return Play(_specs(scene, lambda spec: fixed_spec(spec, 1)), _our_policy(), replace(config, forecast_share=0.0))


def _usual(config: PolicyConfig) -> PolicyConfig:
    """An autoscaler that looks every 15 s, and expects nothing."""
    return replace(config, forecast_share=0.0, up_after_s=UP_S)


def _specs(scene: Scene, change: Callable[[EndpointSpec], EndpointSpec]) -> Scene:
    return replace(scene, services=tuple(replace(service, spec=change(service.spec)) for service in scene.services))


def _following(knobs: Knobs) -> Callable[[EndpointSpec], EndpointSpec]:
    """Replicas by requests at work, as usual autoscalers count them."""

    def change(spec: EndpointSpec) -> EndpointSpec:
        target = max(1, round(spec.target_requests / knobs.headroom))
        return replace(spec, target_requests=target, down_after_s=knobs.hold_s)

    return change


def _patient(scene: Scene, config: PolicyConfig, knobs: Knobs) -> Play:
    """Reactive, and nobody steps aside: replicas get what jobs leave, as jobs get what replicas leave."""
    stays = replace(_specs(scene, _following(knobs)), job_class=WorkloadClass.NON_PREEMPTIBLE)
    return Play(stays, _our_policy(), _usual(config))


def _killing(scene: Scene, config: PolicyConfig, knobs: Knobs) -> Play:
    """Reactive, and the job that began last is stopped."""
    return Play(_specs(scene, _following(knobs)), Bounded(_as_declared, newest_first), _usual(config))


def _lyra(scene: Scene, config: PolicyConfig, knobs: Knobs) -> Play:
    """Reactive, by whole servers, with some headroom that nobody trains on."""
    servers = Servers(
        {
            service.spec.name: (service.spec.target_requests, scene.slots_per_node // service.engine.slots)
            for service in scene.services
        },
        {service.spec.name: service.spec.replicas_max for service in scene.services},
        knobs.hold_s,
        knobs.headroom,
    )
    reserve = max(config.reserve, ceil(LYRA_RESERVE * scene.slots)) if knobs.reserve is None else knobs.reserve
    return Play(_specs(scene, _at_once), Bounded(servers, whole_servers), replace(_usual(config), reserve=reserve))


def _at_once(spec: EndpointSpec) -> EndpointSpec:
    return replace(spec, down_after_s=0.0, min_uptime_factor=0.0)


def _scheduled(scene: Scene, config: PolicyConfig, knobs: Knobs) -> Play:
    """By the days before; reactive where they were wrong."""
    per_replica = {service.spec.name: service.spec.target_requests for service in scene.services}
    most = {service.spec.name: _fixed_share(service, knobs.headroom) for service in scene.services}
    follows = _following(replace(knobs, headroom=1.0))  # it is by its schedule that it has room
    return Play(_specs(scene, follows), Bounded(Schedule(per_replica, most, knobs.headroom)), _usual(config))


def _fixed_share(one: Service, headroom: float) -> int:
    """What a static partition would hold: a schedule lends from it."""
    highest = float(replicas_needed(one.load, one.engine, CURVE_S).max())
    return min(max(1, int(np.ceil(highest * headroom))), one.spec.replicas_max)


def _as_declared(now_s: float, snapshot: Snapshot) -> Mapping[EndpointName, tuple[int, int]]:
    return {}


def _foreseeing(scene: Scene, config: PolicyConfig, knobs: Knobs) -> Play:
    """Perfect foresight of requests and of what moves take, with our starts and our ways to step aside."""
    at_once, unforeseeing = _specs(scene, _at_once), replace(config, forecast_share=0.0)
    found, *others = rehearse(at_once, unforeseeing)
    contender = Foreseeing(scene.begins_s, found.plans, patient=found.patient)
    if scene.singly:  # it rehearses with a fluid
        return Play(at_once, contender, unforeseeing)
    return Play(at_once, contender, unforeseeing, found.outcome, tuple(other.outcome for other in others))


def _own(make: Make) -> Make:
    """With what such a pool has: replicas start cold, jobs are killed and go on from their last checkpoint."""

    def play(scene: Scene, config: PolicyConfig, knobs: Knobs) -> Play:
        cold = _specs(scene, lambda spec: replace(spec, warm_replicas=0))
        return make(_killed(cold, engine.USUAL, knobs), config, knobs)

    return play


def _requeueing(make: Make) -> Make:
    """With our starts; jobs are killed all the same, since that is what the policy says."""

    def play(scene: Scene, config: PolicyConfig, knobs: Knobs) -> Play:
        return make(_killed(scene, replace(scene.times, kills=True), knobs), config, knobs)

    return play


def _killed(scene: Scene, times: Times, knobs: Knobs) -> Scene:
    """As often saved as was best for them, or as the file says where that is more often."""
    every_s = min(knobs.checkpoint_every_s, scene.times.saves.every_s)
    return replace(scene, times=replace(times, saves=replace(times.saves, every_s=every_s)), in_place=False)


TURNED: Mapping[str, Make] = {
    OURS: _ours,
    "ebbtide-reactive": _unforeseeing,
    ORACLE: _foreseeing,
    STATIC: _static(lambda needed: float(needed.max())),
    "static-p95": _static(lambda needed: float(np.percentile(needed, 95))),
    "static-mean-2sd": _static(lambda needed: float(needed.mean() + 2 * needed.std())),
    ALL_SERVING: _all_serving,
    ALL_TRAINING: _all_training,
    "no-preemption": _patient,
    "no-preemption-own": _own(_patient),
    "kill-and-requeue": _requeueing(_killing),
    "kill-and-requeue-own": _own(_killing),
    LYRA: _lyra,
    "lyra-own": _own(_lyra),
    "schedule": _scheduled,
    "schedule-own": _own(_scheduled),
}
"""With knobs to turn."""


def knobs_of(name: str) -> Knobs:
    """As a contender is compared."""
    return TUNED.get(name, USUAL)


def _as_compared(name: str) -> Callable[[Scene, PolicyConfig], Play]:
    return lambda scene, config: TURNED[name](scene, config, knobs_of(name))


CONTENDERS: Mapping[str, Callable[[Scene, PolicyConfig], Play]] = {name: _as_compared(name) for name in TURNED}
"""At their best: see `knobs`."""
