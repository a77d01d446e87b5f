"""One contender's run over one seed's load and jobs, under a virtual clock.

Between two ticks requests are served, as a fluid or one by one; at a tick the contender sees what the arbiter would
see, and what it decides is carried out. The contender's code is the product's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, inf, log

import numpy as np

from ebbtide.pool.events import Decision
from ebbtide.pool.ids import EndpointName, JobName
from ebbtide.pool.rules.promises import check
from ebbtide.pool.spec import EndpointSpec, JobSpec, WorkloadClass
from ebbtide_autoscaler.core.demand.demand_watch import SILENT_S, DemandWatch
from ebbtide_autoscaler.core.forecast.demand_bins import Demand
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals, Memory, PolicyConfig, Snapshot
from ebbtide_simulator.model.engine import Engine, Times
from ebbtide_simulator.model.failures import Failure
from ebbtide_simulator.model.meter import Use
from ebbtide_simulator.model.pool import Pool
from ebbtide_simulator.model.tally import Tally
from ebbtide_simulator.model.training import Training
from ebbtide_simulator.model.warm_start import NOTHING, Standing
from ebbtide_simulator.traffic.arrivals import ARRIVALS_S, WINDOW_S
from ebbtide_simulator.traffic.draws import Job, Load
from ebbtide_simulator.traffic.queue import Queue, requests_at_full
from ebbtide_simulator.traffic.requests import RequestQueue
from ebbtide_simulator.traffic.singles import Drawn
from ebbtide_simulator.traffic.traces import Array

Contender = Callable[[float, Snapshot, Memory, PolicyConfig], tuple[Decision, Memory]]

BEGINS_S = 1_715_472_000.0  # Sunday 2024-05-12 00:00 UTC, when the Azure 2024 week begins; other traces: any Sunday
DOWN_AFTER_S = 120.0
WORKER_BYTES = 16 << 30  # an 8B's Adam state on 8 GPUs: 16 bytes a parameter
COURSE_S = 300  # between two points of a picture: a week has two thousand
CHECK_EVERY = 60  # ticks between two looks at all promises


@dataclass(frozen=True, slots=True)
class Service:
    """One endpoint, and its load.

    Attributes:
        drain_s: of its replicas, as measured; None: by the length of its answers.
        there: from when until when the pool has it, in seconds from the start and in order.
    """

    spec: EndpointSpec
    engine: Engine
    load: Load
    drain_s: float | None = None
    there: tuple[tuple[float, float], ...] = ((0.0, inf),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What all contenders are given alike."""

    nodes: int
    slots_per_node: int
    host_bytes: int
    services: tuple[Service, ...]
    jobs: Sequence[Job]
    times: Times
    seed: int
    tick_s: float
    warm_up_s: float
    horizon_s: float
    job_class: WorkloadClass = WorkloadClass.PREEMPTIBLE
    in_place: bool = True  # whether jobs can park
    failures: tuple[Failure, ...] = ()
    bytes_per_s: float | None = None  # of the shared filesystem; None: nobody ever waits for it
    begins_s: float = BEGINS_S  # since 1970
    course_s: int = COURSE_S  # between two points of a picture
    known: Mapping[EndpointName, Demand] = field(default_factory=dict)  # demand of the days before
    standing: Standing = NOTHING
    timed: bool = False  # say how long requests waited
    singly: bool = False  # play requests one by one
    jobs_until_s: float = inf  # of a trace's, those that come later are left out: its traffic has ended
    prompt: bool = False  # a decision follows on what has happened, as the arbiter's do; else at the next tick

    @property
    def slots(self) -> int:
        """Of the whole pool."""
        return self.nodes * self.slots_per_node


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came about, from the end of the warm-up on.

    Attributes:
        slot_s: slot-seconds by use.
        late: requests answered too late, by stretches of `WINDOW_S`, over all endpoints; of shape (stretches,).
        requests: all that arrived, likewise; a request counts where the tick before it lies.
        busy_s: slot-seconds of replicas' work.
        training: every job.
        refused: moves that could not be made.
        course: by use, how many slots had it at every ``course_s`` of the scene, from the start of the run on.
        decisions: taken, at ticks and between them.
        tally: see there.
        double_s: slot-seconds with two occupants, of the whole run.
        waits: of each endpoint, where it was asked for: how long requests of each second waited, and how many they are.
        times: where requests were played one by one: how many had so long to the first token (``ttft_s``) and between
            tokens (``tpot_s``), by the bins of `batching`, of the whole run.
        prefix_share: of all prompt tokens, those that a cache had.
    """

    slot_s: Mapping[Use, float]
    late: Array
    requests: Array
    busy_s: float
    training: Mapping[JobName, Training]
    refused: tuple[str, ...]
    course: Mapping[Use, tuple[int, ...]]
    decisions: int
    tally: Tally
    double_s: float
    waits: tuple[tuple[Array, Array], ...] = ()
    times: Mapping[str, Array] = field(default_factory=dict)
    prefix_share: float = 0.0


class Run:
    """State of a run; call `to` again and again, then `outcome`."""

    def __init__(self, scene: Scene, contender: Contender, config: PolicyConfig) -> None:
        """At second 0: all slots are free, no replica is there."""
        self._scene, self._contender, self._config = scene, contender, config
        self.pool = Pool(
            scene.nodes,
            scene.slots_per_node,
            scene.host_bytes,
            scene.times,
            scene.seed,
            now_s=scene.begins_s,
            from_s=scene.begins_s + scene.warm_up_s,
            park_bytes={service.spec.name: service.engine.park_bytes for service in scene.services},
            drain_s={service.spec.name: drains_s(service) for service in scene.services},
            bytes_per_s=scene.bytes_per_s,
        )
        for fails in scene.failures:
            if fails.at_s == 0.0:  # it was gone before: nothing stands there
                self.pool.lose_node(fails.node, fails.repair_s)
            else:
                loses = partial(self.pool.lose_node, fails.node, fails.repair_s)
                self.pool.agenda.at(scene.begins_s + fails.at_s, loses)
        self._queues: dict[EndpointName, Queue | RequestQueue] = {}
        for number, one in enumerate(scene.services):
            self._queues[one.spec.name] = _queue(scene, number)
            for from_s, until_s in one.there:
                self._have(one.spec, from_s, until_s)
        self._busy_s = 0.0
        self._memory = scene.standing.memory
        self._watch = DemandWatch(scene.known, silent_s=max(SILENT_S, 2 * scene.tick_s))
        self._course: dict[Use, list[int]] = {use: [] for use in Use}
        self._ticks = 0
        self._prompted = 0  # decisions between two ticks
        self._decided_s: float | None = None  # seconds from the start; only where decisions are prompt
        self._next_job = 0

    def _have(self, spec: EndpointSpec, from_s: float, until_s: float) -> None:
        """The pool has an endpoint from then until then."""
        begins_s, stands = self._scene.begins_s, self._scene.standing
        if from_s <= 0.0:
            starts_s, wakes_s = stands.starts_s.get(spec.name, 0.0), stands.wakes_s.get(spec.name, 0.0)
            self.pool.declare(spec, start_s=starts_s, wake_s=wakes_s)
            self.pool.stand(spec.name, stands.replicas.get(spec.name, 0))
        else:
            self.pool.agenda.at(begins_s + from_s, partial(self.pool.declare, spec))
        if until_s < self._scene.horizon_s:
            self.pool.agenda.at(begins_s + until_s, partial(self._retire, spec.name))

    def _retire(self, name: EndpointName) -> None:
        self.pool.retire(name)
        queue = self._queues[name]
        if isinstance(queue, Queue):  # requests one by one have a limit of their own
            queue.turn_away()

    def to(self, second: float) -> None:
        """Go on until then, seconds from the start of the run."""
        scene = self._scene
        while self._due_s() < min(second, scene.horizon_s):
            tick_s = scene.begins_s + self._due_s()
            self._submit(tick_s)
            if not self._happen(tick_s):
                self._tick()

    def _due_s(self) -> float:
        """When the next tick is, seconds from the start: after the last one, or after what came at once."""
        return self._ticks * self._scene.tick_s if self._decided_s is None else self._decided_s + self._scene.tick_s

    def _happen(self, until_s: float) -> bool:
        """Go on until then; True: up to what has happened before, and was followed at once by a decision."""
        while self.pool.agenda.next_s() <= until_s:
            at_s, changes = self.pool.agenda.next_s(), self.pool.changes
            self._advance(at_s)
            while self.pool.agenda.next_s() == at_s:
                self.pool.agenda.pop()()
            if self._scene.prompt and self.pool.changes > changes and at_s < until_s:
                before_s = self._decided_s or 0.0
                self._prompted += 1
                self._count(self._decide(), at_s - self._scene.begins_s - before_s)  # by so much the next tick is later
                return True
        self._advance(until_s)
        return False

    def outcome(self) -> Outcome:
        """What came about until the horizon."""
        self.to(self._scene.horizon_s)
        while self._happen(self._scene.begins_s + self._scene.horizon_s):
            pass
        self.pool.settle()
        check(self.pool.state)
        singles = [queue for queue in self._queues.values() if isinstance(queue, RequestQueue)]
        return Outcome(
            dict(self.pool.meter.slot_s),
            self._scored([queue.late for queue in self._queues.values()]),
            self._scored([queue.asked for queue in self._queues.values()]),
            self._busy_s,
            self.pool.training,
            tuple(self.pool.refused),
            {use: tuple(counts) for use, counts in self._course.items()},
            self._ticks + self._prompted,
            self.pool.tally,
            self.pool.occupants.double_s,
            tuple(self._waits()) if self._scene.timed else (),
            {
                name: np.sum([single.times()[name] for single in singles], axis=0)
                for name in ("ttft_s", "tpot_s")
                if singles
            },
            _prefix_share(singles),
        )

    def _scored(self, by_window: Sequence[Array]) -> Array:
        """Of all endpoints, from the end of the warm-up on."""
        found = np.zeros(int(self._scene.horizon_s) // WINDOW_S + 2)
        for one in by_window:
            count = min(len(one), len(found))
            found[:count] += one[:count]
        return found[-(-int(self._scene.warm_up_s) // WINDOW_S) :]  # a stretch begins there: see `_queue`

    def _waits(self) -> Iterator[tuple[Array, Array]]:
        warm = int(self._scene.warm_up_s)
        for queue in self._queues.values():
            waited_s = queue.waits_s()
            yield waited_s[warm:], queue.arrivals.load.requests[warm : len(waited_s)]

    def _submit(self, until_s: float) -> None:
        """Jobs come to the queue at their second; they are seen at the next tick."""
        scene, jobs = self._scene, self._scene.jobs
        while self._next_job < len(jobs) and scene.begins_s + jobs[self._next_job].submit_s <= until_s:
            number, one = self._next_job, jobs[self._next_job]
            spec = one.spec or job_spec(number, one)
            if scene.job_class is not WorkloadClass.PREEMPTIBLE:  # else as each says
                spec = replace(spec, workload_class=scene.job_class)
            spec = replace(spec, in_place=spec.in_place and scene.in_place)
            self.pool.agenda.at(scene.begins_s + one.submit_s, partial(self.pool.submit, spec, one.work_s))
            if one.submit_s == 0.0 and spec.name in scene.standing.gangs:
                there = scene.standing.gangs[spec.name], scene.standing.trained_s.get(spec.name, 0.0)
                self.pool.agenda.at(scene.begins_s, partial(self.pool.train, spec.name, *there))
            if one.until_s is not None:
                self.pool.agenda.at(scene.begins_s + one.until_s, partial(self.pool.end, spec.name))
            self._next_job += 1

    def _advance(self, now_s: float) -> None:
        pool = self.pool
        pool.meter.advance(now_s)
        second = int(now_s - self._scene.begins_s)
        for service in self._scene.services:
            queue = self._queues[service.spec.name]
            begin = queue.arrivals.second
            if second <= begin:
                continue
            served = queue.serve(second, pool.ready(service.spec.name), pool.died.pop(service.spec.name, 0))
            if begin >= self._scene.warm_up_s:
                self._busy_s += served.done_s * service.engine.slots
        pool.now_s = now_s
        while len(self._course[Use.FREE]) * self._scene.course_s <= second:
            for use, counts in self._course.items():
                counts.append(pool.meter.now[use])

    def _decide(self) -> Decision:
        """What is seen now, and what is done about it."""
        pool = self.pool
        traffic = {service.spec.name: self._signals(service) for service in self._scene.services}
        if self._config.forecast_share:  # else nobody asks what is expected
            there = {name for name, one in pool.state.endpoints.items() if one.spec.replicas_max}
            self._watch.hear(pool.now_s, {name: one for name, one in traffic.items() if name in there})
        snapshot = Snapshot(pool.state, traffic, outlooks=self._watch.outlooks)
        decision, self._memory = self._contender(pool.now_s, snapshot, self._memory, self._config)
        pool.carry_out(decision.moves)
        if self._scene.prompt:
            self._decided_s = pool.now_s - self._scene.begins_s
        return decision

    def _tick(self) -> None:
        self._count(self._decide(), self._scene.tick_s)
        self._ticks += 1
        if self._ticks % CHECK_EVERY == 0:
            check(self.pool.state)

    def _count(self, decision: Decision, span_s: float) -> None:
        """What is asked for, and what is idle, for so long, if it is scored."""
        pool = self.pool
        now_s = pool.now_s - self._scene.begins_s
        if now_s < self._scene.warm_up_s:
            return
        span_s = min(span_s, self._scene.horizon_s - now_s)
        needed = ready = 0
        for service in self._scene.services:
            arriving = self._queues[service.spec.name].arrivals.work_per_s(ARRIVALS_S)
            replicas = ceil(arriving / service.engine.full - 1e-9)
            needed += replicas * service.engine.slots
            ready += min(replicas, pool.ready(service.spec.name)) * service.engine.slots
        pool.tally.demand(needed, ready, span_s)
        pool.tally.idle(pool.meter.now[Use.FREE], self._config.reserve, decision.waits, span_s)

    def _signals(self, one: Service) -> EndpointSignals:
        """As gateways would tell them."""
        queue = self._queues[one.spec.name]
        arrivals, now = queue.arrivals, queue.at_work(self.pool.ready(one.spec.name))
        return EndpointSignals(
            held=now.held,
            inflight=now.inflight,
            arrivals=int(arrivals.count()),
            last_arrival_s=self._scene.begins_s + arrivals.last if arrivals.last else 0.0,
            arriving_per_s=arrivals.per_s(ARRIVALS_S),
            stay_s=now.stay_s,
            ttft_p90_s=now.ttft_p90_s,
            known=True,
        )


def _prefix_share(queues: Sequence[RequestQueue]) -> float:
    """Of all prompt tokens, those that a cache had."""
    hit, prompt = np.sum([(0.0, 0.0), *(queue.prefix_tokens() for queue in queues)], axis=0)
    return float(hit / prompt) if prompt else 0.0


def _queue(scene: Scene, number: int) -> Queue | RequestQueue:
    one, from_s = scene.services[number], int(scene.warm_up_s)
    if scene.singly:
        drawn, before = Drawn(one.load, one.engine, (scene.seed, number)), scene.standing.stays_s.get(one.spec.name)
        return RequestQueue(drawn, one.spec.ttft_slo_s, one.spec.tpot_slo_s, before, scored_from_s=from_s)
    return Queue(one.load, one.engine, one.spec.ttft_slo_s, timed=scene.timed, scored_from_s=from_s)


def drains_s(one: Service) -> float:
    """Until the last request of a replica is answered: a long answer, at the most what its endpoint allows.

    Where nobody measured it, that is. Lengths are exponential about their mean (see `draws.LENGTH_SPREAD`), and of a
    hundred requests the longest counts.
    """
    if one.drain_s is not None:
        return one.drain_s
    return min(one.spec.drain_s, log(100.0) * one.engine.stay_s(one.load.output_tokens))


def job_spec(number: int, one: Job) -> JobSpec:
    """A job of a trace as a pool's file would have it."""
    return JobSpec(
        name=JobName(f"job-{number:06}"),
        owner="trace",
        team="trace",
        workload_class=WorkloadClass.PREEMPTIBLE,
        priority=0,
        workers_min=one.workers_min,
        workers_max=one.workers_max,
        grace_s=120.0,
        min_runtime_s=0.0,
        max_preemptions_per_h=6,
        in_place=True,
        host_bytes_per_worker=WORKER_BYTES,
    )


def endpoint_spec(name: str, engine: Engine, load: Load, *, replicas_max: int, warm_replicas: int = 0) -> EndpointSpec:
    """An endpoint of a trace as a pool's file would have it: with the requests at work that make a replica full."""
    return EndpointSpec(
        name=EndpointName(name),
        owner="trace",
        team="trace",
        workload_class=WorkloadClass.NON_PREEMPTIBLE,
        priority=10,
        replicas_min=1,
        replicas_max=replicas_max,
        slots_per_replica=engine.slots,
        target_requests=requests_at_full(engine, load),
        ttft_slo_s=2.0,
        tpot_slo_s=0.1,
        idle_after_s=300.0,
        down_after_s=DOWN_AFTER_S,
        min_uptime_factor=2.0,
        drain_s=30.0,
        warm_replicas=warm_replicas,
    )


def fixed_spec(spec: EndpointSpec, replicas: int) -> EndpointSpec:
    """As a static partition has it: always so many replicas."""
    return replace(spec, replicas_min=replicas, replicas_max=replicas)
