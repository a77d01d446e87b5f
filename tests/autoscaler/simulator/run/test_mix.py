"""What jobs are like: as many of each kind as the file says, the same for everybody, and their work unchanged."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.pool.spec import WorkloadClass
from ebbtide_simulator.run.mix import ALIKE, Mix, cast
from ebbtide_simulator.traffic.draws import Job

MIX = Mix(elastic=0.2, semi_preemptible=0.5, non_preemptible=0.05, priorities={0: 0.7, 1: 0.2, 5: 0.1})
COUNT = 20_000
PREEMPTIBLE, SEMI, NON = (
    WorkloadClass.PREEMPTIBLE,
    WorkloadClass.SEMI_PREEMPTIBLE,
    WorkloadClass.NON_PREEMPTIBLE,
)


def rigid(count: int, gpus: int = 1) -> tuple[Job, ...]:
    return tuple(Job(float(n), gpus, gpus, 600.0 * gpus) for n in range(count))


def kinds(jobs: tuple[Job, ...]) -> list[tuple[int, int, WorkloadClass, int]]:
    return [(one.workers_min, one.workers_max, one.spec.workload_class, one.spec.priority) for one in jobs if one.spec]


def test_there_are_as_many_of_each_kind_as_the_file_says() -> None:
    found = kinds(cast(rigid(COUNT), MIX, 3, gpus_max=16))
    assert len(found) == COUNT
    elastic = [one for one in found if one[1] > one[0]]
    fixed = [one for one in found if one[1] == one[0]]
    assert len(elastic) / COUNT == pytest.approx(0.2, abs=0.01)
    assert {one[:2] for one in elastic} == {(1, 2)}
    assert sum(one[2] is SEMI for one in elastic) / len(elastic) == pytest.approx(0.5, abs=0.02)
    assert sum(one[2] is NON for one in fixed) / len(fixed) == pytest.approx(0.05, abs=0.01)
    assert not any(one[2] is NON for one in elastic) and not any(one[2] is SEMI for one in fixed)
    ranks = Counter(one[3] for one in found)
    assert {rank: ranks[rank] / COUNT for rank in ranks} == pytest.approx(MIX.priorities, abs=0.01)


def test_a_seed_draws_the_same_and_another_one_draws_others() -> None:
    jobs = rigid(200)
    assert cast(jobs, MIX, 1, gpus_max=16) == cast(jobs, MIX, 1, gpus_max=16)
    assert kinds(cast(jobs, MIX, 1, gpus_max=16)) != kinds(cast(jobs, MIX, 2, gpus_max=16))


def test_what_a_job_is_like_does_not_depend_on_who_comes_after_it() -> None:
    assert cast(rigid(50), MIX, 1, gpus_max=16) == cast(rigid(200), MIX, 1, gpus_max=16)[:50]


def test_where_nothing_is_said_all_are_as_they_were() -> None:
    jobs = rigid(5)
    assert cast(jobs, ALIKE, 1, gpus_max=16) == jobs
    assert all(one.spec is None for one in jobs)


@given(
    st.lists(st.integers(1, 16), min_size=1, max_size=40),
    st.floats(0, 1),
    st.floats(1.1, 8.0),
    st.integers(16, 24),
    st.integers(0, 100),
)
def test_work_is_the_same_and_no_gang_is_larger_than_may_be(
    sizes: list[int], elastic: float, times: float, gpus_max: int, seed: int
) -> None:
    jobs = tuple(Job(float(n), size, size, 60.0 * size) for n, size in enumerate(sizes))
    mix = replace(MIX, elastic=elastic, elastic_times=times)
    for was, now in zip(jobs, cast(jobs, mix, seed, gpus_max=gpus_max), strict=True):
        assert (now.submit_s, now.work_s, now.workers_min) == (was.submit_s, was.work_s, was.workers_min)
        assert now.workers_min <= now.workers_max <= max(was.workers_max, min(gpus_max, times * was.workers_min))
        assert now.spec is not None
        assert (now.spec.workers_min, now.spec.workers_max) == (now.workers_min, now.workers_max)
        assert (now.spec.workload_class is SEMI) <= (now.workers_max > now.workers_min), "else it could never shrink"
