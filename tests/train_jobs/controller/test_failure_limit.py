"""When a job is given up."""

import pytest

from ebbtide_train.controller.failure_limit import FailureLimit


@pytest.mark.parametrize(
    ("max_failures", "reached", "given_up"),
    [
        (0, [5], [True]),
        (2, [0, 0, 0], [False, False, True]),
        (1, [3, 6, 9, 12], [False, False, False, False]),  # each gang came further than any before
        (1, [7, 7], [False, True]),  # always at the same step, however many steps it repeats on the way
        (1, [7, 3, 8, 8], [False, True, False, True]),
    ],
)
def test_failures_in_a_row_count_until_a_gang_comes_further(
    max_failures: int, reached: list[int], given_up: list[bool]
) -> None:
    strikes = FailureLimit(max_failures)
    assert [strikes.failed(finished) for finished in reached] == given_up


def test_steps_of_earlier_runs_are_no_progress() -> None:
    strikes = FailureLimit(1, finished=100)
    assert [strikes.failed(50), strikes.failed(60)] == [False, True]
