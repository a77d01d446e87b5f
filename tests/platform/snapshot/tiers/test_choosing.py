"""The choice of a tier: always one, never a rejected one, and more memory never makes it slower."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.snapshot.tiers import Choice, Facts, Hindrance, Lane, Means, Obstacle, Rate, Rates, Tier, Wish, choose
from ebbtide.snapshot.tiers.formatting import gigabytes

GB = 10**9
BLOCKED = Hindrance("it is told not to", "tell it to")

sizes = st.integers(0, 200 * GB)
room = st.none() | sizes
speeds = st.floats(1e6, 1e12, allow_nan=False)
obstacles = st.frozensets(st.sampled_from(Means)).map(lambda means: (Obstacle(means, BLOCKED),) if means else ())
measured = st.dictionaries(st.sampled_from(Lane), speeds.map(lambda speed: Rate(speed, "measured", measured=True)))
facts_of_all_kinds = st.builds(
    Facts,
    tracked_bytes=sizes,
    remainder_bytes=st.integers(0, 10 * GB),
    process_bytes=sizes,
    host_free_bytes=room,
    host_budget_bytes=room,
    disk_free_bytes=room,
    gpus=st.integers(0, 8),
    cooperates=st.booleans(),
    safe_point_s=st.floats(0, 60),
    restart_s=st.floats(0, 600),
    kill_loses_s=st.none() | st.floats(0, 3600),
    rates=st.builds(Rates, measured),
    obstacles=obstacles,
)
wishes = st.builds(
    Wish,
    deadline_s=st.floats(0.1, 3600),
    expected_s=st.none() | st.floats(0, 1e6),
    node_goes=st.booleans(),
    other_workers=st.booleans(),
)


@given(facts_of_all_kinds, wishes)
def test_there_is_always_an_answer_and_it_is_none_of_the_rejected(facts: Facts, wish: Wish) -> None:
    choice = choose(facts, wish)
    standing = [choice.tier, *choice.fallbacks]
    assert sorted([*standing, *choice.hindrances], key=lambda tier: tier.value) == sorted(Tier, key=lambda t: t.value)
    assert standing[-1] is Tier.KILL
    assert list(choice.estimates) == list(Tier)
    assert all(why for _tier, why in choice.rejected)
    assert choice == choose(facts, wish)


@given(facts_of_all_kinds, wishes)
def test_what_is_chosen_can_be_had(facts: Facts, wish: Wish) -> None:
    choice = choose(facts, wish)
    taken = choice.estimates[choice.tier]
    if choice.tier is Tier.KILL:
        assert list(choice.fallbacks) == []
        return
    assert taken.free_s <= wish.deadline_s
    assert taken.ram_bytes == 0 or taken.ram_bytes <= min(
        r for r in (facts.host_free_bytes, facts.host_budget_bytes) if r is not None
    )
    if choice.tier is not Tier.EVICT_AND_CUDA:
        assert taken.disk_bytes <= (facts.disk_free_bytes or 0)
    if wish.node_goes:
        assert choice.tier in (Tier.EVICT_AND_SPILL, Tier.STOP_AND_RESTART, Tier.CRIU_IMAGE)


@given(facts_of_all_kinds, wishes, sizes)
def test_more_memory_never_makes_it_slower(facts: Facts, wish: Wish, more: int) -> None:
    def free_s(found: Facts) -> float:
        choice = choose(found, wish)
        return choice.estimates[choice.tier].free_s

    richer = replace(
        facts,
        host_free_bytes=(facts.host_free_bytes or 0) + more,
        host_budget_bytes=None if facts.host_budget_bytes is None else facts.host_budget_bytes + more,
    )
    assert free_s(richer) <= free_s(facts)


@given(facts_of_all_kinds, wishes, st.sampled_from(Means))
def test_an_obstacle_takes_away_only_what_is_made_of_it(facts: Facts, wish: Wish, means: Means) -> None:
    before = choose(facts, wish)
    after = choose(replace(facts, obstacles=(*facts.obstacles, Obstacle(frozenset({means}), BLOCKED))), wish)
    users = {
        Means.EVICT: {Tier.EVICT_AND_CUDA, Tier.EVICT_AND_SPILL},
        Means.DRIVER: {Tier.EVICT_AND_CUDA, Tier.CUDA_CHECKPOINT, Tier.CRIU_IMAGE, Tier.EVICT_AND_SPILL},
        Means.STORAGE: {Tier.EVICT_AND_SPILL, Tier.STOP_AND_RESTART, Tier.CRIU_IMAGE},
        Means.RESTART: {Tier.EVICT_AND_SPILL, Tier.STOP_AND_RESTART},
        Means.CRIU: {Tier.CRIU_IMAGE},
    }
    assert set(before.hindrances) <= set(after.hindrances)
    assert set(after.hindrances) - set(before.hindrances) <= users[means]


@given(facts_of_all_kinds, wishes)
def test_the_reason_names_its_numbers(facts: Facts, wish: Wish) -> None:
    choice = choose(facts, wish)
    taken = choice.estimates[choice.tier]
    assert taken.way in choice.reason
    if taken.ram_bytes:
        assert f"takes {gigabytes(taken.ram_bytes)} of host memory" in choice.reason
    if choice.tier not in (Tier.KILL, Tier.CRIU_IMAGE, Tier.CUDA_CHECKPOINT):
        assert gigabytes(facts.tracked_bytes) in choice.reason


CPU = Facts(tracked_bytes=2 * GB, host_free_bytes=16 * GB, host_budget_bytes=4 * GB, disk_free_bytes=100 * GB)
H100 = Facts(
    tracked_bytes=60 * GB,
    remainder_bytes=GB,
    host_free_bytes=200 * GB,
    host_budget_bytes=100 * GB,
    disk_free_bytes=1000 * GB,
    gpus=1,
    restart_s=60,
)
NO_DRIVER = (Obstacle(frozenset({Means.DRIVER}), Hindrance("the driver is 550", "install 570")),)


@pytest.mark.parametrize(
    ("facts", "wish", "tier", "reason"),
    [
        (
            CPU,
            Wish(),
            Tier.EVICT_AND_CUDA,
            "2 GB go to host memory at 10 GB/s: the slots are free after 0.2 s, it is back 0.17 s after it gets them "
            "again, it takes 2 GB of host memory of the 4 GB that it may have",
        ),
        (
            H100,
            Wish(),
            Tier.EVICT_AND_CUDA,
            "60 GB go to host memory at 24 GB/s, the driver takes the remaining 1 GB: the slots are free after 2.7 s, "
            "it is back 2.6 s after it gets them again, it takes 61 GB of host memory of the 100 GB that it may have",
        ),
        (
            H100,
            Wish(expected_s=3600),
            Tier.EVICT_AND_SPILL,
            "60 GB go to host memory at 24 GB/s, and from there to the shared directory at 1.5 GB/s: the slots are "
            "free after 2.7 s, it is back 27 s after it gets them again, it takes 61 GB of host memory of the 100 GB "
            "that it may have, and gives it back once written, since it is away for 60 min",
        ),
        (
            replace(H100, host_budget_bytes=32 * GB),
            Wish(deadline_s=60),
            Tier.EVICT_AND_SPILL,
            "60 GB go straight to the shared directory at 1.5 GB/s: the slots are free after 40 s, it is back 27 s "
            "after it gets them again, it takes 1.27 GB of host memory of the 32 GB that it may have",
        ),
        (
            replace(H100, obstacles=NO_DRIVER),
            Wish(),
            Tier.EVICT_AND_SPILL,
            "60 GB go to host memory at 24 GB/s, and from there to the shared directory at 1.5 GB/s; the processes "
            "end: the slots are free after 4.5 s, it is back 87 s after it gets them again, it takes 60 GB of host "
            "memory of the 100 GB that it may have",
        ),
        (
            replace(CPU, host_budget_bytes=0),
            Wish(),
            Tier.STOP_AND_RESTART,
            "a checkpoint of 2 GB is written at 1.5 GB/s, the processes end, and starting them again costs 20 s: "
            "the slots are free after 3.3 s, it is back 21 s after it gets them again",
        ),
        (
            replace(H100, host_budget_bytes=0),
            Wish(),
            Tier.KILL,
            "nothing else holds: it is killed after 30 s, and up to 60 s of work is lost",
        ),
        (
            replace(CPU, cooperates=False, process_bytes=3 * GB, kill_loses_s=None),
            Wish(),
            Tier.CRIU_IMAGE,
            "an image of 3 GB is written at 0.24 GB/s: the slots are free after 12 s, it is back 4.6 s after it gets "
            "them again",
        ),
    ],
    ids=["cpu", "h100", "h100 for long", "little ram", "no driver", "no ram", "nothing holds", "session"],
)
def test_known_cases(facts: Facts, wish: Wish, tier: Tier, reason: str) -> None:
    choice = choose(facts, wish)
    assert (choice.tier, choice.reason) == (tier, reason)


@pytest.mark.parametrize("facts", [CPU, H100, replace(H100, obstacles=NO_DRIVER)])
def test_a_node_that_goes_keeps_nothing(facts: Facts) -> None:
    choice = choose(facts, Wish(node_goes=True, deadline_s=600))
    assert choice.tier is Tier.EVICT_AND_SPILL
    assert not {Tier.EVICT_AND_CUDA, Tier.CUDA_CHECKPOINT} & set(choice.fallbacks)
    assert "; the processes end" in choice.estimates[choice.tier].way
    assert "node that goes" in why_not(choice, Tier.EVICT_AND_CUDA)


def test_another_number_of_workers_begins_anew() -> None:
    choice = choose(CPU, Wish(other_workers=True))
    assert [choice.tier, *choice.fallbacks] == [Tier.EVICT_AND_SPILL, Tier.STOP_AND_RESTART, Tier.KILL]
    assert choice.estimates[choice.tier].resume_s > CPU.restart_s
    assert "same number of workers only" in why_not(choice, Tier.CRIU_IMAGE)


def why_not(choice: Choice, tier: Tier) -> str:
    return dict(choice.rejected)[tier]


def test_what_is_rejected_says_why_and_what_would_mend_it() -> None:
    choice = choose(replace(H100, obstacles=NO_DRIVER, host_budget_bytes=32 * GB, disk_free_bytes=GB), Wish())
    assert why_not(choice, Tier.EVICT_AND_CUDA) == (
        "the driver is 550; it needs 61 GB of host memory, and 32 GB are left of the budget for parked state here"
    )
    assert why_not(choice, Tier.STOP_AND_RESTART) == (
        "it writes 60 GB, and the shared directory has room for 1 GB; "
        "it frees the slots after 42 s, and is killed after 30 s"
    )
    assert [one.remedy for one in choice.hindrances[Tier.STOP_AND_RESTART]][1].startswith(
        "raise the job's grace_s above 42"
    )
    assert choice.tier is Tier.KILL


def test_a_machine_without_gpus_needs_no_driver() -> None:
    choice = choose(replace(CPU, obstacles=NO_DRIVER))
    assert choice.tier is Tier.EVICT_AND_CUDA
    assert why_not(choice, Tier.CUDA_CHECKPOINT).startswith("it uses no GPU here")


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_that_is_none_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="is none; measure it again"):
        Rate(bad, "a broken file")
