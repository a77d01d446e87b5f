"""Seeded bad luck for the closed loop: storms of faults and lulls between them, and what must be true once it stops.

Between two faults the arbiter ticks at least once, and every tick is checked: the promises in the ledger, in what is
physically there (`closed_loop`), and every decision by a referee who does not know how it was made (`referee`).
"""

from collections import Counter
from dataclasses import replace
from random import Random

from ebbtide.pool.events import EndpointDeclared, JobEnded, NodeUndrained, PoolUnfrozen
from ebbtide.pool.ids import JobName, SlotId
from ebbtide.pool.state import JobRecord
from ebbtide.pool.transitions import JOB_HOLDS_SLOTS, JobState, SeatState, SlotState
from tests.autoscaler.closed_loop import Loop, a_job, moves
from tests.autoscaler.faults import Faults
from tests.autoscaler.pools import luck_of, random_pool

FAULTS_S = 200.0
SETTLE_S = 300.0  # failed starts: limit of 40 s and backoff, twice; a driver's silence 10 s; starts and growth 30 s
SETTLED_AFTER_S = 100.0  # at the earliest: then it is looked at every 20 s, and by every eighth seed at the end only
QUIET_TICK_S = 0.4  # between two ticks then: nothing strikes, and half as many see the same
STORM_S, LULL_S = (4.0, 24.0), (4.0, 24.0)  # how long each lasts
BEAT_S = 0.4  # of gateways: as often as makes no difference to what is decided


EXCUSES = (
    "may not step aside",
    "non-preemptible",
    "at its minimum",
    "minimum runtime",
    "within the hour, its bound",
    "may never be preempted",
    "its start failed",
)


