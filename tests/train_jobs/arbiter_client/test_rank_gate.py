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
