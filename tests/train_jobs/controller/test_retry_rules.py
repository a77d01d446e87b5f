"""What ends a job at once, and what is tried again."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide_train.controller.failure_causes import CONTROLLER, ProcessDied
from ebbtide_train.controller.retry_rules import RetryRules
from ebbtide_train.session.errors import SessionMisuse
from ebbtide_train.worker.rank_failure import RankFailed, as_told

CLOSED = RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:4242")


def at(error: BaseException, step: int = 0, here: int = 0) -> RankFailed:
    return as_told(error, step=step, steps_here=here)


@pytest.mark.proves("what no machine can change ends the job at once")
@pytest.mark.parametrize("error", [ImportError("x"), SyntaxError("x"), SessionMisuse("x")])
def test_what_never_changes_ends_a_job_that_has_trained_too(error: Exception) -> None:
    assert "only end alike" in RetryRules(5, finished=3).give_up({0: at(error, step=9, here=6)}, 9)


@pytest.mark.proves("a failure before the first step ends the job at once")
def test_an_authors_error_before_the_first_step_ends_the_job() -> None:
    assert "before its first step" in RetryRules(5).give_up({0: at(KeyError("stepz"))}, 0)


def test_steps_of_an_earlier_submission_are_not_its_own() -> None:
    """Its author may have changed everything since."""
    assert "before its first step" in RetryRules(5, finished=100).give_up({0: at(KeyError("stepz"), step=90)}, 100)


def test_one_that_the_pool_submitted_again_has_trained_before() -> None:
    assert not RetryRules(5, finished=100, proven=True).give_up({0: at(KeyError("x"), step=90)}, 100)


@pytest.mark.proves(
    "the same failure at the same step again ends the job", "a job that has trained is told from one that never did"
)
def test_the_same_error_at_the_same_step_again_ends_the_job_and_others_do_not() -> None:
    rules = RetryRules(50)
    assert not rules.give_up({0: at(ValueError("row 17 at 0x7f00aa"), step=5, here=5)}, 5)
    assert not rules.give_up({0: at(ValueError("row 17 at 0x7f00aa"), step=6, here=2)}, 6)
    assert not rules.give_up({0: at(TypeError("row 17"), step=5, here=1)}, 6)
    assert "alike at step 5" in rules.give_up({0: at(ValueError("row 18 at 0x7e1133"), step=5, here=1)}, 6)


@given(st.lists(st.sampled_from([CLOSED, OSError(errno.EIO, "x"), ConnectionResetError("x")]), min_size=1, max_size=9))
def test_what_a_machine_does_is_tried_as_often_as_the_job_says(errors: list[Exception]) -> None:
    rules = RetryRules(3)
    ends = [bool(rules.give_up({0: at(error)}, 0)) for error in errors]
    assert ends == [number >= 3 for number in range(len(errors))]


def test_a_dead_process_is_a_machines_even_before_the_first_step() -> None:
    rules = RetryRules(2)
    assert [bool(rules.give_up({0: ProcessDied(), 1: at(CLOSED)}, 0)) for _ in range(3)] == [False, False, True]


def test_an_error_of_all_ranks_at_once_has_come_once() -> None:
    rules = RetryRules(50)
    everyone = {rank: at(ValueError("x"), step=5, here=5) for rank in range(4)}
    assert not rules.give_up(everyone, 5)
    assert "alike at step 5" in rules.give_up({2: at(ValueError("x"), step=5, here=0)}, 5)


def test_what_the_controller_meets_is_no_authors_mistake() -> None:
    assert not RetryRules(1).give_up({CONTROLLER: RuntimeError("no CPU")}, 0)
    assert RetryRules(1).give_up({CONTROLLER: ModuleNotFoundError("mine")}, 0)


def test_the_rank_that_failed_by_its_own_code_decides_and_not_those_who_lost_it() -> None:
    found = {0: at(CLOSED), 1: at(KeyError("x")), 2: at(CLOSED)}
    assert "before its first step" in RetryRules(5).give_up(found, 0)
    assert not RetryRules(5).give_up({0: at(CLOSED), 1: at(OSError(errno.EIO, "x"))}, 0)
