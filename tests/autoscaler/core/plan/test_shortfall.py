"""Slots that replicas lack by node or anywhere, against what jobs could give."""

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from ebbtide.pool.events import ParkJob, StopJob
from ebbtide.pool.ids import EndpointName, JobName, NodeId
from ebbtide.pool.spec import WorkloadClass
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals
from ebbtide_autoscaler.core.plan.shortfall import Shortfall
from tests.autoscaler.closed_loop import a_job, an_endpoint
from tests.builders.policy import CHAT, NOW, a_pool, fold, kinds, look, signals, slots, with_job

SEMI = WorkloadClass.SEMI_PREEMPTIBLE
NODES = st.sampled_from([NodeId(f"n{number}") for number in range(4)])
SLOTS = st.dictionaries(NODES, st.integers(1, 5), max_size=4)


def flood(requests: int = 12) -> EndpointSignals:
    return signals(held=requests, last_arrival_s=NOW)


def naive_missing(on: Mapping[NodeId, int], anywhere: int, given_: Sequence[Mapping[NodeId, int]]) -> int:
    """Every slot that is given goes to its own node's lack first, else to any."""
    left = dict(on)
    for slots_ in given_:
        for node, count in slots_.items():
            there = min(count, left.get(node, 0))
            left[node] = left.get(node, 0) - there
            anywhere -= count - there
    return sum(left.values()) + max(0, anywhere)


@given(SLOTS, st.integers(0, 8), st.lists(st.tuples(SLOTS, st.integers(0, 9)), max_size=6))
def test_what_is_missing_is_what_one_slot_at_a_time_would_leave(
    on: dict[NodeId, int], anywhere: int, offers: list[tuple[dict[NodeId, int], int]]
) -> None:
    lack, taken = Shortfall(), list[Mapping[NodeId, int]]()
    lack.lack(anywhere)
    for node, count in on.items():
        lack.lack(count, node)
    assert lack.asked == lack.missing == anywhere + sum(on.values())
    for offer, most in offers:
        part = lack.best_of(offer, most)
        assert all(0 < count <= offer[node] for node, count in part.items())
        assert sum(part.values()) == min(most, sum(offer.values()))
        assert lack.helps(part) == min(most, lack.helps(offer)), "no other part of that size helps more"
        before = lack.missing
        helps = lack.helps(part)
        lack.give(part)
        taken.append(part)
        assert lack.missing == before - helps == naive_missing(on, anywhere, taken)


def test_a_semi_preemptible_job_gives_what_it_can_spare_though_more_is_lacked() -> None:
    state = with_job(
        a_pool(nodes={"n0": 4}, endpoints=(an_endpoint(replicas_max=4),)),
        a_job("semi", workload_class=SEMI, workers_min=2, workers_max=4),
        slots(4),
    )
    [move] = look(state, traffic=flood(12), for_s=5.0).moves
    assert isinstance(move, StopJob)
    assert move.reason.startswith("2 slots for chat") and "goes on with 2 workers" in move.reason


def test_several_of_them_give_a_replica_of_several_slots_a_node_together() -> None:
    first, second = slots(4, "n0"), slots(4, "n1")
    state = a_pool(nodes={"n0": 4, "n1": 4}, endpoints=(an_endpoint(replicas_max=1, slots_per_replica=4),))
    for name, part in (("j", slice(2)), ("k", slice(2, 4))):
        job = a_job(name, workload_class=SEMI, workers_min=2, workers_max=4)
        state = with_job(state, job, first[part] + second[part])
    assert kinds(look(state, traffic=flood(1), for_s=5.0)) == ["StopJob", "StopJob"]


def test_at_its_minimum_one_gives_nothing_and_that_is_said() -> None:
    job = a_job("semi", workload_class=SEMI, workers_min=3, workers_max=4)
    decision = look(with_job(a_pool(), job, slots(3)), traffic=flood(), for_s=5.0)
    assert not decision.moves
    assert any("job semi is semi-preemptible and at its minimum" in why for _, why in decision.waits)


