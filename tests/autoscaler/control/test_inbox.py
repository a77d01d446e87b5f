"""Inbox that Ray hands over out of order are dropped, and nobody else's are."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from ebbtide.client.messages import (
    ControllerPhase,
    ControllerReport,
    RankPhase,
    RankReport,
    ReplicaPhase,
    ReplicaReport,
)
from ebbtide.pool.events import JobEnded, JobForgotten
from ebbtide.pool.ids import JobName, SeatId
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.control.fence_table import FenceTable
from ebbtide_autoscaler.control.inbox import UNKNOWN_FORGOTTEN_S, Inbox, overtaken, timestamped
from ebbtide_autoscaler.core.observe.observation import Observation, Timestamped
from ebbtide_autoscaler.process.steady_clock import clock
from tests.platform.pool.builder import JOB, READY, SEAT, after, pool

REPORT = ReplicaReport("e/0", "a", "n", 1, 1, ReplicaPhase.READY, seq=5)
SENDER = ("replica", "node", "pid")


def test_an_earlier_report_of_the_same_process_is_late() -> None:
    assert overtaken(timestamped(REPORT), SENDER, replace(REPORT, seq=4))
    assert not overtaken(timestamped(REPORT), SENDER, replace(REPORT, seq=5))
    assert not overtaken(timestamped(REPORT), SENDER, replace(REPORT, seq=6))


def test_a_new_process_counts_from_one_again() -> None:
    for changed in ({"pid": 2}, {"replica": "b"}, {"node": "m"}):
        assert not overtaken(timestamped(REPORT), SENDER, replace(REPORT, seq=1, **changed))


def test_a_sender_that_does_not_count_is_always_believed() -> None:
    assert not overtaken(timestamped(REPORT), SENDER, replace(REPORT, seq=0))
    assert not overtaken(None, SENDER, REPORT)


def seen(reports: Inbox, state: PoolState) -> Observation:
    return reports.seen(state, FenceTable(), frozenset(), 1)


def test_a_loop_that_did_not_run_for_long_has_been_away() -> None:
    reports = Inbox(started_s=100.0)
    for now_s in (100.0, 100.2, 102.1):
        reports.attend(now_s)
        assert reports.back_s == -inf, "slow, but there"
    reports.attend(113.7)
    reports.attend(113.9)
    assert reports.back_s == seen(reports, PoolState()).back_s == 113.7


@pytest.mark.proves("reports of who has just come are kept", "reports of who is gone are forgotten")
def test_what_was_said_of_jobs_and_seats_that_are_gone_is_forgotten_a_while_later() -> None:
    state = after(pool(), *READY)
    reports = Inbox(started_s=0.0)
    just_submitted = JobName("next")
    for age_s, job, seat in ((0.0, just_submitted, SeatId("next/0")), (UNKNOWN_FORGOTTEN_S + 1, JOB, SEAT)):
        at_s = timestamped(0).at_s - age_s
        reports.controllers[job] = Timestamped(at_s, ControllerReport(job, "i1", ControllerPhase.NO_GANG, 0))
        reports.ranks[job, 0] = Timestamped(at_s, RankReport(job, "i1", 0, 1, "n", 1, 0, 0, RankPhase.STOPPED, 0, 0))
        reports.replicas[seat] = Timestamped(at_s, REPORT)
        reports.misplaced[seat] = Timestamped(at_s, ())
    everything = seen(reports, state)
    assert len(everything.controllers) == len(everything.ranks) == len(everything.replicas) == 2
    gone = replace(after(state, JobEnded(JOB, "finished", ""), JobForgotten(JOB)), seats={})
    left = seen(reports, gone)
    assert set(left.controllers) == {just_submitted} and set(left.ranks) == {(just_submitted, 0)}
    assert set(left.replicas) == set(left.misplaced) == {"next/0"}


def test_why_a_replica_failed_is_kept_when_serve_starts_the_next_one() -> None:
    """The loop may look at a seat only after the next replica's first word."""
    inbox, failed = Inbox(started_s=0.0), replace(REPORT, phase=ReplicaPhase.STARTING, error="no memory")
    inbox.take_replica(failed)
    following = replace(failed, replica="b", pid=2, seq=1, error="")
    for seq in (1, 2):
        inbox.take_replica(replace(following, seq=seq))
        heard = inbox.replicas[SeatId("e/0")].report
        assert (heard.replica, heard.error) == ("b", "no memory")
    inbox.take_replica(replace(following, seq=3, error="its own"))
    assert inbox.replicas[SeatId("e/0")].report.error == "its own"


@pytest.mark.parametrize("changed", [{"lease_epoch": 2}, {"phase": ReplicaPhase.READY}])
def test_a_replica_of_another_lease_or_one_that_is_up_has_not_failed(changed: dict[str, Any]) -> None:
    inbox = Inbox(started_s=0.0)
    failed = replace(REPORT, phase=ReplicaPhase.STARTING, error="no memory")
    inbox.take_replica(failed)
    inbox.take_replica(replace(replace(failed, replica="b", pid=2, seq=1, error=""), **changed))
    assert inbox.replicas[SeatId("e/0")].report.error == ""


def test_a_failure_wakes_the_loop() -> None:
    woken: list[int] = []
    inbox = Inbox(started_s=0.0)
    inbox.take_replica(replace(REPORT, phase=ReplicaPhase.STARTING))
    inbox.wake = lambda: woken.append(1)
    inbox.take_replica(replace(REPORT, phase=ReplicaPhase.STARTING, seq=6))
    assert woken == []
    inbox.take_replica(replace(REPORT, phase=ReplicaPhase.STARTING, seq=7, error="no memory"))
    assert woken == [1]


@pytest.mark.proves("the word of a command that takes the pool down runs out")
def test_that_the_pool_goes_down_is_forgotten_unless_it_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(clock, "now_s", lambda: now_s[0])
    woken: list[float] = []
    reports = Inbox(started_s=0.0, wake=lambda: woken.append(now_s[0]))
    assert seen(reports, PoolState()).closing == "" and not reports.reopen()
    assert reports.close("by ann", 15.0) and woken[-1] == 100.0
    now_s[0] = 114.0
    assert seen(reports, PoolState()).closing == "by ann"
    assert not reports.close("by ann", 15.0), "it was so already"
    now_s[0] = 128.0
    assert seen(reports, PoolState()).closing == "by ann"
    now_s[0] = 129.0
    assert seen(reports, PoolState()).closing == "", "the command that said so was killed"
    assert reports.close("by bob", 15.0) and reports.reopen() and not reports.reopen()
    assert seen(reports, PoolState()).closing == ""
