"""A job whose workers can never all have their CPUs is told so before it waits."""

from typing import Any

import pytest

from ebbtide.config.sections.job_section import JobSection
from ebbtide_train.submission.room import cpu_fault, slot_fault


def a_job(workers: int, cpus: float) -> JobSection:
    given = {
        "name": "lm",
        "entrypoint": "a:b",
        "workers": {"min": workers, "max": 8},
        "global_batch": 8,
        "micro_batch": 1,
        "cpus_per_worker": cpus,
    }
    return JobSection.model_validate(given, strict=False)


def a_node(gpus: int, cpus: int, *, alive: bool = True) -> dict[str, Any]:
    return {"Alive": alive, "Resources": {"GPU": float(gpus), "CPU": float(cpus)} if gpus else {"CPU": float(cpus)}}


@pytest.mark.parametrize(
    ("workers", "cpus", "nodes", "fits"),
    [
        (3, 1, [a_node(3, 2)], False),
        (3, 1, [a_node(3, 3)], True),
        (3, 0.5, [a_node(3, 2)], True),
        (3, 0, [a_node(3, 0)], True),
        (1, 4, [a_node(1, 2), a_node(1, 2)], False),  # two halves are no whole
        (2, 2, [a_node(1, 2), a_node(1, 2)], True),
        (2, 2, [a_node(2, 2), a_node(0, 64)], False),  # CPUs of a node without GPUs do not help
        (2, 2, [a_node(2, 2), a_node(2, 64, alive=False)], False),
        (8, 1, [a_node(4, 4)], True),  # four slots lack, which the pool says
        (1, 1, [], True),
        (1, 1, [a_node(0, 1)], True),
    ],
)
def test_only_what_can_never_be_placed_is_refused(
    workers: int, cpus: float, nodes: list[dict[str, Any]], fits: bool
) -> None:
    fault = cpu_fault(a_job(workers, cpus), nodes)
    assert (fault == "") is fits
    assert fits or ("cpus_per_worker" in fault and "num_cpus" in fault and "job lm asks for" in fault)


@pytest.mark.parametrize(
    ("workers", "states", "cluster", "fits"),
    [
        (3, ["free", "leased"], None, False),
        (2, ["free", "leased"], None, True),
        (2, ["free", "lost"], None, False),
        (3, ["free"], {"reason": "may grow"}, True),
        (3, [], None, True),  # it is not known yet what the pool has
    ],
)
def test_a_job_that_is_larger_than_the_pool_is_refused(
    workers: int, states: list[str], cluster: dict[str, str] | None, fits: bool
) -> None:
    status = {"slots": [{"state": state} for state in states], "cluster": cluster}
    fault = slot_fault(a_job(workers, 1), status)
    assert (fault == "") is fits and (fits or f"job lm needs {workers} slots at least" in fault)
    assert slot_fault(a_job(workers, 1), None) == ""
