"""How a job would step aside on all its nodes: never by a way that does not hold on one of them."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.snapshot.tiers import Tier
from ebbtide.snapshot.tiers.step_aside import ASKED, Asks, There, step_aside

GB = 10**9
HERE = There(workers=2, budget_bytes=8 * GB, host_free_bytes=16 * GB)
JOB = Asks(worker_bytes=GB)

places = st.builds(
    partial(There),
    workers=st.integers(1, 8),
    gpus=st.integers(0, 8),
    helper=st.booleans(),
    budget_bytes=st.integers(0, 64 * GB),
    host_free_bytes=st.none() | st.integers(0, 64 * GB),
    rates=st.lists(st.tuples(st.sampled_from(["memcpy_out", "storage_out", "what"]), st.floats(1e5, 1e11))).map(tuple),
)
jobs = st.builds(
    partial(Asks),
    worker_bytes=st.integers(0, 80 * GB),
    in_place=st.booleans(),
    hindered=st.sampled_from(["", "a graph is captured"]),
    unwritten=st.sampled_from(["", "No space left on device"]),
    grace_s=st.floats(0.5, 600.0),
    step_s=st.floats(0.0, 5.0),
    restart_s=st.floats(0.0, 100.0),
    kill_loses_s=st.none() | st.floats(0.0, 1e4),
    expected_s=st.none() | st.floats(0.0, 1e5),
)


@given(jobs, st.lists(places, min_size=1, max_size=3).map(tuple))
def test_it_is_asked_only_for_what_holds_everywhere_and_every_other_tier_says_why_not(
    asks: Asks, there: tuple[There, ...]
) -> None:
    found = step_aside(asks, there)
    order = (found.tier, *found.fallbacks)
    assert order[-1] is Tier.KILL and len(set(order)) == len(order) and set(order) <= set(ASKED)
    assert set(order) | {tier for tier, why in found.rejected if why} == set(Tier)
    assert not set(order) & {tier for tier, _ in found.rejected}
    if Tier.KILL is not found.tier:
        assert found.free_s <= asks.grace_s
    if found.tier is not Tier.EVICT_AND_CUDA:
        assert found.why_not_park and found.why_not_park in found.warning
    if found.parks:
        assert asks.in_place and not asks.hindered and all(one.helper or not one.gpus for one in there)
        assert all(asks.worker_bytes * one.workers <= one.budget_bytes for one in there)
        assert found.tier is Tier.KILL or not found.warning
    assert found.restart_costs_s >= 0 and found.words


@given(jobs, st.lists(places, min_size=1, max_size=2).map(tuple), places)
def test_one_more_node_never_makes_it_leave_sooner_nor_in_a_better_way(
    asks: Asks, there: tuple[There, ...], more: There
) -> None:
    fewer, all_of_them = step_aside(asks, there), step_aside(asks, (*there, more))
    assert set(all_of_them.tiers) <= set(fewer.tiers)
    assert all_of_them.free_s >= fewer.free_s


@given(jobs, places, st.integers(0, 64 * GB))
def test_a_larger_budget_never_makes_it_leave_later(asks: Asks, there: There, more: int) -> None:
    roomier = replace(there, budget_bytes=there.budget_bytes + more, host_free_bytes=None)
    assert step_aside(asks, (roomier,)).free_s <= step_aside(asks, (replace(there, host_free_bytes=None),)).free_s


def test_what_was_measured_is_reckoned_with() -> None:
    slow = replace(HERE, rates=(("memcpy_out", 1e9), ("of another version", 1.0)))
    assert step_aside(JOB, (slow,)).free_s == 2.0  # two workers' 2 GB at 1 GB/s
    assert step_aside(replace(JOB, worker_bytes=GB // 2), (slow,)).free_s == 1.0


def test_parking_that_would_outlast_the_grace_is_passed_over_by_name() -> None:
    slow = replace(HERE, rates=(("memcpy_out", 1e7),))
    found = step_aside(replace(JOB, grace_s=30.0), (slow, HERE))
    assert found.tier is Tier.STOP_AND_RESTART and found.fallbacks == (Tier.KILL,)
    assert "it frees the slots after" in found.why_not_park and "coming back takes about" in found.warning


@pytest.mark.parametrize(
    ("asks", "there", "says"),
    [
        (replace(JOB, in_place=False), HERE, "told not to"),
        (replace(JOB, hindered="rank 1: a CUDA graph is captured"), HERE, "rank 1: a CUDA graph is captured"),
        (JOB, replace(HERE, budget_bytes=GB), "1 GB are left of the budget"),
        (JOB, replace(HERE, host_free_bytes=GB), "1 GB can be taken on this node"),
        (JOB, replace(HERE, gpus=2, budget_bytes=16 * GB), "no helper is there"),
    ],
)
def test_what_keeps_it_from_parking_is_named(asks: Asks, there: There, says: str) -> None:
    found = step_aside(asks, (HERE, there))
    assert found.tier is Tier.STOP_AND_RESTART and says in found.why_not_park and says in found.warning


def test_where_everything_is_too_slow_by_reckoning_a_park_is_tried_and_the_warning_stays() -> None:
    found = step_aside(replace(JOB, grace_s=1.0, step_s=2.0), (HERE,))
    assert found.tier is Tier.KILL and found.parks and "it loses work" in found.warning
    assert not step_aside(replace(JOB, grace_s=1.0, step_s=2.0, hindered="a graph"), (HERE,)).parks


def test_where_only_a_kill_holds_the_warning_says_that_work_is_lost() -> None:
    found = step_aside(replace(JOB, in_place=False, unwritten="Read-only file system"), (HERE,))
    assert found.tier is Tier.KILL and found.fallbacks == ()
    assert "it loses work" in found.warning and "Read-only file system" in dict(found.rejected)[Tier.STOP_AND_RESTART]


def test_a_size_that_a_file_declares_is_said_to_be_a_bound_and_a_measured_one_is_not() -> None:
    here = There(workers=1, budget_bytes=10 * GB)
    declared, measured = step_aside(JOB, (here,)), step_aside(replace(JOB, measured=True), (here,))
    assert "GB go to host memory" in measured.reason and "at most" not in measured.words
    assert (
        declared.reason
        == f"{measured.reason} (at most: by the size that its file declares; its own counts once it runs)"
    )
    killed = step_aside(replace(JOB, in_place=False, unwritten="read-only"), (here,))
    assert killed.tier is Tier.KILL and "at most" not in killed.words
