"""Who gives slots and who gets them, where a node leaves, a reserve is new or a job is young."""

from dataclasses import replace

from ebbtide.pool.events import NodeDraining, NodeLost, StopJob
from ebbtide.pool.ids import NodeId
from tests.autoscaler.closed_loop import a_job, an_endpoint
from tests.autoscaler.test_policy import (
    CONFIG,
    HELD,
    NOW,
    RUNNING3,
    S0,
    S1,
    TRAIN,
    a_pool,
    fold,
    look,
    parked,
    slots,
    with_job,
)


def test_a_parked_job_leaves_the_reserve_free_when_it_comes_back() -> None:
    """It had all three slots before the file asked for a reserve of one."""
    config = replace(CONFIG, reserve=1)
    found = look(parked(RUNNING3), config=config)
    assert found.moves == ()
    assert dict(found.waits)[TRAIN] == "parked: its slots are free, 1 slots are kept free as the reserve"
    (later,) = look(parked(RUNNING3, at_s=NOW - 25.0), config=config).moves
    assert isinstance(later, StopJob) and "goes on with 2 workers" in later.reason


def test_a_job_does_not_grow_within_its_minimum_runtime_nor_while_a_replica_lacks_slots() -> None:
    young = with_job(a_pool(), a_job(min_runtime_s=60.0), (S0, S1), at_s=NOW - 30.0)
    assert look(young, for_s=20.0).moves == ()
    n1 = slots(2, "n1")
    state = a_pool(nodes={"n0": 2, "n1": 2}, endpoints=(an_endpoint(slots_per_replica=2),))
    state = with_job(with_job(state, a_job("a", workers_max=1), (S0,)), a_job("b", workers_max=2), n1[:1])
    assert [getattr(move, "job", "") for move in look(state, traffic=HELD, for_s=15.0).moves] == ["a"]


def test_slots_of_a_node_that_drains_or_died_are_of_no_use_to_a_replica() -> None:
    n1 = slots(2, "n1")
    state = with_job(a_pool(nodes={"n0": 1, "n1": 2}), a_job("a", workers_max=1, priority=-1), (S0,))
    state = with_job(state, a_job("b", workers_max=2), n1)
    drains = look(fold(state, NodeDraining(NodeId("n0"), "r")), traffic=HELD)
    assert {(type(move).__name__, getattr(move, "job", "")) for move in drains.moves} == {
        ("StopJob", "a"),
        ("ParkJob", "b"),
    }
    dead = look(fold(state, NodeLost(NodeId("n0"))), traffic=HELD)
    assert [getattr(move, "job", "") for move in dead.moves] == ["b"]


def test_what_a_job_leaves_by_a_drain_is_not_asked_of_another_job_too() -> None:
    """It is on both nodes: its slot on the other one will do."""
    n1 = slots(2, "n1")
    state = with_job(a_pool(nodes={"n0": 1, "n1": 2}), a_job("a", workers_max=2), (S0, n1[0]))
    state = with_job(state, a_job("b", workers_max=1), n1[1:])
    found = look(fold(state, NodeDraining(NodeId("n0"), "r")), traffic=HELD)
    assert [getattr(move, "job", "") for move in found.moves] == ["a"]
