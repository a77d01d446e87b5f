"""What a rank hears and says, with the arbiter there and away."""

import threading
import time
from dataclasses import replace

import pytest

from ebbtide.client.messages import DesiredState, JobDirective, Lease, RankPhase, RankReport, SlotRef
from ebbtide_train.arbiter_client.rank_gate import RankGate
from tests.train_jobs.fake_link import FakeLink

REPORT = RankReport("job", "a", 0, 1, "node", 1, 4, 0, RankPhase.STARTING, 0, 0)


def run_under(epoch: int, number: int) -> JobDirective:
    return JobDirective(number, DesiredState.RUN, Lease("job", epoch, (SlotRef("node", 0),)))


def heard(link: FakeLink) -> list[RankReport]:
    return [args[0] for _, args in link.calls]  # type: ignore[misc]


def test_it_says_nothing_before_the_first_report_and_repeats_the_latest_after() -> None:
    link = FakeLink(report_rank=lambda report: None)
    gate = RankGate(link, rank=0)
    assert gate.directive() is None
    gate.report(REPORT)
    gate.report(replace(REPORT, step=7))
    link.wait_for(lambda: len(link.calls) >= 3)
    assert heard(link)[-1].step == 7
    gate.close(flush_s=0.0)


def test_a_new_phase_is_sent_at_once() -> None:
    link = FakeLink(report_rank=lambda report: run_under(4, 1))
    gate = RankGate(link, rank=5)
    gate._every_s = 60.0
    gate.report(REPORT)
    link.wait_for(lambda: len(link.calls) == 1)
    gate.report(replace(REPORT, phase=RankPhase.PARKED))
    link.wait_for(lambda: len(link.calls) == 2)
    assert heard(link)[-1].phase is RankPhase.PARKED
    gate.close(flush_s=0.0)


@pytest.mark.proves(
    "a late answer of a replaced arbiter is dropped by its epoch",
    "a late answer of a replaced arbiter is dropped by its number",
)
@pytest.mark.parametrize("late", [run_under(4, 1), run_under(3, 9)], ids=["lower number", "lower epoch"])
def test_a_late_directive_is_refused(late: JobDirective) -> None:
    answers = [run_under(4, 2), late]
    link = FakeLink(report_rank=lambda report: answers.pop(0) if answers else None)
    gate = RankGate(link, rank=0)
    gate.report(REPORT)
    link.wait_for(lambda: len(link.calls) >= 3)
    assert gate.directive() == run_under(4, 2)
    gate.close(flush_s=0.0)


@pytest.mark.proves("a last report is answered before the rank ends")
def test_closing_waits_until_the_last_report_was_answered() -> None:
    answers = [None, None, run_under(4, 1)]  # the arbiter is away for a moment
    link = FakeLink(report_rank=lambda report: answers.pop(0) if answers else run_under(4, 1))
    gate = RankGate(link, rank=0)
    gate.report(replace(REPORT, phase=RankPhase.STOPPED, durable_step=9))
    assert gate.close(flush_s=10.0)
    assert heard(link)[-1].durable_step == 9


@pytest.mark.proves("an answer counts for the report that it answers")
def test_an_answer_to_an_earlier_report_is_none_to_the_last_one() -> None:
    """The rank says its last word while the one before is being answered; then the arbiter goes away."""
    said = threading.Event()

    def answer(report: RankReport) -> JobDirective | None:
        if report.phase is not RankPhase.STARTING:
            return None
        gate.report(replace(REPORT, phase=RankPhase.STOPPED))
        said.set()
        return run_under(4, 1)

    link = FakeLink(report_rank=answer)
    gate = RankGate(link, rank=0)
    gate.report(REPORT)
    assert said.wait(30)
    assert not gate.close(flush_s=0.3)


def test_closing_gives_up_on_an_arbiter_that_stays_away() -> None:
    link = FakeLink(report_rank=lambda report: None)
    gate = RankGate(link, rank=0)
    gate.report(REPORT)
    started_s = time.monotonic()
    assert not gate.close(flush_s=0.3)
    assert 0.3 <= time.monotonic() - started_s < 5.0


@pytest.mark.proves(
    "a rank that has not begun is told to leave at once", "a rank that was told to leave before it began never begins"
)
@pytest.mark.parametrize("want", [DesiredState.STOP, DesiredState.CANCEL])
def test_a_rank_that_is_told_to_leave_before_it_began_says_so_by_itself_and_never_begins(want: DesiredState) -> None:
    """Its train function loads its data, and looks at nothing."""
    link = FakeLink(report_rank=lambda report: JobDirective(3, want, None))
    gate = RankGate(link, rank=0, where=lambda: "load.py:7", on_begin=lambda: pytest.fail("it never begins"))
    gate.report(REPORT)
    link.wait_for(lambda: len(link.calls) >= 2)
    first, second = heard(link)[:2]
    assert (first.phase, first.stands_at) == (RankPhase.STARTING, "load.py:7")
    assert (second.phase, second.directive) == (RankPhase.STOPPED, 3)
    gate.report(replace(REPORT, at_session=True))  # its author's code goes on for a moment
    link.wait_for(lambda: len(link.calls) >= 4)
    assert heard(link)[-1].phase is RankPhase.STOPPED
    assert gate.begin() is want
    gate.close(flush_s=0.0)


def test_a_rank_that_has_begun_leaves_at_a_safe_point_only() -> None:
    begun: list[bool] = []
    link = FakeLink(report_rank=lambda report: JobDirective(3, DesiredState.STOP, None))
    gate = RankGate(link, rank=0, on_begin=lambda: begun.append(True))
    assert gate.begin() is DesiredState.RUN and begun == [True]
    gate.report(replace(REPORT, phase=RankPhase.RUNNING))
    link.wait_for(lambda: len(link.calls) >= 3)
    assert {(one.phase, one.directive) for one in heard(link)} == {(RankPhase.RUNNING, 0)}
    assert gate.directive() == JobDirective(3, DesiredState.STOP, None)
    gate.close(flush_s=0.0)


def test_a_park_before_it_began_waits_for_its_first_safe_point() -> None:
    link = FakeLink(report_rank=lambda report: JobDirective(3, DesiredState.PARK, None))
    gate = RankGate(link, rank=0)
    gate.report(REPORT)
    link.wait_for(lambda: len(link.calls) >= 3)
    assert gate.begin() is DesiredState.RUN
    gate.close(flush_s=0.0)