class Chaos:
    """Runs a pool through traffic and faults."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, Random(seed)
        self.loop = random_pool(seed)
        self.warm = bool(seed % 2)  # every other pool keeps warm replicas
        if self.warm:
            self._warm_up()
        self.luck = luck_of(seed)
        self.faults = Faults(self.loop, self.random, warm=self.warm, luck=self.luck)
        self.struck: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Faults so far, those of single messages left out."""
        return self.struck.total()

    def _warm_up(self) -> None:
        """Engines that can park, more or less well, and endpoints that want them to."""
        loop, serve = self.loop, self.loop.cluster.serve
        serve.park_bytes = self.random.choice([5, 5, 15, 400])
        serve.park_fails = self.random.choice([0.0, 0.0, 0.2])
        for spec in list(loop.specs.values()):
            loop.specs[spec.name] = replace(spec, warm_replicas=self.random.choice([1, 1, 2]))
            loop.tell(EndpointDeclared(loop.specs[spec.name]))

    def run(self, fault_s: float = FAULTS_S) -> Loop:
        """Faults, then quiet, then the checks of quiet."""
        try:
            return self._run(fault_s)
        finally:
            self.loop.close()

    def _run(self, fault_s: float) -> Loop:
        loop, random = self.loop, self.random
        loop.gateways[0].beat_s = BEAT_S
        loop.run(3.0)
        for _ in range(random.choice([1, 2, 2, 3])):
            self.faults.submit()
        self.faults.weather()
        if random.random() < 0.3:
            loop.restorable = {f"train{number}" for number in range(100)}
        self._strike_until(loop.clock.now_s + fault_s)
        self._calm()
        served = random.random() < 0.5
        for gateway in loop.gateways:
            gateway.steady = True
            gateway.rates = {name: 0.5 if served else 0.0 for name in loop.specs}
        loop.run(SETTLED_AFTER_S, QUIET_TICK_S)
        end_s = loop.clock.now_s + SETTLE_S - SETTLED_AFTER_S
        while loop.clock.now_s < end_s and (self.seed % 8 == 0 or not self._is_settled()):
            loop.run(20.0, QUIET_TICK_S)
        # What is scheduled begins and ends at any time, and a replica is just leaving then.
        if any(spec.scheduled for spec in loop.specs.values()) and not self._is_settled():
            loop.run(20.0, QUIET_TICK_S)
        self._settled()
        if loop.ledger is not None:
            anew = loop.ledger.read_anew()
            assert (anew.state, anew.memory) == (loop.state, loop.arbiter and loop.arbiter.world.memory)
        return loop

    def _strike_until(self, end_s: float) -> None:
        """Storms and lulls in turn."""
        loop, random = self.loop, self.random
        storm, until_s = False, 0.0
        while loop.clock.now_s < end_s:
            if loop.clock.now_s >= until_s:
                storm = not storm
                until_s = loop.clock.now_s + random.uniform(*(STORM_S if storm else LULL_S))
            loop.run(random.expovariate(1 / self.luck.gap_s[0 if storm else 1]))
            self.struck[self.faults.strike()] += 1
            if len([d for d in loop.drivers.values() if d.alive]) < self.luck.jobs[0]:
                self.faults.submit()

    def _calm(self) -> None:
        """Everything that was not broken for good is well again."""
        loop, random = self.loop, self.random
        self.faults.end()
        loop.run(1.0)
        while loop.arbiter is None or loop.link.arbiter is None or self.away():
            loop.run(1.0)
        loop.run(3.0)  # what was asked last has been taken in
        for node in loop.state.draining:
            loop.tell(NodeUndrained(node))
        if random.random() < 0.8:
            self.faults.release()
        while loop.state.frozen:
            loop.tell(PoolUnfrozen())
            loop.run(1.0)
        for spec in loop.specs.values():
            loop.tell(EndpointDeclared(spec))
        if not loop.drivers:
            loop.submit(a_job("last"))

    def away(self) -> bool:
        """Whether a machine that died is not back yet, or not gone from sight."""
        return self.faults.returning > 0 or len(self.loop.visible) != len(self.loop.cluster.nodes)

    # ---- what must be true in the end

    def _is_settled(self) -> bool:
        try:
            self._settled()
        except AssertionError:
            return False
        return True

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
            wanted = served or loop.specs[seat.endpoint].replicas_min or loop.specs[seat.endpoint].scheduled
            allowed = (SeatState.COLD, SeatState.WARM, *((SeatState.READY,) if wanted else ()))
            assert seat.state in allowed, loop.story(f"not settled: {seat}")
            stale = seat.revision != loop.specs[seat.endpoint].revision
            assert seat.state is SeatState.COLD or not stale, loop.story(f"not rolled: {seat}")
        hung = {name for name, d in loop.drivers.items() if d.gang is not None and d.gang.hangs}
        self._drivers_settled()
        free = len(state.free_slots()) - loop.knobs.policy.reserve
        scheduled = any(spec.scheduled for spec in loop.specs.values())  # some of it may just have ended
        for job in state.jobs.values():
            if job.held is not None and job.state is not JobState.ENDED:
                aside = job.state in (JobState.WAITING, JobState.PARKED)
                assert aside or job.spec.name in hung, loop.story(f"{job.spec.name} is held and not aside")
            elif job.state in (JobState.WAITING, JobState.PARKED):
                assert loop.arbiter is not None and job.spec.name in loop.arbiter.waits, loop.story("waits in silence")
                if job.not_before_s > loop.now_s:
                    continue
                if "they go first" in loop.arbiter.waits[job.spec.name] and self._starved():
                    continue  # what is free is kept for a replica that needs more on that node, and may not have it
                if self._at_quota(job):
                    continue
                claimed = sum(slot in self._claimed_from(job) for slot in state.free_slots())
                could = free - claimed
                assert could < job.spec.workers_min, loop.story(f"{job.spec.name} could run on {could} free slots")
            wanting = any(name in str(loop.arbiter.waits) for name in loop.specs) if loop.arbiter else False
            if job.state is JobState.RUNNING and job.spec.name not in hung and not wanting and not self._at_quota(job):
                idle = free > 0 and len(job.gang) < job.spec.workers_max and not scheduled
                assert not idle, loop.story("slots lie idle")
        self._grown()
        late_moves = [event for event in moves(loop.events) if event.at_s > loop.now_s - 30.0]
        ended = any(isinstance(e.body, JobEnded) and e.at_s > loop.now_s - 60.0 for e in loop.events)
        assert not late_moves or served or ended or scheduled, loop.story("still moving")

    def _at_quota(self, job: JobRecord) -> bool:
        """Whether its team may not have what it needs, or one more."""
        loop = self.loop
        team = next((team for team in loop.knobs.policy.teams if team.name == job.spec.team), None)
        if team is None or team.quota is None:
            return False
        mine = [one for one in loop.state.jobs.values() if one.spec.team == team.name and one.state in JOB_HOLDS_SLOTS]
        needs = {JobState.RUNNING: 1, JobState.PARKED: len(job.gang)}.get(job.state, job.spec.workers_min)
        return sum(len(one.gang) for one in mine) + needs > team.quota

    def _grown(self) -> None:
        """A pool that may grow has, where all jobs at their smallest and all replicas need more than there is."""
        loop, state, provider = self.loop, self.loop.state, self.loop.provider
        if provider is None or loop.knobs.policy.teams:
            return
        living = [job for job in state.jobs.values() if job.state is not JobState.ENDED and job.held is None]
        need = sum(job.spec.workers_min for job in living if not job.cancelled) + loop.knobs.policy.reserve
        need += sum(len(seat.slots) for seat in state.seats.values() if seat.state is SeatState.READY)
        usable = [r for r in state.slots.values() if r.state is not SlotState.LOST]
        assert need <= len(usable) or len(loop.cluster.nodes) >= provider.config.nodes_max, loop.story(
            f"{need} slots are needed of {len(usable)}, and no node is started"
        )

    def _drivers_settled(self) -> None:
        """Jobs are where they can stay, and no step was lost that nobody speaks of."""
        loop, state = self.loop, self.loop.state
        recent = {str(getattr(e.body, "job", "")) for e in loop.events if e.at_s > loop.now_s - 20.0}
        bad = {name for name, d in loop.drivers.items() if d.poison or d.never_steps}
        for name, driver in loop.drivers.items():
            if name not in state.jobs:
                assert not driver.alive, loop.story(f"nobody knows {name}")
                continue
            job = state.jobs[JobName(name)]
            if driver.incarnation != job.incarnation and not driver.alive:
                continue  # restored twice, by arbiters that did not know of each other: the other one has it
            if driver.repeated and driver.alive and name not in bad | loop.restorable and not driver.was_corrupted:
                assert job.crashes, loop.story(f"{name} repeats {driver.repeated} steps, and nobody says so")
            if not driver.alive:
                assert job.state is JobState.ENDED, loop.story(f"{name} is dead")
            else:
                still = job.state in (JobState.RUNNING, JobState.WAITING, JobState.PARKED) and not job.cancelled
                assert still or name in recent or name in bad, loop.story(f"stuck: {name}")

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
        return any(word in waits for word in EXCUSES)
