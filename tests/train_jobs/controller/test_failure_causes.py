"""Words for failures, and on whom the fault lies."""

from ebbtide_train.controller.failure_causes import CONTROLLER, ProcessDied, culprits, describe, only_consequences
from ebbtide_train.worker.rank_failure import as_told


def test_the_fault_lies_with_ranks_that_died_or_else_with_those_that_raised() -> None:
    assert culprits({0: RuntimeError("gloo: closed"), 1: ProcessDied()}) == [1]
    assert culprits({2: RuntimeError("x"), 0: RuntimeError("x")}) == [0, 2]


def test_a_failure_is_told_in_one_line_by_its_first_cause() -> None:
    assert describe({0: RuntimeError("gloo: closed"), 1: ProcessDied()}) == (
        "rank 1: its process died; rank 0: RuntimeError: gloo: closed"
    )
    assert describe({CONTROLLER: TimeoutError("no CPU")}) == "its controller: TimeoutError: no CPU"


def test_a_gangs_failure_lies_with_the_rank_that_failed_by_its_own_code() -> None:
    closed = as_told(RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer"))
    found = {0: closed, 1: closed, 2: as_told(KeyError("stepz")), 3: as_told(OSError(5, "Input/output error"))}
    assert culprits(found) == [2]
    assert describe(found).startswith("rank 2: KeyError: 'stepz'; rank 3: OSError: ")
    assert culprits({0: closed, 1: as_told(OSError(5, "Input/output error"))}) == [1]
    assert culprits({0: closed, 1: closed}) == [0, 1]
    assert describe(dict.fromkeys(range(64), as_told(KeyError("x")))) == "rank 0 and 63 more: KeyError: 'x'"
    assert len(describe({rank: as_told(KeyError("x" * rank * 100)) for rank in range(64)})) < 1000


def test_a_lost_peer_alone_is_no_cause_yet_and_a_dead_one_is() -> None:
    closed = as_told(ConnectionResetError("gone"))
    assert only_consequences({0: closed})
    assert not only_consequences({})
    assert not only_consequences({0: closed, 1: as_told(ValueError("x"))})
    assert not only_consequences({0: closed, 1: ProcessDied()})
