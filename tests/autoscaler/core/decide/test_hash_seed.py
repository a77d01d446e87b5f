"""Decisions are the same in every process: in a set of names the order is another one with each hash seed."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from ebbtide.pool.ids import EndpointName, seat_id
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.plan.inputs import EndpointMemory, Memory, Snapshot
from tests.autoscaler.closed_loop import a_job, an_endpoint
from tests.autoscaler.streams import digest
from tests.builders.policy import CONFIG, NOW, a_pool, at_work, slots, with_job, with_ready

SLOTS_EACH = {EndpointName("a"): 1, EndpointName("b"): 2, EndpointName("c"): 4}
COUNT = 400  # so many that one of them was another with another seed while a set of names was gone through


def crowded(random: Random) -> tuple[PoolState, Memory]:
    """Replicas of several sizes and gangs across nodes, with hardly a free slot."""
    nodes = {f"n{number}": 8 for number in range(random.choice([2, 3, 4]))}
    endpoints = (
        an_endpoint(
            name, replicas_max=64, min_uptime_factor=0.0, slots_per_replica=each, priority=random.choice([5, 10])
        )
        for name, each in SLOTS_EACH.items()
    )
    state = a_pool(nodes=nodes, endpoints=tuple(endpoints))
    free = {node: list(slots(count, node)) for node, count in nodes.items()}
    replicas = dict.fromkeys(SLOTS_EACH, 0)
    for here in free.values():
        while here and random.random() < 0.93:
            name = random.choice([*SLOTS_EACH, None, None, None])
            if name is None:
                there = free[random.choice(list(nodes))]
                gang = [here.pop() for _ in range(min(len(here), random.choice([1, 2, 4, 8])))]
                gang += [there.pop() for _ in range(min(len(there), random.choice([0, 0, 2])))]
                least = random.choice([len(gang), max(1, len(gang) // 2)])
                kind = random.choice([WorkloadClass.PREEMPTIBLE, WorkloadClass.SEMI_PREEMPTIBLE])
                job = f"job-{len(state.jobs)}"
                spec = a_job(job, workers_min=least, workers_max=len(gang), workload_class=kind)
                state = with_job(state, spec, tuple(gang), at_s=1000.0 + random.random())
            elif len(here) >= SLOTS_EACH[name]:
                place = tuple(here.pop() for _ in range(SLOTS_EACH[name]))
                state = with_ready(state, seat_id(name, replicas[name]), tuple(sorted(place)))
                replicas[name] += 1
    aims = {
        name: EndpointMemory(aim=count + random.choice([0, 1, 3]), strained_at_s=NOW - 1e4)
        for name, count in replicas.items()
    }
    return state, Memory(aims)


def digests() -> list[str]:
    """Of many decisions, with all that is said."""
    found = []
    for seed in range(COUNT):
        random = Random(seed)
        state, memory = crowded(random)
        traffic = {name: at_work(random.choice([0.5, 1, 2, 3, 5, 8])) for name in SLOTS_EACH}
        decision, after = decide(NOW, Snapshot(state, traffic), memory, CONFIG)
        told = repr((decision.moves, list(decision.waits), after))
        found.append(hashlib.sha256(told.encode()).hexdigest())
    return found


def said_with(hash_seed: str, code: str) -> list[str]:
    """The lines that ``code`` prints in a process with this hash seed."""
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.splitlines()


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_decision_is_the_same_with_every_hash_seed(hash_seed: str) -> None:
    program = f"from {__name__} import digests; print(*digests(), sep='\\n')"
    theirs = said_with(hash_seed, program)
    differ = [seed for seed, (mine, other) in enumerate(zip(digests(), theirs, strict=True)) if mine != other]
    assert differ == []


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_simulated_arbiter_lives_the_same_life_with_every_hash_seed(hash_seed: str) -> None:
    """A seed that has found a fault must find it again: a gateway of the simulation once told of endpoints as a set."""
    code = "from tests.autoscaler.streams import digest; print(digest(80), digest(7), sep='\\n')"
    assert said_with(hash_seed, code) == [digest(80), digest(7)]
