"""Seeded bad luck for the closed loop: what goes wrong, when, and what must be true once it stops."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from ebbtide.pool.events import (
    EndpointDeclared,
    JobEnded,
    JobHeld,
    JobReleased,
    NodeDraining,
    NodeUndrained,
    PoolFrozen,
    PoolUnfrozen,
)
from ebbtide.pool.ids import SlotId
from ebbtide.pool.spec import EndpointSpec, WorkloadClass
from ebbtide.pool.state import JobRecord
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from tests.autoscaler.closed_loop import KNOBS, Loop, a_job, an_endpoint, moves

SETTLE_S = 240.0  # failed starts: limit of 40 s and backoff, twice; a driver's silence 10 s; starts and growth 30 s


def random_pool(seed: int) -> Loop:
    """A pool of one or two nodes with one or two endpoints."""
    random = Random(seed * 7919)
    nodes = random.choice([{"n0": 2}, {"n0": 3}, {"n0": 3}, {"n0": 4}, {"n0": 2, "n1": 2}])
    endpoints: tuple[EndpointSpec, ...] = (an_endpoint("chat", replicas_max=random.choice([1, 2, 3])),)
    if random.random() < 0.4:
        size = random.choice([1, 1, 2])
        endpoints += (an_endpoint("embed", priority=5, replicas_max=2 // size, slots_per_replica=size),)
    knobs = replace(KNOBS, policy=replace(KNOBS.policy, reserve=random.choice([0, 0, 0, 1])))
    return Loop(seed, nodes=nodes, endpoints=endpoints, knobs=knobs, host_bytes=random.choice([1000, 1000, 20, 0]))


class Chaos:
    """Runs a pool through traffic and faults."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.loop = random_pool(seed)
        self.warm = bool(seed % 2)  # every other pool keeps warm replicas
        if self.warm:
            self._warm_up()
        self.nodes = len(self.loop.cluster.nodes)
        self.jobs = 0
        self.lost = 0  # nodes
        self.faults = 0

    def _warm_up(self) -> None:
        """Engines that can park, more or less well, and endpoints that want them to."""
        loop, serve = self.loop, self.loop.cluster.serve
        serve.park_bytes = self.random.choice([5, 5, 15, 400])
        serve.park_fails = self.random.choice([0.0, 0.0, 0.2])
        for spec in list(loop.specs.values()):
            loop.specs[spec.name] = replace(spec, warm_replicas=self.random.choice([1, 1, 2]))
            loop.tell(EndpointDeclared(loop.specs[spec.name]))

    def run(self, fault_s: float = 90.0) -> Loop:
        """Faults, then quiet, then the checks of quiet."""
        loop, random = self.loop, self.random
        loop.run(3.0)
        self._submit()
        if random.random() < 0.4:
            self._submit()
        weather = loop.weather
        weather.lost, weather.late, weather.repeated = (random.choice([0.0, 0.05, 0.3]) for _ in range(3))
        if random.random() < 0.3:
            loop.restorable = {f"train{number}" for number in range(100)}
        end_s = loop.clock.now_s + fault_s
        while loop.clock.now_s < end_s:
            loop.run(random.expovariate(0.5))
            random.choice(self._faults())()
            self.faults += 1
        weather.lost = weather.late = weather.repeated = 0.0
        loop.cluster.machines.silent_agents.clear()
        loop.cluster.scheduler.strangers_leave()
        while loop.arbiter is None or len(loop.visible) != len(loop.cluster.nodes) or self.away():
            loop.run(1.0)
        loop.run(1.0)  # what was asked last has been taken in
        self._undrain()
        if random.random() < 0.8:
            self._release()
        if loop.state.frozen:
            loop.tell(PoolUnfrozen())
        for spec in loop.specs.values():
            loop.tell(EndpointDeclared(spec))
        loop.cluster.serve.park_fails = 0.0
        for driver in loop.drivers.values():
            driver.refuses_to_park = False
        served = random.random() < 0.5
        for gateway in loop.gateways:
            gateway.steady = True
            gateway.rates = {name: 0.5 if served else 0.0 for name in loop.specs}
        loop.run(SETTLE_S)
        self._settled()
        return loop

    def away(self) -> bool:
        """Whether a machine that died is not back yet."""
        return len(self.loop.cluster.nodes) < self.nodes

    def _faults(self) -> list[Callable[[], None]]:
        loop, random = self.loop, self.random
        return [
            self._traffic,
            self._traffic,
            self._traffic,
            self._kill_rank,
            self._kill_actor,
            self._kill_engine,
            self._silence,
            self._hang,
            self._refuse,
            lambda: loop.kill_arbiter(random.uniform(0.2, 6.0)),
            self._kill_driver,
            self._cancel,
            self._kill_gateway,
            lambda: loop.cluster.scheduler.stranger(random.uniform(1.0, 40.0)),
            self._lose_node,
            self._drain,
            self._undrain,
            self._freeze,
            self._change,
            self._hold,
            self._release,
        ]

    def _submit(self) -> None:
        loop, random = self.loop, self.random
        if loop.arbiter is None:
            return
        least = random.choice([1, 1, 2])
        name = f"train{self.jobs}"
        self.jobs += 1
        kinds = [WorkloadClass.PREEMPTIBLE] * 3 + [WorkloadClass.SEMI_PREEMPTIBLE]
        spec = a_job(
            name,
            workers_min=least,
            workers_max=random.randint(least, 4),
            in_place=random.random() < 0.8,
            workload_class=random.choice(kinds),
            priority=random.choice([0, 0, 1]),
        )
        loop.submit(spec, total=random.choice([10**9, 10**9, 300]))

    def _traffic(self) -> None:
        for gateway in self.loop.gateways:
            for name in self.loop.specs:
                gateway.rates[name] = self.random.choice([0.0, 0.0, 0.3, 1.0, 4.0])

    def _kill_rank(self) -> None:
        gangs = [d.gang for d in self.loop.drivers.values() if d.gang is not None]
        ranks = [r for gang in gangs for r in gang.ranks if r.process.alive]
        if ranks:
            self.loop.cluster.machines.kill(self.random.choice(ranks).process)

    def _kill_actor(self) -> None:
        actors = [a for found in self.loop.cluster.serve.actors.values() for a in found if a.alive]
        if actors:
            self.loop.cluster.serve.kill_actor(self.random.choice(actors))

    def _kill_engine(self) -> None:
        actors = [a for found in self.loop.cluster.serve.actors.values() for a in found if a.engine is not None]
        if actors:
            engine = self.random.choice(actors).engine
            assert engine is not None
            self.loop.cluster.machines.kill(engine)

    def _silence(self) -> None:
        cluster = self.loop.cluster
        if not cluster.nodes:
            return
        node = self.random.choice(cluster.nodes)
        cluster.machines.silent_agents.add(node)
        self.loop.clock.call_later(self.random.uniform(0.5, 15.0), lambda: cluster.machines.silent_agents.discard(node))

    def _hang(self) -> None:
        gangs = [d.gang for d in self.loop.drivers.values() if d.gang is not None]
        if gangs and self.random.random() < 0.3:
            self.random.choice(gangs).hangs = True

    def _refuse(self) -> None:
        for driver in self.loop.drivers.values():
            driver.refuses_to_park = self.random.random() < 0.2

    def _kill_driver(self) -> None:
        alive = [d for d in self.loop.drivers.values() if d.alive]
        if alive and self.random.random() < 0.4:
            self.random.choice(alive).kill()
            self._submit()

    def _cancel(self) -> None:
        alive = [d for d in self.loop.drivers.values() if d.alive]
        if alive and self.random.random() < 0.3:
            self.loop.cancel(self.random.choice(alive).job)
            self._submit()

    def _kill_gateway(self) -> None:
        loop = self.loop
        old = loop.gateways[0]
        old.alive = False
        new = type(old)(loop.cluster, loop.random, f"g{len(loop.events)}-{loop.clock.now_s:.0f}")
        new.rates = dict(old.rates)
        loop.gateways = [new]

    def _lose_node(self) -> None:
        """A machine dies; after a while it is back under another id."""
        loop, random = self.loop, self.random
        if random.random() < 0.5:
            return
        node = random.choice(loop.cluster.nodes) if loop.cluster.nodes else None
        if node is None or node not in loop.visible:
            return
        self.lost += 1
        gpus, name = loop.lose_node(node, seen_after_s=random.uniform(0.5, 8.0)), f"m{self.lost}"
        loop.clock.call_later(random.uniform(2.0, 30.0), lambda: loop.add_node(name, gpus))

    def _drain(self) -> None:
        nodes = list(self.loop.state.nodes)
        if nodes and self.random.random() < 0.5:
            self.loop.tell(NodeDraining(self.random.choice(nodes), "test"))

    def _undrain(self) -> None:
        for node in self.loop.state.draining:
            self.loop.tell(NodeUndrained(node))

    def _hold(self) -> None:
        jobs = list(self.loop.state.jobs)
        if jobs:
            self.loop.tell(JobHeld(self.random.choice(jobs), "test", "r"))

    def _release(self) -> None:
        for name, job in self.loop.state.jobs.items():
            if job.held is not None:
                self.loop.tell(JobReleased(name, "test"))

    def _freeze(self) -> None:
        if self.loop.state.frozen:
            self.loop.tell(PoolUnfrozen())
        elif self.random.random() < 0.3:
            self.loop.tell(PoolFrozen("test"))

    def _change(self) -> None:
        """`up` with a file that names another model."""
        spec = self.random.choice(list(self.loop.specs.values()))
        self.loop.specs[spec.name] = replace(spec, revision=f"r{self.random.randrange(10**6)}")
        if self.warm:
            warm = self.random.choice([0, 1, 1, 2])
            self.loop.specs[spec.name] = replace(self.loop.specs[spec.name], warm_replicas=warm)
        self.loop.tell(EndpointDeclared(self.loop.specs[spec.name]))

    # ---- what must be true in the end

    def _settled(self) -> None:
        loop, state = self.loop, self.loop.state
        served = any(rate for gateway in loop.gateways for rate in gateway.rates.values())
        for gateway in loop.gateways:
            for name, held in gateway.held.items():
                late = [loop.clock.now_s - since_s for since_s in held if loop.clock.now_s - since_s > 30.0]
                assert not late or self._starved(), loop.story(f"{name} holds requests for {late[:3]} s")
        for record in state.slots.values():
            if record.slot.node not in loop.cluster.nodes:
                assert record.state is SlotState.LOST, loop.story(f"not settled: {record}")
                continue
            assert record.state in (SlotState.FREE, SlotState.LEASED), loop.story(f"not settled: {record}")
        for seat in state.seats.values():
            allowed = (SeatState.COLD, SeatState.WARM, *((SeatState.READY,) if served else ()))
            assert seat.state in allowed, loop.story(f"not settled: {seat}")
            stale = seat.revision != loop.specs[seat.endpoint].revision
            assert seat.state is SeatState.COLD or not stale, loop.story(f"not rolled: {seat}")
        recent = {str(getattr(e.body, "job", "")) for e in loop.events if e.at_s > loop.clock.now_s - 20.0}
        hung = {name for name, d in loop.drivers.items() if d.gang is not None and d.gang.hangs}
        for name, driver in loop.drivers.items():
            job = next(j for n, j in state.jobs.items() if n == name)
            if not driver.alive:
                assert job.state is JobState.ENDED, loop.story(f"{name} is dead")
            else:
                still = job.state in (JobState.RUNNING, JobState.WAITING, JobState.PARKED) and not job.cancelled
                assert still or name in recent, loop.story(f"stuck: {name}")
        free = len(state.free_slots()) - loop.knobs.policy.reserve
        for job in state.jobs.values():
            if job.held is not None and job.state is not JobState.ENDED:
                aside = job.state in (JobState.WAITING, JobState.PARKED)
                assert aside or job.spec.name in hung, loop.story(f"{job.spec.name} is held and not aside")
            elif job.state in (JobState.WAITING, JobState.PARKED):
                claimed = sum(slot in self._claimed_from(job) for slot in state.free_slots())
                could = free - claimed
                assert could < job.spec.workers_min, loop.story(f"{job.spec.name} could run on {could} free slots")
                assert loop.arbiter is not None and job.spec.name in loop.arbiter.waits, loop.story("waits in silence")
            wanting = any(name in str(loop.arbiter.waits) for name in loop.specs) if loop.arbiter else False
            if job.state is JobState.RUNNING and job.spec.name not in hung and not wanting:
                assert free <= 0 or len(job.gang) == job.spec.workers_max, loop.story("slots lie idle")
        late_moves = [event for event in moves(loop.events) if event.at_s > loop.clock.now_s - 30.0]
        ended = any(isinstance(e.body, JobEnded) and e.at_s > loop.clock.now_s - 60.0 for e in loop.events)
        assert not late_moves or served or ended, loop.story("still moving")

    def _claimed_from(self, job: JobRecord) -> set[SlotId]:
        """Slots that other parked jobs wait for, and no job of less than their priority gets; they must be named."""
        assert self.loop.arbiter is not None
        others = [
            other
            for other in self.loop.state.jobs.values()
            if other.state is JobState.PARKED and other is not job and other.spec.priority >= job.spec.priority
        ]
        said = str(self.loop.arbiter.waits.get(job.spec.name))
        return {slot for other in others if other.spec.name in said for slot in other.gang}

    def _starved(self) -> bool:
        """Whether nothing may be done for held requests, and it is said: protected jobs or replicas have all slots."""
        assert self.loop.arbiter is not None
        here = [r for r in self.loop.state.slots.values() if r.state is not SlotState.LOST]
        if all(record.occupant in self.loop.state.seats for record in here):
            return True
        waits = " ".join(self.loop.arbiter.waits.values())
        return "may not step aside" in waits or "non-preemptible" in waits or "at its minimum" in waits
