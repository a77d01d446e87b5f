"""Looking only at what changed finds just what looking at everything finds."""

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.ids import Epoch, SlotId
from ebbtide.pool.rules.promises import violations, violations_since
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from tests.autoscaler.closed_loop import Loop, a_job, an_endpoint


def history() -> list[PoolState]:
    """The states of a pool through tides, a lost rank and a park that turns into a restart."""
    loop = Loop(9, nodes={"n0": 2, "n1": 2}, endpoints=(an_endpoint("chat"), an_endpoint("big", slots_per_replica=2)))
    loop.run(3.0)
    driver = loop.submit(a_job(workers_max=4))
    loop.submit(a_job("other"))
    loop.run(10.0)
    loop.gateways[0].rates |= {"chat": 1.0, "big": 0.5}
    loop.run(30.0)
    if driver.gang is not None:
        loop.cluster.machines.kill(driver.gang.ranks[0].process)
    loop.run(20.0)
    loop.gateways[0].rates |= {"chat": 0.0, "big": 0.0}
    loop.run(30.0)
    states = [PoolState()]
    for event in loop.events:
        states.append(apply(states[-1], event))
    return states


HISTORY = history()


def test_nothing_is_found_along_a_history_without_mistakes() -> None:
    assert len(HISTORY) > 60
    for before, state in pairwise(HISTORY):
        assert violations_since(before, state) == violations(state) == []


def spoil(state: PoolState, random: Random) -> PoolState:
    """One record changed as no event would."""
    kind = random.choice(["slot", "slot", "job", "seat", "gone", "forgotten"])
    tables = {"slot": state.slots, "forgotten": state.slots, "job": state.jobs, "seat": state.seats, "gone": state.jobs}
    table: Any = tables[kind]
    if not table:
        return state
    name = random.choice(sorted(table))
    record = table[name]
    if kind == "gone":
        return replace(state, jobs={other: job for other, job in state.jobs.items() if other != name})
    if kind == "forgotten":
        return replace(state, slots={other: slot for other, slot in state.slots.items() if other != name})
    slots = sorted(state.slots)
    others: list[Any] = [*state.jobs, *state.seats, None]
    epochs = [Epoch(random.randrange(state.next_epoch + 1)), record.epoch]
    if kind == "slot":
        changes: dict[str, Any] = random.choice(
            [
                {"state": random.choice(list(SlotState))},
                {"occupant": random.choice(others)},
                {"epoch": epochs[0]},
                {"state": random.choice(list(SlotState)), "occupant": random.choice(others), "epoch": epochs[0]},
            ]
        )
        return replace(state, slots={**state.slots, name: replace(record, **changes)})
    picked = tuple(random.sample(slots, random.randrange(min(3, len(slots)) + 1)))
    if kind == "job":
        changes = random.choice(
            [
                {"state": random.choice(list(JobState))},
                {"gang": picked},
                {"epoch": epochs[0]},
                {"durable_step": record.step + random.randrange(2)},
                {"state": JobState.PARKED, "gang": tuple(SlotId(s) for s in slots)},
                {"spec": replace(record.spec, host_bytes_per_worker=600), "state": JobState.PARKING},
            ]
        )
        return replace(state, jobs={**state.jobs, name: replace(record, **changes)})
    changes = random.choice([{"state": random.choice(list(SeatState))}, {"slots": picked}, {"epoch": epochs[0]}])
    return replace(state, seats={**state.seats, name: replace(record, **changes)})


@pytest.mark.parametrize("seed", range(8))
def test_every_mistake_in_one_record_is_found(seed: int) -> None:
    random = Random(seed)
    found = 0
    for _ in range(400):
        before = random.choice(HISTORY[10:])
        state = spoil(before, random)
        everything = violations(state)
        assert bool(violations_since(before, state)) == bool(everything), everything
        found += bool(everything)
    assert found > 100
