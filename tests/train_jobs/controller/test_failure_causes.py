"""Words for failures, and on whom the fault lies."""

from ebbtide_train.controller.failure_causes import CONTROLLER, ProcessDied, culprits, describe


def test_the_fault_lies_with_ranks_that_died_or_else_with_those_that_raised() -> None:
    assert culprits({0: RuntimeError("gloo: closed"), 1: ProcessDied()}) == [1]
    assert culprits({2: RuntimeError("x"), 0: RuntimeError("x")}) == [0, 2]


def test_a_failure_is_told_in_one_line_by_its_first_cause() -> None:
    assert describe({0: RuntimeError("gloo: closed"), 1: ProcessDied()}) == (
        "rank 1: its process died; rank 0: RuntimeError: gloo: closed"
    )
    assert describe({CONTROLLER: TimeoutError("no CPU")}) == "its controller: TimeoutError: no CPU"
