"""How many nodes a pool should have: scenarios, and what must hold of every pool."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.pool.events import (
    GrantSeat,
    JobHeld,
    JobSubmitted,
    NodeDraining,
    NodeFound,
    NodeUndrained,
    SlotForeign,
    SlotUnfenced,
)
from ebbtide.pool.ids import EndpointName, NodeId, node_of, seat_id
from ebbtide.pool.rules.drain import UNNEEDED, occupants
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide_autoscaler.cluster.size import DesiredSize, SizeConfig, SizeMemory, cluster_size
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.plan.fair_share import Team
from ebbtide_autoscaler.core.plan.inputs import Memory, PolicyConfig, Snapshot
from tests.autoscaler.closed_loop import a_job, an_endpoint
from tests.builders.policy import CHAT, a_pool, fold, signals, slots, with_job, with_ready
from tests.examples import examples

NOW = 10_000.0
GROW_S, IDLE_S = 30.0, 600.0
CONFIG = SizeConfig(nodes_min=1, nodes_max=4, node_slots=2, grow_after_s=GROW_S, idle_after_s=IDLE_S)
N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")
ALL = frozenset({N0, N1, N2})
Aims = Mapping[EndpointName, int]
HOUR_S = 3600.0


def after(
    state: PoolState,
    aims: Aims | None = None,
    *,
    for_s: float = 0.0,
    removable: frozenset[NodeId] = ALL,
    memory: SizeMemory | None = None,
    config: SizeConfig = CONFIG,
    now_s: float = NOW,
) -> tuple[DesiredSize, SizeMemory]:
    """What is wished for when the pool has been as it is for so long."""
    known = memory or SizeMemory()
    for at_s in (now_s, now_s + for_s):
        wish, known = cluster_size(at_s, state, aims or {}, removable, known, config)
    return wish, known


def two_nodes(slots_per_replica: int = 1) -> PoolState:
    return a_pool(nodes={"n0": 2, "n1": 2}, endpoints=(an_endpoint(slots_per_replica=slots_per_replica),))


def test_a_pool_in_which_all_fits_stays_as_it_is() -> None:
    state = with_job(two_nodes(), a_job(workers_min=4, workers_max=4), (*slots(2), *slots(2, "n1")))
    wish, _ = after(state, for_s=10 * IDLE_S)
    assert wish == DesiredSize(2, 0, (), (), (), "2 nodes of 1..4: all that is wanted fits")


@pytest.mark.proves("the cluster grows for what is lacking")
def test_replicas_that_do_not_fit_call_for_nodes_when_that_has_lasted() -> None:
    state = two_nodes(slots_per_replica=2)
    wish, memory = after(state, {CHAT: 3}, for_s=GROW_S - 1)
    assert (wish.nodes, wish.new) == (2, 0)
    assert wish.reason == (
        "2 nodes of 1..4: 1 more needed, asked for if that lasts 30 s; 3 more replicas of chat of 2 slots; "
        "4 slots could be had"
    )
    wish, _ = cluster_size(NOW + GROW_S, state, {CHAT: 3}, ALL, memory, CONFIG)
    assert (wish.nodes, wish.new, wish.lacking) == (3, 1, ("chat",))
    assert wish.reason == (
        "2 nodes of 1..4: 1 more asked for; 3 more replicas of chat of 2 slots; 4 slots could be had"
    )


def test_a_replica_of_several_gpus_needs_a_node_that_has_them_all() -> None:
    """Each node has a slot that another replica sits on: two are left, on two nodes."""
    state = a_pool(
        nodes={"n0": 2, "n1": 2}, endpoints=(an_endpoint("small"), an_endpoint("large", slots_per_replica=2))
    )
    small = EndpointName("small")
    for number, node in enumerate(("n0", "n1")):
        state = with_ready(state, seat_id(small, number), slots(1, node))
    aims = {small: 2, EndpointName("large"): 1}
    assert after(state, aims, for_s=GROW_S)[0].new == 1
    assert after(state, {small: 2}, for_s=GROW_S)[0].new == 0


def test_a_large_replica_takes_a_place_that_a_small_one_needs() -> None:
    """Nine slots on three nodes, and nine are wanted; but of two and more each node has a single place."""
    endpoints = (an_endpoint("small", slots_per_replica=2), an_endpoint("large", slots_per_replica=3))
    state = a_pool(nodes={"n0": 3, "n1": 3, "n2": 3}, endpoints=endpoints)
    config = replace(CONFIG, node_slots=3)
    small, large = (spec.name for spec in endpoints)
    assert after(state, {small: 3, large: 1}, for_s=GROW_S, config=config)[0].new == 1
    assert after(state, {small: 2, large: 1}, for_s=GROW_S, config=config)[0].new == 0


def test_a_job_that_waits_calls_for_nodes_and_one_that_is_held_does_not() -> None:
    job = a_job(workers_min=7, workers_max=8)
    state = fold(two_nodes(), JobSubmitted(job, "i"))
    wish, _ = after(state, for_s=GROW_S)
    assert (wish.nodes, wish.lacking) == (4, ("train",))
    assert "job train waits for 7 slots" in wish.reason
    assert after(fold(state, JobHeld(job.name, "me", "r")), for_s=GROW_S)[0].new == 0


def test_a_job_that_can_shrink_makes_room_and_one_that_may_not_be_preempted_does_not() -> None:
    for kind, new in ((WorkloadClass.PREEMPTIBLE, 0), (WorkloadClass.NON_PREEMPTIBLE, 1)):
        job = a_job(workers_min=1, workers_max=4, workload_class=kind)
        state = with_job(two_nodes(slots_per_replica=1), job, (*slots(2), *slots(2, "n1")))
        assert after(state, {CHAT: 2}, for_s=GROW_S)[0].new == new


SEMI = WorkloadClass.SEMI_PREEMPTIBLE
HAVE_GIVEN = {"max_preemptions_per_h": 1, "min_runtime_s": 3600.0}


@pytest.mark.parametrize(
    ("changes", "new"),
    [
        ({"workload_class": SEMI}, 1),
        ({"workload_class": WorkloadClass.NON_PREEMPTIBLE}, 1),
        ({"max_preemptions_per_h": 0}, 1),
        ({}, 0),
        (HAVE_GIVEN, 0),  # in an hour at the latest it gives its slot: no node would go again by then
    ],
)
def test_a_replica_that_no_node_can_take_calls_for_one(changes: dict[str, object], new: int) -> None:
    """Two nodes of two slots, each with a job of one worker, and a replica of two slots."""
    state = two_nodes(slots_per_replica=2)
    for node in ("n0", "n1"):
        state = with_job(state, a_job(f"on-{node}", workers_max=1, **changes), slots(1, node), at_s=NOW - 60.0)
    assert after(state, {CHAT: 1}, for_s=10 * GROW_S)[0].new == new
    assert after(state, {CHAT: 0}, for_s=10 * GROW_S)[0].new == 0


def test_a_job_keeps_its_minimum_once_where_it_is_or_elsewhere() -> None:
    """Of four workers on two nodes two stay, on one node or on both: a replica gets one of the nodes, not each."""
    job = a_job(workers_min=2, workers_max=4, workload_class=SEMI)
    state = with_job(two_nodes(slots_per_replica=2), job, (*slots(2), *slots(2, "n1")))
    assert after(state, {CHAT: 1}, for_s=GROW_S)[0].new == 0
    assert after(state, {CHAT: 2}, for_s=GROW_S)[0].new == 1
    three = with_job(two_nodes(slots_per_replica=2), replace(job, workers_min=3), (*slots(2), *slots(1, "n1")))
    assert after(three, {CHAT: 1}, for_s=GROW_S)[0].new == 1


def test_a_job_that_leaves_or_has_to_keeps_no_slot() -> None:
    job = a_job(workers_max=1, workload_class=WorkloadClass.NON_PREEMPTIBLE)
    state = with_job(a_pool(nodes={"n0": 2}, endpoints=(an_endpoint(slots_per_replica=2),)), job, slots(1))
    assert after(state, {CHAT: 1}, for_s=GROW_S)[0].new == 1
    assert after(fold(state, JobHeld(job.name, "me", "r")), {CHAT: 1}, for_s=GROW_S)[0].new == 0
    assert after(fold(state, NodeDraining(N0, "new disk")), for_s=GROW_S)[0].new == 1, "it goes on elsewhere"


def test_what_a_team_may_not_have_is_not_bought_for_it() -> None:
    state = fold(two_nodes(), JobSubmitted(a_job(workers_min=6, workers_max=6), "i"))
    limited = replace(CONFIG, teams=(Team("t", quota=4),))
    assert after(state, for_s=GROW_S, config=limited)[0].new == 0
    assert after(state, for_s=GROW_S)[0].new == 1


@pytest.mark.proves("no node is asked for beyond nodes_max")
def test_the_bound_is_named_where_it_holds_nodes_back() -> None:
    wish, _ = after(two_nodes(slots_per_replica=2), {CHAT: 9}, for_s=GROW_S)
    assert wish.nodes == 4 and "2 more asked for of 7 needed, nodes_max is 4" in wish.reason


def test_a_node_that_has_just_come_is_counted_before_its_slots_are_ready() -> None:
    """Else it would be asked for again while its agent starts, and while its slots are being fenced."""
    state = two_nodes(slots_per_replica=2)
    wish, memory = after(state, {CHAT: 3}, for_s=GROW_S)
    assert wish.new == 1
    state = fold(state, NodeFound(N2, 0))
    wish, memory = after(state, {CHAT: 3}, for_s=2 * GROW_S, memory=memory, now_s=NOW + GROW_S)
    assert (wish.nodes, wish.new) == (3, 0)
    state = fold(a_pool(nodes={"n0": 2, "n1": 2, "n2": 2}), *(SlotUnfenced(slot) for slot in slots(2, "n2")))
    wish, _ = after(state, {CHAT: 6}, for_s=2 * GROW_S, memory=memory, now_s=NOW + GROW_S)
    assert (wish.nodes, wish.new) == (3, 0)


def test_a_slot_that_a_stranger_has_is_no_room() -> None:
    state = two_nodes(slots_per_replica=2)
    state = fold(state, SlotUnfenced(slots(1)[0]), SlotForeign(slots(1)[0], "somebody"))
    assert after(state, {CHAT: 2}, for_s=GROW_S)[0].new == 1


def test_what_was_asked_for_is_asked_for_until_it_has_not_been_needed_for_long() -> None:
    state = two_nodes(slots_per_replica=2)
    _, memory = after(state, {CHAT: 4}, for_s=GROW_S)
    wish, memory = after(state, {}, for_s=IDLE_S - 1, memory=memory, now_s=NOW + GROW_S)
    assert (wish.nodes, wish.new) == (4, 2)
    wish, _ = cluster_size(NOW + GROW_S + IDLE_S, state, {}, frozenset(), memory, CONFIG)
    assert (wish.nodes, wish.new) == (2, 0)


def test_below_the_least_number_nodes_are_asked_for_at_once() -> None:
    wish, _ = after(PoolState(), config=replace(CONFIG, nodes_min=2))
    assert (wish.nodes, wish.new) == (2, 2)
    assert wish.reason.startswith("0 nodes of 2..4: 2 more asked for, by nodes_min")


@pytest.mark.proves("no node goes below nodes_min")
def test_an_empty_node_goes_after_its_time_and_never_the_last_one() -> None:
    state = two_nodes()
    assert after(state, for_s=IDLE_S - 1)[0].going == ()
    wish, _ = after(state, for_s=IDLE_S)
    assert (wish.nodes, wish.going) == (1, (N0,))
    assert wish.reason == "2 nodes of 1..4: n0 had nobody for 600 s, and all that is wanted fits without"
    assert after(state, for_s=IDLE_S, config=replace(CONFIG, nodes_min=2))[0].going == ()


def test_a_node_that_somebody_started_by_hand_stays() -> None:
    assert after(two_nodes(), for_s=IDLE_S, removable=frozenset())[0].going == ()
    assert after(two_nodes(), for_s=IDLE_S, removable=frozenset({N1}))[0].going == (N1,)


@pytest.mark.proves("a node with an occupant never goes")
def test_an_empty_node_that_somebody_waits_for_stays() -> None:
    state = with_job(two_nodes(), a_job(workers_min=2, workers_max=2), slots(2))
    assert after(state, for_s=IDLE_S)[0].going == (N1,)
    assert after(state, {CHAT: 1}, for_s=IDLE_S)[0].going == ()
    assert after(state, for_s=IDLE_S, config=replace(CONFIG, reserve=1))[0].going == ()


def test_a_node_that_was_to_go_is_taken_back_before_one_is_started() -> None:
    state = fold(two_nodes(slots_per_replica=2), NodeDraining(N1, f"{UNNEEDED}r"))
    assert after(state, {CHAT: 1})[0].back == ()
    wish, memory = after(state, {CHAT: 2})
    assert (wish.nodes, wish.new, wish.back) == (2, 0, (N1,)), "at once: it costs nothing"
    wish, _ = after(fold(state, NodeUndrained(N1)), {CHAT: 3}, for_s=GROW_S, memory=memory)
    assert (wish.nodes, wish.new, wish.back) == (3, 1, ())


def test_a_node_that_a_person_drains_is_replaced_and_left_to_the_person() -> None:
    state = with_ready(two_nodes(slots_per_replica=2), seat_id(CHAT, 0), slots(2))
    state = fold(state, NodeDraining(N0, "new disk"))
    wish, _ = after(state, {CHAT: 2}, for_s=GROW_S)
    assert (wish.nodes, wish.back, wish.going) == (3, (), ())


def test_a_node_that_went_is_not_asked_for_again() -> None:
    state = two_nodes()
    wish, memory = after(state, for_s=IDLE_S)
    assert wish.going == (N0,)
    drained = fold(state, NodeDraining(N0, f"{UNNEEDED}r"))
    wish, memory = after(drained, for_s=IDLE_S, memory=memory, now_s=NOW + IDLE_S)
    assert (wish.nodes, wish.new, wish.going) == (1, 0, ())
    wish, _ = after(a_pool(nodes={"n1": 2}), for_s=IDLE_S, memory=memory, now_s=NOW + 2 * IDLE_S)
    assert (wish.nodes, wish.new, wish.going) == (1, 0, ())


# ---- of every pool


@st.composite
def pools(draw: st.DrawFn) -> tuple[PoolState, dict[EndpointName, int]]:
    """Some nodes with some replicas and a job, jobs that wait, nodes that drain, and what endpoints aim at."""
    sizes = {f"n{number}": draw(st.integers(1, 4)) for number in range(draw(st.integers(0, 3)))}
    endpoints = tuple(
        an_endpoint(f"e{number}", replicas_max=8, slots_per_replica=draw(st.integers(1, 3))) for number in range(2)
    )
    state = a_pool(nodes=sizes, endpoints=endpoints) if sizes else fold(PoolState(), *())
    aims = {spec.name: draw(st.integers(0, 4)) for spec in endpoints} if sizes else {}
    for spec in endpoints if sizes else ():
        node = draw(st.sampled_from(sorted(sizes)))
        here = tuple(slot for slot in state.free_slots() if slot.startswith(node))
        if len(here) >= spec.slots_per_replica and draw(st.booleans()):
            state = with_ready(state, seat_id(spec.name, 0), here[: spec.slots_per_replica])
    free = state.free_slots()
    if draw(st.booleans()) and free:
        kind = draw(st.sampled_from(WorkloadClass))
        gang = free[: draw(st.integers(1, len(free)))]
        least, times = draw(st.integers(1, len(gang))), draw(st.sampled_from([0, 1000]))
        bounds = {"workers_min": least, "workers_max": len(gang), "max_preemptions_per_h": times}
        state = with_job(state, a_job("runs", workload_class=kind, **bounds), gang)
    if draw(st.booleans()):
        least = draw(st.integers(1, 6))
        state = fold(state, JobSubmitted(a_job("waits", workers_min=least, workers_max=6), "i"))
    for node in draw(st.sets(st.sampled_from(sorted(sizes)))) if sizes else ():
        state = fold(state, NodeDraining(NodeId(node), draw(st.sampled_from(["a disk", f"{UNNEEDED}r"]))))
    return state, aims


def configs() -> st.SearchStrategy[SizeConfig]:
    return st.builds(
        lambda least, more, node_slots, reserve: SizeConfig(
            nodes_min=least, nodes_max=least + more, node_slots=node_slots, reserve=reserve
        ),
        st.integers(0, 3),
        st.integers(0, 4),
        st.integers(1, 4),
        st.integers(0, 2),
    )


def lasting(state: PoolState, aims: Aims, config: SizeConfig) -> list[DesiredSize]:
    """The wishes of an hour and a half in which nothing changes."""
    memory, found = SizeMemory(), []
    for minute in range(90):
        wish, memory = cluster_size(NOW + 60.0 * minute, state, aims, frozenset(state.nodes), memory, config)
        found.append(wish)
    return found


@settings(max_examples=examples(150), deadline=None, database=None, derandomize=True)
@given(pools(), configs())
def test_no_wish_is_outside_the_bounds_and_none_takes_away_who_is_there(
    pool: tuple[PoolState, dict[EndpointName, int]], config: SizeConfig
) -> None:
    state, aims = pool
    for wish in lasting(state, aims, config):
        assert config.nodes_min <= wish.nodes <= config.nodes_max
        assert not wish.new or not wish.going
        assert not any(occupants(state, node) or node in state.draining for node in wish.going)
        staying = [node for node in state.nodes if not state.draining.get(node, "").startswith(UNNEEDED)]
        assert not wish.going or len(staying) - len(wish.going) >= config.nodes_min
        assert str(config.nodes_max) in wish.reason


@settings(max_examples=examples(150), deadline=None, database=None, derandomize=True)
@given(pools(), configs())
def test_what_goes_is_needed_by_nobody(pool: tuple[PoolState, dict[EndpointName, int]], config: SizeConfig) -> None:
    """Once it is gone and nothing else has changed, nothing is asked for and nothing called back."""
    state, aims = pool
    last = lasting(state, aims, config)[-1]
    for node in last.going:
        state = fold(state, NodeDraining(node, f"{UNNEEDED}r"))
    if last.going:
        for wish in lasting(state, aims, config):
            assert (wish.new, wish.back) == (0, ())


@settings(max_examples=examples(150), deadline=None, database=None, derandomize=True)
@given(pools(), configs())
def test_a_pool_in_which_nothing_changes_gets_a_wish_that_stays(
    pool: tuple[PoolState, dict[EndpointName, int]], config: SizeConfig
) -> None:
    state, aims = pool
    numbers = [wish.nodes for wish in lasting(state, aims, config)]
    changes = [(before, now) for before, now in pairwise(numbers) if before != now]
    assert len(changes) <= 1, numbers


@settings(max_examples=examples(150), deadline=None, database=None, derandomize=True)
@given(pools(), configs(), st.integers(1, 4), st.integers(0, 2))
def test_more_lack_never_gives_fewer_nodes(
    pool: tuple[PoolState, dict[EndpointName, int]], config: SizeConfig, replicas: int, which: int
) -> None:
    state, aims = pool
    if which < 2 and aims:
        more = dict(aims)
        more[EndpointName(f"e{which}")] += replicas
        after_it = lasting(state, more, config)
    else:
        job = JobSubmitted(a_job("another", workers_min=replicas, workers_max=replicas), "i")
        after_it = lasting(fold(state, job), aims, config)
    for before, now in zip(lasting(state, aims, config), after_it, strict=True):
        assert now.nodes >= before.nodes


@st.composite
def with_jobs_everywhere(draw: st.DrawFn) -> PoolState:
    """Up to three nodes with jobs of all kinds, none of which wants more; few slots are free."""
    sizes = {f"n{number}": draw(st.integers(2, 4)) for number in range(draw(st.integers(1, 3)))}
    state = a_pool(nodes=sizes, endpoints=(an_endpoint(slots_per_replica=draw(st.integers(1, 3))),))
    free = draw(st.permutations([slot for node, count in sizes.items() for slot in slots(count, node)]))
    while len(free) > draw(st.integers(0, 2)):
        gang, free = free[: (many := draw(st.integers(1, 3)))], free[many:]
        spec = a_job(
            f"j{len(free)}",
            workers_min=draw(st.integers(1, len(gang))),
            workers_max=len(gang),
            workload_class=draw(st.sampled_from(WorkloadClass)),
            max_preemptions_per_h=draw(st.sampled_from([0, 1000])),
        )
        state = with_job(state, spec, tuple(gang))
    return state


def stays(job: JobRecord) -> int:
    """How many of its slots a job never gives."""
    always = not job.spec.max_preemptions_per_h or job.spec.workload_class is WorkloadClass.NON_PREEMPTIBLE
    return len(job.gang) if always else job.spec.workers_min if job.spec.workload_class is SEMI else 0


@settings(max_examples=examples(300), deadline=None, database=None, derandomize=True)
@given(with_jobs_everywhere())
def test_a_replica_gets_a_node_where_no_node_can_come_to_have_its_slots(state: PoolState) -> None:
    """Or where all of them are too few; not where the policy places it at once."""
    count, most = state.endpoints[CHAT].spec.slots_per_replica, dict[NodeId, int]()
    for node in state.nodes:
        here = {name: sum(node_of(slot) == node for slot in job.gang) for name, job in state.jobs.items()}
        left = (max(0, here[name] - (len(job.gang) - stays(job))) for name, job in state.jobs.items())
        most[node] = sum(record.slot.node == node for record in state.slots.values()) - sum(left)
    needed = count + sum(max(job.spec.workers_min, stays(job)) for job in state.jobs.values())
    wish, _ = after(state, {CHAT: 1}, for_s=GROW_S, config=replace(CONFIG, node_slots=4))
    assert wish.new == (max(most.values()) < count or needed > len(state.slots))

    asks = Snapshot(state, {CHAT: signals(held=1, last_arrival_s=NOW + HOUR_S)})
    found, _ = decide(NOW + HOUR_S, asks, Memory(), PolicyConfig(up_after_s=0.0))
    assert not wish.new or not any(isinstance(move, GrantSeat) for move in found.moves)


@pytest.mark.parametrize("flaps", [2, 20])
def test_traffic_that_comes_and_goes_within_the_waits_moves_no_node(flaps: int) -> None:
    """A replica more for 20 s of each minute: no node is asked for. Twice as long: one is, and it stays."""
    state, memory, seen = two_nodes(slots_per_replica=2), SizeMemory(), set()
    for second in range(60 * flaps):
        aims = {CHAT: 3 if second % 60 < 20 else 1}
        wish, memory = cluster_size(NOW + second, state, aims, frozenset(), memory, CONFIG)
        seen.add(wish.nodes)
    assert seen == {2}
    numbers = []
    for second in range(60 * flaps):
        aims = {CHAT: 3 if second % 60 < 40 else 1}
        wish, memory = cluster_size(NOW + second, state, aims, frozenset(), memory, CONFIG)
        numbers.append(wish.nodes)
    assert numbers == sorted(numbers) and numbers[-1] == 3
