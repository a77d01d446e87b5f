"""Events of a pool drawn at random, legal or not."""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pydantic import TypeAdapter

from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.events import (
    Body,
    CancelJob,
    DrainSeat,
    EndpointDeclared,
    Event,
    GrantJob,
    GrantSeat,
    JobCrashed,
    JobDurable,
    JobEnded,
    JobForgotten,
    JobHeld,
    JobParked,
    JobRecovered,
    JobReleased,
    JobRunning,
    JobStopped,
    JobSubmitted,
    NodeDraining,
    NodeForgotten,
    NodeFound,
    NodeLost,
    NodeUndrained,
    ParkJob,
    ParkSeat,
    PoolFrozen,
    PoolUnfrozen,
    ResumeJob,
    SeatDied,
    SeatDrained,
    SeatGone,
    SeatLanded,
    SeatParked,
    SeatReady,
    SeatStopped,
    SlotForeign,
    SlotFound,
    SlotFreed,
    SlotUnfenced,
    StopJob,
    WakeSeat,
)
from ebbtide.pool.handlers.apply import apply, replay
from ebbtide.pool.ids import EndpointName, JobName, NodeId, RecordId, SeatId, SlotId, seat_id, slot_id
from ebbtide.pool.rules.drain import is_drained
from ebbtide.pool.rules.promises import violations
from ebbtide.pool.spec import JobSpec, WorkloadClass
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JOB_HOLDS_SLOTS, OCCUPIED, JobState, SlotState
from tests.platform.pool.builder import ENDPOINT, SPEC, a_slot

NODES = (NodeId("n"), NodeId("m"))


SLOTS = tuple(slot_id(node, index) for node in NODES for index in range(3))


JOBS = tuple(JobName(name) for name in ("a", "b", "c"))


ENDPOINTS = (EndpointName("one"), EndpointName("two"))  # of one and two slots per replica


SEATS = tuple(seat_id(endpoint, number) for endpoint in ENDPOINTS for number in range(2))


EVENTS: TypeAdapter[Event] = TypeAdapter(Event)


slot = st.sampled_from(SLOTS)


some_slots = st.lists(slot, min_size=0, max_size=4).map(tuple)


job = st.sampled_from(JOBS)


seat = st.sampled_from(SEATS)


step = st.integers(0, 50)


flag = st.booleans()


def slots_of(node: NodeId) -> tuple[SlotId, ...]:
    return tuple(name for name in SLOTS if name.startswith(f"{node}:"))


def specs() -> st.SearchStrategy[JobSpec]:
    """Jobs of every kind."""
    return st.builds(
        lambda name, least, more, kind, in_place: replace(
            SPEC, name=name, workers_min=least, workers_max=least + more, workload_class=kind, in_place=in_place
        ),
        job,
        st.integers(1, 2),
        st.integers(0, 2),
        st.sampled_from(WorkloadClass),
        st.sampled_from([True, True, False]),
    )


ANYTHING: st.SearchStrategy[Body] = st.one_of(
    st.builds(GrantJob, job, some_slots, st.just("r")),
    st.builds(ParkJob, job, st.just("r")),
    st.builds(ResumeJob, job, st.just("r")),
    st.builds(StopJob, job, st.just("r"), flag),
    st.builds(CancelJob, job, st.just("r")),
    st.builds(GrantSeat, seat, some_slots, st.just("r")),
    st.builds(DrainSeat, seat, st.just("r")),
    st.builds(ParkSeat, seat, st.just("r")),
    st.builds(WakeSeat, seat, st.just("r")),
    st.builds(SeatDrained, seat),
    st.builds(SeatParked, seat),
    st.builds(
        lambda name, warm: EndpointDeclared(
            replace(ENDPOINT, name=name, slots_per_replica=1 + ENDPOINTS.index(name), warm_replicas=warm)
        ),
        st.sampled_from(ENDPOINTS),
        st.integers(0, 2),
    ),
    st.builds(NodeFound, st.sampled_from(NODES), st.sampled_from([0, 20, 1000])),
    st.builds(NodeLost, st.sampled_from(NODES)),
    st.builds(lambda node: NodeForgotten(node, slots_of(node)), st.sampled_from(NODES)),
    st.builds(NodeDraining, st.sampled_from(NODES), st.sampled_from(["r", "s"])),
    st.builds(NodeUndrained, st.sampled_from(NODES)),
    st.builds(PoolFrozen, st.just("r")),
    st.just(PoolUnfrozen()),
    st.builds(SlotFound, slot.map(a_slot)),
    st.builds(SlotFreed, slot),
    st.builds(SlotUnfenced, slot),
    st.builds(SlotForeign, slot, st.just("who")),
    st.builds(JobSubmitted, specs(), st.sampled_from(["i1", "i2"]), flag),
    st.builds(JobRunning, job, step),
    st.builds(JobParked, job, step),
    st.builds(JobDurable, job, step),
    st.builds(JobStopped, job, step),
    st.builds(JobCrashed, job, st.just("w"), step),
    st.builds(JobRecovered, job),
    st.builds(JobHeld, job, st.sampled_from(["me", "you"]), st.just("r")),
    st.builds(JobReleased, job, st.just("me")),
    st.builds(JobEnded, job, st.sampled_from(["finished", "failed", "cancelled", "lost"]), st.just("")),
    st.builds(JobForgotten, job),
    st.builds(SeatLanded, seat, st.just("a")),
    st.builds(lambda name, nbytes: SeatReady(name, (), park_bytes=nbytes), seat, st.sampled_from([0, 15, 15])),
    st.builds(SeatDied, seat, st.just("w")),
    st.builds(SeatStopped, seat, st.just("w")),
    st.builds(SeatGone, seat),
)


