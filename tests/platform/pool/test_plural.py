"""How many of what, in words."""

import pytest

from ebbtide.pool.plural import many


@pytest.mark.parametrize(
    ("count", "verb", "words"),
    [(0, "", "0 slots"), (1, "", "1 slot"), (2, "", "2 slots"), (1, "is", "1 slot is"), (2, "has", "2 slots have")],
)
def test_one_is_one_and_all_others_are_many(count: int, verb: str, words: str) -> None:
    assert many(count, "slot", verb) == words
