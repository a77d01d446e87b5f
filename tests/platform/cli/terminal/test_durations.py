"""How long it lasts, in the unit that a person would use."""

import pytest

from ebbtide.cli.terminal.durations import lasting


@pytest.mark.parametrize(
    ("duration_s", "words"),
    [(-5.0, "0 s"), (0.4, "0 s"), (179.0, "179 s"), (180.0, "3 min"), (7_200.0, "120 min"), (10_800.0, "3 h"),
     (86_400.0, "24 h"), (259_200.0, "3 d"), (31e6, "359 d")],
)  # fmt: skip
def test_one_unit_and_never_below_nothing(duration_s: float, words: str) -> None:
    assert lasting(duration_s) == words