class Pool(RuleBasedStateMachine):
    """The pool under fire."""

    def __init__(self) -> None:
        super().__init__()
        self.state = PoolState()
        self.events: list[Event] = []
        self.sitting: dict[str, tuple[str, int]] = {}  # slot -> who may have memory there, under which epoch
        self.epochs: set[int] = set()
        self.draining: set[str] = set()
        self.held: dict[str, str] = {}  # job -> who holds it aside
        self.started_from: dict[str, int] = {}
        self.failures: dict[str, tuple[int, int, float]] = {}  # job -> furthest step, crashes there, no grant before
        for node in NODES:
            self.send(NodeFound(node, 1000))
        for name in SLOTS:
            self.send(SlotFound(a_slot(name)))
            self.send(SlotFreed(name))
        for endpoint, size in zip(ENDPOINTS, (1, 2), strict=True):
            warm = ENDPOINTS.index(endpoint)
            self.send(EndpointDeclared(replace(ENDPOINT, name=endpoint, slots_per_replica=size, warm_replicas=warm)))
        for job_name in JOBS:
            self.send(JobSubmitted(replace(SPEC, name=job_name), "i1"))

    def send(self, body: Body) -> None:
        event = Event(RecordId(f"1-{len(self.events)}"), float(len(self.events)), None, body)
        before, copy = self.state, replace(self.state)
        try:
            after = apply(self.state, event)
        except IllegalTransition:
            assert self.state is before
            assert self.state == copy
            return
        assert before == copy, "the old state is a value: it never changes"
        self.believe(before, after, body)
        self.state = after
        self.events.append(event)

    def believe(self, before: PoolState, after: PoolState, body: Body) -> None:
        """What the independent model makes of a legal event."""
        match body:
            case SlotFreed(slot=name):
                self.sitting.pop(name, None)
            case SlotForeign(slot=name):
                self.sitting.pop(name, None)
            case NodeLost(node=node):
                self.sitting = {s: who for s, who in self.sitting.items() if not s.startswith(f"{node}:")}
                self.draining.discard(node)
            case NodeForgotten(node=node, slots=slots):
                assert node not in before.nodes and set(before.slots) - set(after.slots) == set(slots)
                assert all(before.slots[name].state is SlotState.LOST for name in slots)
                assert not set(slots) & {name for one in before.jobs.values() for name in one.gang}, "a gang is there"
                assert not set(slots) & {name for one in before.seats.values() for name in one.slots}
            case NodeDraining(node=node):
                self.draining.add(node)
            case NodeUndrained(node=node):
                self.draining.discard(node)
            case GrantJob(job=name, slots=slots):
                self.grant(before, name, slots, after.jobs[name].epoch)
                least, most = after.jobs[name].spec.workers_min, after.jobs[name].spec.workers_max
                assert least <= len(slots) <= most, "all or nothing"
            case ResumeJob(job=name):
                assert after.jobs[name].gang == before.jobs[name].gang, "exactly its slots"
                self.grant(before, name, after.jobs[name].gang, after.jobs[name].epoch)
            case GrantSeat(seat=name, slots=slots):
                self.grant(before, name, slots, after.seats[name].epoch)
                assert len({s.partition(":")[0] for s in slots}) == 1
                assert len(slots) == after.endpoints[after.seats[name].endpoint].spec.slots_per_replica
            case JobParked(job=name) | JobStopped(job=name) | JobRecovered(job=name):
                epoch = before.jobs[name].epoch
                assert (name, epoch) not in self.sitting.values(), f"{name} is said to have left"
            case JobForgotten(job=name):
                assert before.jobs[name].state is JobState.ENDED
                assert name not in {who for who, _ in self.sitting.values()}, f"{name} may have memory somewhere"
            case SeatGone(seat=name):
                assert (name, before.seats[name].epoch) not in self.sitting.values()

        self.believe_warm(before, after, body)
        self.believe_holds(body)
        self.count_failures(before, body)

    def believe_warm(self, before: PoolState, after: PoolState, body: Body) -> None:
        """A replica that parks has left, and it comes back as it was to exactly where it was."""
        match body:
            case WakeSeat(seat=name):
                assert after.seats[name].slots == before.seats[name].slots, "exactly its slots"
                assert after.seats[name].replica == before.seats[name].replica, "it lives on"
                self.grant(before, name, after.seats[name].slots, after.seats[name].epoch)
            case SeatParked(seat=name):
                assert (name, before.seats[name].epoch) not in self.sitting.values(), f"{name} is said to have left"
            case ParkSeat(seat=name):
                node = before.slots[before.seats[name].slots[0]].slot.node
                assert after.parked_bytes(node) + after.warm_bytes(node) <= after.nodes[node], "host memory is budgeted"

    def believe_holds(self, body: Body) -> None:
        """A job that a person holds gets no slots until its release, or its end; the pool may bring a lost one back."""
        match body:
            case JobHeld(job=name, by=who):
                assert name not in self.held, "the first one's word stands"
                self.held[name] = who
            case JobReleased(job=name):
                assert self.held.pop(name, None), "nobody held it"
            case GrantJob(job=name) | ResumeJob(job=name):
                assert name not in self.held, "a person holds it aside"
            case CancelJob(job=name) | JobForgotten(job=name):
                self.held.pop(name, None)
            case JobEnded(job=name, outcome=outcome) if outcome != "lost":
                self.held.pop(name, None)
            case JobSubmitted(spec=spec, restored=False):
                self.held.pop(spec.name, None)

    def count_failures(self, before: PoolState, body: Body) -> None:
        """A crash counts when its gang got no further than any before; then slots wait, each time twice as long."""
        name, at_s = getattr(body, "job", ""), float(len(self.events))
        furthest, crashes, _ = self.failures.get(name, (0, 0, 0.0))
        match body:
            case JobSubmitted(spec=spec, restored=restored) if not restored:
                self.failures[spec.name] = (self.failures.get(spec.name, (0, 0, 0.0))[0], 0, 0.0)
            case JobParked(step=done) | JobStopped(step=done) | JobDurable(step=done) if done > furthest:
                self.failures[name] = (done, 0, 0.0)
            case JobCrashed(lost_steps=lost):
                furthest = max(furthest, before.jobs[body.job].durable_step + lost)
                crashes = 0 if furthest > self.started_from[name] else crashes + 1
                wait_s = [0.0, 2.0, 4.0, 8.0, 16.0, 32.0][crashes] if crashes < 6 else 60.0
                self.failures[name] = (furthest, crashes, at_s + wait_s)
            case JobForgotten():
                self.failures.pop(name, None)
            case GrantJob():
                self.started_from[name] = furthest

    def grant(self, before: PoolState, who: str, slots: tuple[str, ...], epoch: int) -> None:
        assert len(set(slots)) == len(slots) > 0
        assert epoch not in self.epochs, "an epoch is used once"
        assert all(epoch > old for old in self.epochs)
        self.epochs.add(epoch)
        for name in slots:
            assert name not in self.sitting, f"{name} was granted before it was proven free"
            assert name.partition(":")[0] not in self.draining, f"{name} was granted on a node that drains"
            assert before.slots[name].state is SlotState.FREE  # type: ignore[index]
            self.sitting[name] = (who, epoch)

    @rule(body=ANYTHING)
    def anything(self, body: Body) -> None:
        self.send(body)

    @rule(name=job, data=st.data())
    def job_goes_its_way(self, name: JobName, data: st.DataObject) -> None:
        """What would usually come next, so that deep states are reached."""
        record = self.state.jobs.get(name)
        if record is None:  # forgotten
            self.send(JobSubmitted(replace(SPEC, name=name), "i3"))
            return
        if record.state is JobState.WAITING:
            free = self.state.free_slots()
            count = data.draw(st.integers(record.spec.workers_min, record.spec.workers_max))
            self.send(GrantJob(name, free[:count], "r"))
        elif record.state in (JobState.STARTING, JobState.RESUMING):
            self.send(JobRunning(name, record.step + 1))
        elif record.state is JobState.RUNNING:
            asides: tuple[Body, ...] = (ParkJob(name, "r"), StopJob(name, "r", preempts=True))
            self.send(data.draw(st.sampled_from(asides)))
        elif record.state in (JobState.PARKING, JobState.STOPPING, JobState.RECOVERING):
            for held in self.state.held_by(name, record.epoch)[: data.draw(st.integers(1, 4))]:
                self.send(SlotFreed(held))
            done: dict[JobState, Body] = {JobState.PARKING: JobParked(name, 5), JobState.STOPPING: JobStopped(name, 50)}
            self.send(done.get(record.state, JobRecovered(name)))
        elif record.state is JobState.PARKED:
            self.send(ResumeJob(name, "r"))

    @rule(node=st.sampled_from(NODES), data=st.data())
    def node_comes_back(self, node: NodeId, data: st.DataObject) -> None:
        """It was lost, and perhaps forgotten; its GPUs are proven empty before anything else."""
        here = slots_of(node)
        way: list[Body] = [NodeLost(node)] if data.draw(flag) else []
        way += [NodeForgotten(node, tuple(name for name in here if name in self.state.slots)), NodeFound(node, 1000)]
        for body in [*way, *(SlotFound(a_slot(name)) for name in here), *(SlotFreed(name) for name in here)]:
            self.send(body)
            if data.draw(st.integers(0, 9)) == 0:
                return

    @rule(name=seat, data=st.data())
    def seat_goes_its_way(self, name: SeatId, data: st.DataObject) -> None:
        size = 1 if name.startswith("one") else 2
        node = data.draw(st.sampled_from(NODES))
        free = tuple(s for s in self.state.free_slots() if s.startswith(f"{node}:"))
        held = tuple(s for s, record in self.state.slots.items() if record.occupant == name)
        way: tuple[Body, ...] = (
            GrantSeat(name, free[:size], "r"),
            SeatLanded(name, "a"),
            SeatReady(name, ()),
            DrainSeat(name, "r"),
            SeatStopped(name, "w"),
            *(SlotFreed(s) for s in held),
            SeatGone(name),
        )
        if data.draw(flag):
            way = (
                *way[:2],
                SeatReady(name, (), park_bytes=15),
                ParkSeat(name, "r"),
                SeatDrained(name),
                *(SlotFreed(s) for s in (held or free[:size])),
                SeatParked(name),
                WakeSeat(name, "r"),
                SeatReady(name, (), park_bytes=15),
            )
        for body in way[data.draw(st.integers(0, 6)) :]:
            self.send(body)
            if data.draw(flag):
                return

    @invariant()
    def promises_hold(self) -> None:
        assert violations(self.state) == []

    @invariant()
    def ledger_and_model_agree(self) -> None:
        occupied = {
            str(name): (str(record.occupant), int(record.epoch))
            for name, record in self.state.slots.items()
            if record.state in OCCUPIED
        }
        assert occupied == self.sitting

    @invariant()
    def whoever_runs_has_its_slots(self) -> None:
        for name, record in self.state.jobs.items():
            if record.state in JOB_HOLDS_SLOTS:
                here = [s for s in record.gang if self.state.slots[s].state is not SlotState.LOST]
                assert all(self.sitting[s] == (name, record.epoch) for s in here)

    @invariant()
    def failures_are_counted(self) -> None:
        for name, (furthest, crashes, not_before_s) in self.failures.items():
            record = self.state.jobs[JobName(name)]
            assert (record.furthest_step, record.failures_in_a_row) == (furthest, crashes)
            assert not crashes or record.not_before_s == not_before_s

    @invariant()
    def a_hold_stays_until_it_is_released_or_the_job_is_over(self) -> None:
        assert {name: one.held.by for name, one in self.state.jobs.items() if one.held is not None} == self.held
        assert not [name for name in self.held if self.state.jobs[JobName(name)].cancelled]

    @invariant()
    def draining_nodes_are_known_and_offer_nothing(self) -> None:
        assert set(self.state.draining) == self.draining
        assert not [s for s in self.state.free_slots() if s.partition(":")[0] in self.draining]
        for node in NODES:
            there = [who for s, who in self.sitting.items() if s.startswith(f"{node}:")]
            assert not (there and is_drained(self.state, node))

    @invariant()
    def host_memory_is_bounded(self) -> None:
        for node, lent in self.state.nodes.items():
            parked = [
                record.spec.host_bytes_per_worker * sum(s.startswith(f"{node}:") for s in record.gang)
                for record in self.state.jobs.values()
                if record.state in (JobState.PARKING, JobState.PARKED)
            ]
            assert sum(parked) <= lent

    def teardown(self) -> None:
        assert replay(self.events) == self.state
        again = [EVENTS.validate_json(EVENTS.dump_json(event)) for event in self.events]
        assert again == self.events
        assert replay(again) == self.state
