"""The storms notice guards of the policy that are taken out; some at once, and so can the referee."""

import pytest

from evidence.guards.comments import ROOMS
from tests.autoscaler.guards import caught, policy_guards, removals


def test_the_policy_has_guards_and_each_can_be_removed() -> None:
    guards = policy_guards()
    assert len(guards) > 80
    assert all(list(removals(guard)) for guard in guards)
    assert {guard.file.partition("/")[0] for guard in guards} < set(ROOMS)


@pytest.mark.parametrize(
    "name",
    [
        "a job is not preempted within its minimum runtime",
        "a semi-preemptible job is counted upon only above its minimum",
    ],
)
def test_without_it_a_seed_fails(name: str) -> None:
    [guard] = [guard for guard in policy_guards() if guard.name == name]
    seed, said = caught(guard, 12)
    assert seed >= 0, "no seed misses it"
    assert "referee" in said
