"""Free slots as a decision hands them out: exactly what looking at the whole pool each time would pick."""

from collections import defaultdict
from dataclasses import replace
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.large_pool import NOW_S, large_pool, with_demand
from ebbtide.pool.events import GrantSeat
from ebbtide.pool.ids import NodeId, SlotId
from ebbtide.pool.lookup.index import awaited_slots, nodes_with
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import SlotState
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.observe.traffic import traffic
from ebbtide_autoscaler.core.plan import free_slots as module
from ebbtide_autoscaler.core.plan.free_slots import FreeSlots
from ebbtide_autoscaler.core.plan.inputs import PolicyConfig, Snapshot
from ebbtide_autoscaler.core.plan.placement import askable, lendable, may_lose, pack, placing_nodes
from tests.autoscaler.closed_loop import a_job
from tests.builders.policy import S0, S1, TRAIN, a_pool, with_job

LARGE = large_pool(128).world.state
STATES = (SlotState.FREE, SlotState.LEASED, SlotState.RECLAIMING, SlotState.OPENING, SlotState.LOST)


def naive_for_replica(state: PoolState, free: list[SlotId], count: int, busy: set[NodeId]) -> tuple[SlotId, ...]:
    by_node: dict[NodeId, list[SlotId]] = defaultdict(list)
    for slot in free:
        by_node[state.slots[slot].slot.node].append(slot)
    fitting = [slots for node, slots in by_node.items() if node not in busy and len(slots) >= count]
    by_slot = awaited_slots(state.jobs)
    if not fitting:
        return ()
    if not by_slot:
        return tuple(min(fitting, key=len)[:count])

    def claimed(slot: SlotId) -> int:
        return len(by_slot.get(slot, ()))

    def disturbs(slots: list[SlotId]) -> tuple[int, int]:
        return sum(sorted(claimed(slot) for slot in slots)[:count]), len(slots)

    best = min(fitting, key=disturbs)
    return tuple(sorted(best, key=lambda slot: (claimed(slot), slot))[:count])


def naive_nearest(state: PoolState, free: list[SlotId], count: int) -> tuple[NodeId, tuple[SlotId, ...]] | None:
    by_node: dict[NodeId, list[SlotId]] = {node: [] for node in state.nodes if node not in state.draining}
    for slot in free:
        by_node[state.slots[slot].slot.node].append(slot)
    leaving, may_leave = nodes_with(state.slots, SlotState.RECLAIMING), lendable(state)

    def could_be(node: NodeId) -> int:
        return len(by_node[node]) + leaving.get(node, 0) + may_leave.get(node, 0)

    fitting = [node for node in by_node if count == 1 or could_be(node) >= count]
    if not fitting:
        return None

    asked = askable(NOW_S, state)

    def lacks(node: NodeId) -> tuple[bool, bool, int, int, NodeId]:
        here = len(by_node[node])
        soon = here + leaving.get(node, 0)
        return here < count, count > 1 and here < count and soon + asked.get(node, 0) < count, -soon, -here, node

    best = min(fitting, key=lacks)
    return best, tuple(by_node[best])


def shuffled(seed: int, *, parked: bool) -> PoolState:
    """A pool in which slots are in any state; only what placement looks at is meant to be possible."""
    random = Random(seed)
    weights = [random.random() for _ in STATES]
    slots = {
        name: replace(record, state=random.choices(STATES, weights)[0], occupant=None)
        for name, record in LARGE.slots.items()
    }
    draining = {node: "mended" for node in LARGE.nodes if random.random() < 0.1}
    return replace(LARGE, slots=slots, draining=draining, jobs=LARGE.jobs if parked else {})


@given(
    seed=st.integers(0, 2**32),
    parked=st.booleans(),
    but=st.sets(st.integers(0, 40), max_size=9),
    asked=st.lists(
        st.tuples(st.sampled_from(["replica", "gang", "lack", "take", "fits"]), st.integers(1, 5)), max_size=40
    ),
)
def test_it_picks_what_looking_at_all_of_them_each_time_picks(
    seed: int, parked: bool, but: set[int], asked: list[tuple[str, int]]
) -> None:
    state, random = shuffled(seed, parked=parked), Random(seed)
    free, busy = list(state.free_slots()), set(placing_nodes(state))
    without = {slot for place, slot in enumerate(free) if place in but}
    quick, free = FreeSlots(NOW_S, state, without), [slot for slot in free if slot not in without]
    assert list(quick) == free and len(quick) == len(free)
    for what, count in asked:
        taken: tuple[SlotId, ...] = ()
        if what == "replica":
            taken = quick.for_replica(count)
            assert taken == naive_for_replica(state, free, count, busy)
            quick.place(taken)
            busy |= {state.slots[slot].slot.node for slot in taken}
        elif what == "gang":
            taken = quick.for_gang(4 * count)
            assert taken == pack(state, free, 4 * count)
            quick.take(taken)
        elif what == "lack":
            found = quick.nearest(count)
            assert found == naive_nearest(state, free, count)
            taken = found[1][:count] if found else ()
            quick.take(taken)
        elif what == "take":  # some may be anything but free
            taken = tuple(random.sample(sorted(state.slots), count))
            assert quick.has(taken) == (set(taken) <= set(free))
            quick.take(taken)
        else:
            assert quick.fits(count) == bool(naive_for_replica(state, free, count, set()))
        free = [slot for slot in free if slot not in taken]
        assert list(quick) == free and len(quick) == len(free)
        assert quick.by_node() == {node: len(quick.on(node)) for node in {state.slots[s].slot.node for s in free}}


def test_a_slot_that_the_pool_does_not_know_is_not_free() -> None:
    assert not FreeSlots(NOW_S, LARGE).has([SlotId("nowhere/0")])


def looks(slots: int) -> tuple[int, int]:
    """Replicas placed by one decision in a surge, and how often it put a node in order."""
    pool = large_pool(slots)
    state, seen = pool.world.state, with_demand(pool, Random(1), 1.0)
    counted = 0
    before = module._Order.__init__

    def counting(self: module._Order, nodes: object, rank: module.Rank) -> None:
        def ranked(node: NodeId) -> object:
            nonlocal counted
            counted += 1
            return rank(node)

        before(self, nodes, ranked)  # type: ignore[arg-type]

    with patch.object(module._Order, "__init__", counting):
        decision, _ = decide(
            NOW_S, Snapshot(state, traffic(state, seen, NOW_S)), pool.world.memory, PolicyConfig(forecast_share=0.0)
        )
    return sum(isinstance(move, GrantSeat) for move in decision.moves), counted


@pytest.mark.parametrize(("small", "large"), [(800, 3_200)])
def test_four_times_the_pool_and_the_replicas_cost_four_times_the_looks(small: int, large: int) -> None:
    few, looks_of_few = looks(small)
    many, looks_of_many = looks(large)
    assert many >= 3 * few > 0
    assert looks_of_many <= 1.3 * (large / small) * looks_of_few


@pytest.mark.proves(
    "a non-preemptible job is not counted upon",
    "a semi-preemptible job is counted upon only above its minimum",
)
def test_a_job_is_counted_upon_for_as_much_as_its_class_lets_go() -> None:
    loses = {WorkloadClass.PREEMPTIBLE: 2, WorkloadClass.SEMI_PREEMPTIBLE: 1, WorkloadClass.NON_PREEMPTIBLE: 0}
    for kind, least in loses.items():
        state = with_job(a_pool(), a_job(workers_min=1, workers_max=2, workload_class=kind), (S0, S1))
        assert may_lose(state.jobs[TRAIN]) == least, kind
