"""Stories of nodes in the closed loop: one that drains, dies, or comes back under another id, during every move."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from ebbtide.pool.events import (
    DrainSeat,
    GrantJob,
    GrantSeat,
    JobCrashed,
    NodeDraining,
    NodeUndrained,
    ResumeJob,
    SeatStopped,
    StopJob,
)
from ebbtide.pool.ids import JobName, NodeId, SeatId
from ebbtide.pool.rules.drain import is_drained
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from ebbtide_testing.cluster.fake_gang import FakeDriver
from tests.autoscaler.closed_loop import KNOBS, Loop, a_job, an_endpoint, moves
from tests.builders.closed_loop import until

N0, N1 = NodeId("n0"), NodeId("n1")
TRAIN, SEAT = JobName("train"), SeatId("chat/0")
TWO = {"n0": 2, "n1": 2}


def nodes_of(loop: Loop, job: str = "train") -> set[NodeId]:
    """Where the gang of ``job`` is."""
    return {loop.state.slots[slot].slot.node for slot in loop.state.jobs[JobName(job)].gang}


def seat_node(loop: Loop, seat: SeatId) -> NodeId:
    return loop.state.slots[loop.state.seats[seat].slots[0]].slot.node


def training(seed: int = 1, **changes: object) -> tuple[Loop, FakeDriver]:
    """A gang of four over two nodes, and an endpoint without traffic."""
    loop = Loop(seed, nodes=TWO, endpoints=(an_endpoint(replicas_max=2),))
    loop.run(4.0)
    driver = loop.submit(replace(a_job(workers_max=4), **changes))  # type: ignore[arg-type]
    loop.run(0.4)
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.RUNNING)
    assert nodes_of(loop) == {N0, N1}
    loop.run(3.0)
    return loop, driver


def serving(seed: int = 1, *, slots: int = 1) -> Loop:
    """Steady traffic at one replica of ``slots`` slots."""
    loop = Loop(seed, nodes=TWO, endpoints=(an_endpoint(replicas_max=1, slots_per_replica=slots),))
    loop.run(4.0)
    loop.gateways[0].steady = True
    loop.gateways[0].rates["chat"] = 0.5
    until(loop, lambda: SEAT in loop.state.seats and loop.state.seats[SEAT].state is SeatState.READY)
    return loop


def ready(loop: Loop) -> list[SeatId]:
    return [seat.id for seat in loop.state.seats.values() if seat.state is SeatState.READY]


# ---- drains


@pytest.mark.parametrize("kind", WorkloadClass)
def test_a_job_on_a_node_that_drains_goes_on_elsewhere_and_comes_back_when_it_may(kind: WorkloadClass) -> None:
    loop, driver = training(workload_class=kind)
    loop.tell(NodeDraining(N1, "new disk"))
    loop.run(30.0)
    job = loop.state.jobs[TRAIN]
    assert (job.state, nodes_of(loop), job.crashes, driver.failures) == (JobState.RUNNING, {N0}, 0, 0), loop.story()
    assert (job.restarts, job.preempted_s, job.crash_lost_steps) == (0, (), 0), "nobody preempted it"
    assert is_drained(loop.state, N1)
    loop.tell(NodeUndrained(N1))
    loop.run(40.0)
    assert nodes_of(loop) == {N0, N1}, loop.story()


def test_a_parked_job_on_a_node_that_drains_is_restarted_elsewhere_and_never_resumed_there() -> None:
    loop, _ = training()
    loop.knobs = replace(KNOBS, policy=replace(KNOBS.policy, restart_cost_s=1000.0))
    loop.gateways[0].offer("chat")
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.PARKED)
    loop.tell(NodeDraining(N1, "new disk"))
    events = loop.run(40.0)
    assert not any(isinstance(event.body, ResumeJob) for event in events)
    stops = [event.body for event in events if isinstance(event.body, StopJob)]
    assert (stops[0].preempts, "drains (new disk)" in stops[0].reason) == (False, True), loop.story()
    assert (loop.state.jobs[TRAIN].state, nodes_of(loop)) == (JobState.RUNNING, {N0}), loop.story()
    assert is_drained(loop.state, N1)


def test_a_job_that_finds_no_room_elsewhere_waits_and_says_so() -> None:
    loop, _ = training(workers_min=3)
    loop.tell(NodeDraining(N1, "new disk"))
    loop.run(30.0)
    assert loop.state.jobs[TRAIN].state is JobState.WAITING
    assert loop.arbiter is not None and "needs 3 slots, 2 free" in loop.arbiter.waits["train"]
    assert is_drained(loop.state, N1)


def test_a_replica_on_a_node_that_drains_gets_its_successor_first() -> None:
    loop = serving()
    old = seat_node(loop, SEAT)
    lowest: list[int] = []
    loop.tell(NodeDraining(old, "new disk"))
    for _ in range(200):
        loop.run(0.2)
        lowest.append(len(ready(loop)))
    assert min(lowest) == 1, "there was always one to answer"
    assert [seat_node(loop, seat) for seat in ready(loop)] == [N1 if old == N0 else N0], loop.story()
    assert is_drained(loop.state, old)
    kinds = [type(event.body) for event in moves(loop.events)]
    assert kinds == [GrantSeat, GrantSeat, DrainSeat], loop.story()


def test_a_replica_whose_successor_finds_no_slot_drains_first_and_its_requests_are_held() -> None:
    loop = serving(slots=2)
    old = seat_node(loop, SEAT)
    other = N1 if old == N0 else N0
    loop.tell(NodeDraining(other, "r"))
    loop.run(2.0)
    loop.tell(NodeDraining(old, "r"))
    loop.run(30.0)
    assert ready(loop) == [] and is_drained(loop.state, old), loop.story()
    assert loop.arbiter is not None and "no node can give 2 slots" in loop.arbiter.waits[SEAT]
    loop.tell(NodeUndrained(other))
    loop.run(30.0)
    assert [seat_node(loop, seat) for seat in ready(loop)] == [other], loop.story()
    assert not loop.gateways[0].held["chat"]


def test_a_job_makes_room_for_the_successor_of_a_replica_whose_node_drains() -> None:
    loop = serving()
    old = seat_node(loop, SEAT)
    loop.submit(a_job(workers_max=3))
    loop.run(0.4)
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.RUNNING)
    loop.run(5.0)
    loop.tell(NodeDraining(old, "r"))
    loop.run(60.0)
    other = {N0, N1} - {old}
    assert {seat_node(loop, seat) for seat in ready(loop)} == other == nodes_of(loop), loop.story()
    assert is_drained(loop.state, old)
    assert not loop.gateways[0].held["chat"]


def test_a_replica_that_is_still_starting_on_a_node_that_drains_is_stopped_at_once() -> None:
    loop = Loop(1, nodes=TWO, endpoints=(an_endpoint(replicas_max=1),))
    loop.run(4.0)
    loop.gateways[0].offer("chat")
    until(loop, lambda: SEAT in loop.state.seats and loop.state.seats[SEAT].state is SeatState.STARTING)
    old = seat_node(loop, SEAT)
    loop.tell(NodeDraining(old, "r"))
    loop.run(0.4)
    assert loop.state.seats[SEAT].state is SeatState.STOPPING
    loop.run(30.0)
    assert is_drained(loop.state, old) and loop.gateways[0].completed["chat"] == 1, loop.story()


# ---- deaths


def reach(loop: Loop, job: JobState | None, seat: SeatState | None) -> None:
    """Let the pool come to where a job or seat is in the given state."""
    if job is JobState.STARTING:
        loop.submit(a_job("other", workers_max=2))
    loop.gateways[0].offer("chat")

    def there() -> bool:
        jobs, seats = loop.state.jobs.values(), loop.state.seats.values()
        return any(j.state is job for j in jobs) if job is not None else any(s.state is seat for s in seats)

    until(loop, there, limit_s=90.0)


@pytest.mark.parametrize("node", [N0, N1])
@pytest.mark.parametrize(
    ("job", "seat", "in_place"),
    [
        (JobState.RUNNING, None, True),
        (JobState.PARKING, None, True),
        (JobState.PARKED, None, True),
        (JobState.RESUMING, None, True),
        (JobState.STOPPING, None, False),
        (JobState.STARTING, None, False),
        (None, SeatState.PLACING, True),
        (None, SeatState.STARTING, True),
        (None, SeatState.READY, True),
        (None, SeatState.DRAINING, True),
        (None, SeatState.STOPPING, True),
    ],
)
def test_a_node_that_dies_during_a_move_breaks_no_promise_and_all_go_on_elsewhere(
    node: NodeId, job: JobState | None, seat: SeatState | None, in_place: bool
) -> None:
    loop, driver = training(in_place=in_place)
    if job is JobState.RESUMING:
        loop.knobs = replace(KNOBS, policy=replace(KNOBS.policy, restart_cost_s=1000.0))
    reach(loop, job, seat)
    lost_s = loop.clock.now_s
    loop.lose_node(node)
    loop.run(60.0)
    survivor = {N0, N1} - {node}
    record = loop.state.jobs[TRAIN]
    assert (record.state, nodes_of(loop)) == (JobState.RUNNING, survivor), loop.story()
    assert all((slot.state is SlotState.LOST) == (slot.slot.node == node) for slot in loop.state.slots.values()), (
        loop.story()
    )
    loop.gateways[0].offer("chat")
    loop.run(40.0)
    assert not loop.gateways[0].held["chat"], loop.story()
    assert not any(s.failures for s in loop.state.seats.values()), "a dead node is not the replica's fault"
    crashes = [e.body for e in loop.events if isinstance(e.body, JobCrashed) and e.at_s > lost_s]
    assert len([crash for crash in crashes if crash.job == TRAIN]) <= 1, loop.story()
    assert driver.alive


def test_a_machine_that_comes_back_under_another_id_is_used_again() -> None:
    loop, _ = training()
    gpus = loop.lose_node("n1")
    loop.run(30.0)
    assert nodes_of(loop) == {N0}
    loop.add_node("n1-again", gpus)
    loop.run(40.0)
    assert nodes_of(loop) == {N0, NodeId("n1-again")}, loop.story()
    grants = [event.body for event in loop.events if isinstance(event.body, GrantJob)]
    assert not any(slot.startswith("n1:") for slot in grants[-1].slots)


def test_a_dead_node_under_a_gang_is_a_crash_even_if_its_controller_does_not_notice() -> None:
    """The ranks that are left hang in a collective; the arbiter tells the controller to end them."""
    loop, driver = training()
    assert driver.gang is not None
    driver.gang.over = True  # nobody of it reacts to the death of a rank
    loop.lose_node("n1")
    loop.run(60.0)
    crashed = [event.body.why for event in loop.events if isinstance(event.body, JobCrashed)]
    assert len(crashed) == 1 and "its node is gone" in crashed[0], loop.story()
    assert (loop.state.jobs[TRAIN].state, nodes_of(loop)) == (JobState.RUNNING, {N0}), loop.story()


# ---- placing


def test_two_replicas_on_one_node_are_placed_one_after_the_other_and_on_two_nodes_at_once() -> None:
    opening: Callable[[Loop], list[NodeId]] = lambda loop: [  # noqa: E731
        record.slot.node for record in loop.state.slots.values() if record.state is SlotState.OPENING
    ]
    for nodes, at_once in (({"n0": 4}, 1), (TWO, 2)):
        loop = Loop(3, nodes=nodes, endpoints=(an_endpoint(replicas_max=2),))
        loop.run(4.0)
        for _ in range(8):
            loop.gateways[0].offer("chat")
        most = served = 0
        for _ in range(150):
            loop.run(0.2)
            assert len(opening(loop)) == len(set(opening(loop)))
            most, served = max(most, len(opening(loop))), max(served, len(ready(loop)))
        assert (most, served) == (at_once, 2), loop.story()


def noticed_after_s(seed: int) -> float | None:
    """One of two replicas dies while the other is being placed beside it; when a swap of their slots was noticed."""
    loop = Loop(seed, nodes={"n0": 2}, endpoints=(an_endpoint(replicas_max=2),))
    loop.run(4.0)
    loop.gateways[0].steady = True
    loop.gateways[0].rates["chat"] = 0.5
    until(loop, lambda: len(ready(loop)) == 1)
    for _ in range(12):
        loop.gateways[0].offer("chat")
    loop.gateways[0].rates["chat"] = 3.0  # two replicas' worth, also when these have been answered
    until(loop, lambda: not loop.cluster.scheduler.fences)
    loop.cluster.serve.kill_actor(next(a for found in loop.cluster.serve.actors.values() for a in found if a.ready))
    since_s = loop.clock.now_s
    until(loop, lambda: len(ready(loop)) == 2, limit_s=90.0)
    strayed = [e.at_s for e in loop.events if isinstance(e.body, SeatStopped) and "landed on" in e.body.why]
    return strayed[0] - since_s if strayed else None


def test_two_replicas_that_swapped_their_slots_are_noticed_at_once() -> None:
    """Ray gives a freed logical GPU to whoever is pending on the node."""
    noticed_s = [after_s for seed in range(6) if (after_s := noticed_after_s(seed)) is not None]
    assert noticed_s, "the seeds no longer show a swap: choose others"
    assert max(noticed_s) < 10.0, "a start takes 4 s; the limit on a placement is 15 s"
