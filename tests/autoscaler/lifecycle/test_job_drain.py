"""Waiting for jobs before a pool goes down: no longer than needed, never in silence, and never for ever."""

from collections.abc import Callable
from typing import Any

import pytest

from ebbtide_autoscaler.lifecycle.job_drain import ARBITER_S, STARTS_S, WORD_S, StillUp, drain_jobs
from ebbtide_autoscaler.lifecycle.jobs_leaving import LeavingJob
from tests.builders.commands import a_row


class Pool:
    """An arbiter whose jobs are as a function of the time says; None: it does not answer."""

    def __init__(self, at: Callable[[float], list[dict[str, Any]] | None], *, frozen: str = "", by: str = "") -> None:
        self.at, self.now_s, self.asked, self.lines = at, 0.0, list[tuple[object, ...]](), list[str]()
        self.arbiter = {"frozen": frozen, "frozen_by": by}
        self.interrupt_s = float("inf")

    def call(self, method: str, *args: object, timeout_s: float = 2.0) -> Any:
        self.asked.append((method, *args))
        rows = self.at(self.now_s)
        if rows is None:
            return None
        return {"jobs": rows, "arbiter": self.arbiter} if method == "status" else {"changed": True}

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.now_s >= self.interrupt_s:
            self.interrupt_s = float("inf")
            raise KeyboardInterrupt

    def drain(self, grace_s: float | None = None) -> dict[str, LeavingJob]:
        clock = lambda: self.now_s  # noqa: E731 - of this play
        return drain_jobs(self, by="ann", grace_s=grace_s, say=self.lines.append, clock=clock, sleep=self.sleep)


def leaves_at(leaves_s: float) -> Callable[[float], list[dict[str, Any]]]:
    left = a_row("waiting", step=12, durable_step=12)
    return lambda now_s: [a_row("stopping", step=9 + int(now_s)) if now_s < leaves_s else left]


def test_a_pool_without_jobs_is_not_waited_for_at_all() -> None:
    for rows in ([], [a_row("waiting")], [a_row("ended")]):
        pool = Pool(lambda _, rows=rows: rows)  # type: ignore[misc]
        assert pool.drain() == {} and pool.now_s == 0.0 and pool.lines == []
        assert pool.asked == [("close_pool", "ann", WORD_S), ("status",)]


def test_a_line_for_each_job_says_what_it_waits_for_and_how_it_went() -> None:
    pool = Pool(leaves_at(2.5))
    (one,) = pool.drain().values()
    assert one.repeats == 0 and 2.5 <= pool.now_s < 3.0
    assert pool.lines == [
        "job train (step 9) comes to its next safe point and publishes its checkpoint; 0 s of 60 s at most",
        "job train has stepped aside at step 12, all of it on the shared filesystem",
    ]
    assert pool.asked.count(("close_pool", "ann", WORD_S)) > 3, "the arbiter hears it again and again"
    assert ("reopen_pool",) not in pool.asked


def test_a_long_wait_is_not_silent() -> None:
    pool = Pool(leaves_at(25.0))
    pool.drain()
    assert [line.rpartition("; ")[2] for line in pool.lines[:3]] == [
        "0 s of 60 s at most",
        "10 s of 60 s at most",
        "20 s of 60 s at most",
    ]


def test_two_jobs_have_their_own_lines() -> None:
    def at(now_s: float) -> list[dict[str, Any]]:
        train = a_row("stopping" if now_s < 1 else "waiting", durable_step=9)
        return [train, a_row("starting", job="b")] if now_s < 2 else [train]

    pool = Pool(at)
    assert set(pool.drain()) == {"train", "b"}
    assert any(line.startswith("job b (step 9) starts") for line in pool.lines)
    assert pool.lines[-1] == "job b has ended by itself"


@pytest.mark.parametrize(("grace_s", "waits_s"), [(None, 30 + STARTS_S), (7.0, 7.0), (0.0, 0.0)])
def test_it_ends_after_the_grace_and_says_how_many_steps_are_repeated(grace_s: float | None, waits_s: float) -> None:
    pool = Pool(lambda _: [a_row("stopping", step=40)])
    (one,) = pool.drain(grace_s).values()
    assert waits_s <= pool.now_s < waits_s + 1 and one.repeats == 36
    assert pool.lines[-1] == (
        f"the wait ended after {pool.now_s:.0f} s: job train is ended with the pool: it goes on from step 4, "
        "and repeats 36 steps at least"
    )


def test_the_most_patient_job_counts() -> None:
    pool = Pool(lambda _: [a_row("stopping"), a_row("stopping", job="b", grace_s=100.0)])
    pool.drain()
    assert pool.now_s >= 100.0 + STARTS_S


def test_a_session_that_refuses_is_told_of_once_and_not_waited_for() -> None:
    refuses = a_row("stopping", interactive=True, park_refused="no helper")
    pool = Pool(lambda now_s: [a_row(interactive=True) if now_s < 1 else refuses])
    pool.drain()
    assert pool.now_s < 2 and sum("what it has in memory is lost" in line for line in pool.lines) == 1


def test_ctrl_c_leaves_the_pool_up_and_says_so() -> None:
    pool = Pool(leaves_at(100.0))
    pool.interrupt_s = 3.0
    with pytest.raises(StillUp, match="the pool is still up and its jobs go on") as error:
        pool.drain()
    assert "`ebbtide down --now`" in str(error.value) and pool.asked[-1] == ("reopen_pool",)


def test_an_arbiter_that_is_gone_asks_no_job_and_the_pool_goes_all_the_same() -> None:
    pool = Pool(lambda _: None)
    assert pool.drain() == {} and ARBITER_S <= pool.now_s < ARBITER_S + 1
    assert pool.lines == [
        "the arbiter does not answer; it is asked again",
        "the arbiter does not answer, so no job can be asked to step aside: the pool is taken down",
    ]


def test_an_arbiter_that_restarts_meanwhile_is_told_again() -> None:
    pool = Pool(lambda now_s: None if 1 < now_s < 6 else leaves_at(9.0)(now_s))
    (one,) = pool.drain().values()
    assert one.repeats == 0 and any("the arbiter does not answer" in line for line in pool.lines)


def test_a_ledger_that_hangs_is_named_and_a_person_s_freeze_is_none() -> None:
    pool = Pool(leaves_at(1.0), frozen="the ledger has not answered for 7 s", by="ledger")
    pool.drain()
    assert "; nothing moves: the ledger has not answered for 7 s; 0 s of" in pool.lines[0]
    pool = Pool(leaves_at(1.0), frozen="night shift", by="person")
    pool.drain()
    assert "nothing moves" not in pool.lines[0]


def test_an_arbiter_of_before_is_said_to_be_one() -> None:
    class Old(Pool):
        def call(self, method: str, *args: object, timeout_s: float = 2.0) -> Any:
            raise AttributeError(f"'ActorHandle' object has no attribute {method!r}")

    pool = Old(lambda _: [])
    assert pool.drain() == {} and "older version" in pool.lines[0]


def test_a_fault_of_ours_is_not_taken_for_an_older_arbiter() -> None:
    """Else `down` would take its jobs down with steps that they repeat."""

    class Row:
        def __getitem__(self, key: str) -> Any:
            return a_row("running")[key]

    pool = Pool(lambda _: [Row()])  # type: ignore[list-item] # a mapping has `get` too
    with pytest.raises(AttributeError, match="get"):
        pool.drain()
    assert not any("older version" in line for line in pool.lines)