def test_replicas_of_several_slots_get_a_node_each_at_once() -> None:
    state = a_pool(
        nodes={f"n{number}": 4 for number in range(4)},
        endpoints=(an_endpoint(replicas_max=3, slots_per_replica=4),),
    )
    for number in range(4):
        state = with_job(state, a_job(f"j{number}", workers_min=4, workers_max=4), slots(4, f"n{number}"))
    decision = look(state, traffic=flood(12), for_s=5.0)
    assert kinds(decision) == ["ParkJob"] * 3, "not one, and the next when that one is through"
    assert all(move.reason.startswith("4 slots for chat") for move in decision.moves if isinstance(move, ParkJob))
    assert kinds(look(fold(state, *decision.moves, at_s=NOW), traffic=flood(12), for_s=5.0)) == []


def test_two_of_them_may_share_a_node_that_can_give_enough() -> None:
    state = a_pool(nodes={"n0": 8}, endpoints=(an_endpoint(replicas_max=3, slots_per_replica=4),))
    for number in range(2):
        job = a_job(f"j{number}", workers_min=4, workers_max=4)
        state = with_job(state, job, slots(8)[4 * number : 4 * number + 4])
    decision = look(state, traffic=flood(12), for_s=5.0)
    assert kinds(decision) == ["ParkJob", "ParkJob"], "and for the third there is no node"


def test_slots_anywhere_are_of_no_use_to_a_replica_that_needs_a_node() -> None:
    big = an_endpoint("chat", slots_per_replica=4, replicas_max=1)
    small = an_endpoint("small", replicas_max=1, priority=5)
    state = a_pool(nodes={"n0": 4, **{f"n{number}": 1 for number in range(1, 7)}}, endpoints=(big, small))
    state = with_job(state, a_job("whole", workers_min=4, workers_max=4), slots(4))
    for number in range(1, 7):
        state = with_job(state, a_job(f"one{number}", workers_min=1, workers_max=1), slots(1, f"n{number}"))
    asks = signals(held=1, last_arrival_s=NOW)
    moves = look(state, traffic={CHAT: asks, EndpointName("small"): asks}, for_s=5.0).moves
    asked = [move.job for move in moves if isinstance(move, ParkJob)]
    assert "whole" in asked and len(asked) == 2


def test_what_comes_free_counts_but_for_the_minima_that_are_owed() -> None:
    semi, other = JobName("semi"), JobName("other")
    state = a_pool(nodes={"n0": 8}, endpoints=(an_endpoint(replicas_max=8),))
    state = with_job(state, a_job("semi", workload_class=SEMI, workers_min=2, workers_max=4), slots(8)[:4])
    state = with_job(state, a_job("other", workers_min=1, workers_max=4), slots(8)[4:])
    state = fold(state, StopJob(semi, "r", preempts=True), at_s=NOW - 1.0)
    [move] = look(state, traffic=flood(16), for_s=5.0).moves
    assert isinstance(move, ParkJob) and move.job == other
    assert move.reason.startswith("2 slots for chat"), "four are lacked, four come free, two of these go back"


def test_a_job_that_may_never_be_preempted_is_not_counted_on() -> None:
    """A replica goes to the node whose job may leave, and nobody parks on one that can never come to have enough."""
    never = {"max_preemptions_per_h": 0, "workers_min": 1, "workers_max": 2}
    state = a_pool(nodes={"n0": 2, "n1": 2}, endpoints=(an_endpoint(replicas_max=1, slots_per_replica=2),))
    state = with_job(state, a_job("stays", **never), slots(2, "n0"))
    both = with_job(state, a_job("goes", workers_min=2, workers_max=2), slots(2, "n1"))
    [move] = look(both, traffic=flood(1), for_s=5.0).moves
    assert isinstance(move, ParkJob) and move.job == "goes"
    mixed = with_job(state, a_job("small", workers_min=1, workers_max=1), slots(1, "n1"))
    mixed = with_job(mixed, a_job("fixed", **{**never, "workers_max": 1}), slots(2, "n1")[1:])
    decision = look(mixed, traffic=flood(1), for_s=5.0)
    assert not decision.moves and any("no node can give 2 slots" in why for _, why in decision.waits)
