"""The guards that are taken out are those of the source; some that are caught at once are, and so can the referee."""

import pytest

from tests.autoscaler.guards import GUARDS, ROOT, Guard, caught


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_each_guard_is_there_once(guard: Guard) -> None:
    assert (ROOT / guard.file).read_text().count(guard.text) == 1
    assert guard.text != guard.without


def test_names_differ() -> None:
    assert len({guard.name for guard in GUARDS}) == len(GUARDS)


@pytest.mark.parametrize("name", ["a job runs for its minimum runtime", "a semi-preemptible job keeps its minimum"])
def test_without_it_a_seed_fails(name: str) -> None:
    [guard] = [guard for guard in GUARDS if guard.name == name]
    seed, said = caught(guard, 12)
    assert seed >= 0, "no seed misses it"
    assert "referee" in said
