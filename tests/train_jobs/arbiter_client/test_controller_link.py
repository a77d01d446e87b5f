"""Taking a lease, and never saying NO_GANG after that."""

from collections.abc import Callable

import pytest

from ebbtide.client.messages import ControllerOrders, ControllerPhase, ControllerReport, Lease, SlotRef
from ebbtide_train.arbiter_client.controller_link import ControllerLink
from tests.train_jobs.fake_link import FakeLink

GANG, NO_GANG = ControllerPhase.GANG, ControllerPhase.NO_GANG


def lease(epoch: int) -> Lease:
    return Lease("job", epoch, (SlotRef("node", 0),))


def linked(orders: ControllerOrders | None, **more: object) -> tuple[ControllerLink, FakeLink]:
    fake = FakeLink(report_controller=lambda report: orders)
    return ControllerLink(fake, job="job", incarnation="a", **more), fake  # type: ignore[arg-type]


def says(link: ControllerLink) -> tuple[ControllerPhase, int]:
    report = link.report()
    return report.phase, report.lease_epoch


def answer(link: ControllerLink, fake: FakeLink, orders: ControllerOrders | None) -> None:
    fake.answers["report_controller"] = lambda report: orders
    link.exchange()


def test_a_lease_in_an_answer_is_taken_at_once_and_given_out_once() -> None:
    link, _fake = linked(ControllerOrders(lease(4)))
    assert says(link) == (NO_GANG, 0)
    link.exchange()
    assert says(link) == (GANG, 4)
    link.no_gang()  # the control loop has not looked yet: it has no gang, and there will be one
    assert says(link) == (GANG, 4)
    assert link.claim() == lease(4)
    assert link.claim() is None


def test_a_used_lease_is_not_taken_again() -> None:
    link, fake = linked(ControllerOrders(lease(4)))
    link.exchange()
    link.claim()
    link.no_gang()
    link.exchange()
    assert says(link) == (NO_GANG, 4)
    assert link.claim() is None
    answer(link, fake, ControllerOrders(lease(5)))
    assert link.claim() == lease(5)


def test_a_lease_that_was_not_asked_for_is_not_taken() -> None:
    """The answer to a report of GANG may come in after the gang is gone: it may be withdrawn by then."""
    link, fake = linked(ControllerOrders(lease(4)))
    link.exchange()
    link.claim()

    def late(report: ControllerReport) -> ControllerOrders:
        assert report.phase is GANG
        link.no_gang()
        return ControllerOrders(lease(5))

    fake.answers["report_controller"] = late
    link.exchange()
    assert says(link) == (NO_GANG, 4)
    assert link.claim() is None


def test_a_lease_is_given_back_when_the_gang_is_to_be_killed_before_it_was_started() -> None:
    killed: list[str] = []
    link, fake = linked(ControllerOrders(lease(4)), kill_gang=lambda: killed.append("killed"))
    link.exchange()
    answer(link, fake, ControllerOrders(None, kill_gang=True))
    assert (link.claim(), says(link), killed) == (None, (NO_GANG, 4), [])


def test_a_running_gang_is_killed_when_the_arbiter_says_so() -> None:
    killed: list[str] = []
    link, fake = linked(ControllerOrders(lease(4)), kill_gang=lambda: killed.append("killed"))
    link.exchange()
    link.claim()
    answer(link, fake, ControllerOrders(None, kill_gang=True))
    assert (killed, says(link)) == (["killed"], (GANG, 4))  # GANG until the control loop has seen it go
    link.no_gang()
    answer(link, fake, ControllerOrders(None, kill_gang=True))
    assert killed == ["killed"]


@pytest.mark.parametrize("orders", [None, ControllerOrders(None, "no room"), ControllerOrders(lease(0))])
def test_without_a_new_lease_it_waits(orders: ControllerOrders | None) -> None:
    link, _fake = linked(orders)
    link.exchange()
    assert (link.claim(), says(link)) == (None, (NO_GANG, 0))
    assert link.why == (orders.why if orders else "")


def test_once_cancelled_no_lease_is_taken_any_more() -> None:
    link, fake = linked(ControllerOrders(None, "over", cancelled=True))
    link.exchange()
    answer(link, fake, ControllerOrders(lease(4)))
    assert link.cancelled
    assert link.claim() is None


def test_one_that_only_stands_in_takes_no_lease() -> None:
    link, _fake = linked(ControllerOrders(lease(4)), takes_leases=False)
    link.exchange()
    assert (link.claim(), says(link)) == (None, (NO_GANG, 0))


def test_failures_are_counted_and_the_last_error_is_told() -> None:
    link, _ = linked(None)
    link.gang_failed("rank 0: boom")
    link.gang_failed("rank 1: bang " + "x" * 5000)
    report = link.report()
    assert report.failures == 2
    assert report.last_error.startswith("rank 1: bang")
    assert len(report.last_error) == 500


def test_a_failure_is_told_with_the_lease_under_which_its_gang_was_started() -> None:
    link, _ = linked(ControllerOrders(lease(4)))
    link.exchange()
    assert link.report().failed_epoch == 0
    link.gang_failed("rank 0: boom")
    assert link.report().failed_epoch == 4
    link.no_gang()
    link.claim()
    assert link.report().failed_epoch == 4


def test_a_report_says_how_far_the_job_is_durable_and_what_its_ranks_printed_last() -> None:
    link, _ = linked(None)
    link.gang_failed("rank 0: boom", "line\n" * 1000)
    link.committed(7)
    link.committed(5)  # read before, told later
    report = link.report()
    assert report.durable_step == 7
    assert report.log_tail.endswith("line\n") and len(report.log_tail) <= 2000


def test_every_report_has_a_number_larger_than_the_one_before() -> None:
    link, fake = linked(None)
    for _ in range(3):
        link.exchange()
    numbers = [report.seq for _, (report,) in fake.calls]  # type: ignore[attr-defined]
    assert 0 < numbers[0] < numbers[1] < numbers[2]


def test_the_thread_goes_on_reporting_after_an_error() -> None:
    def fails(report: ControllerReport) -> ControllerOrders:
        fake.answers["report_controller"] = good
        raise ValueError("not understood")

    good: Callable[[ControllerReport], ControllerOrders] = lambda report: ControllerOrders(lease(4))  # noqa: E731
    fake = FakeLink()
    fake.answers["report_controller"] = fails
    link = ControllerLink(fake, job="job", incarnation="a")
    link.start()
    fake.wait_for(lambda: len(fake.calls) >= 1)
    link.stop()
    assert link.claim() == lease(4)


@pytest.mark.proves("a gang that is ended early has not failed")
def test_a_gang_that_is_ended_before_it_trains_is_killed_and_has_not_failed() -> None:
    killed: list[str] = []
    link, fake = linked(ControllerOrders(lease(4)), kill_gang=lambda: killed.append("gang"))
    link.exchange()
    link.claim()
    assert not link.let_go
    answer(link, fake, ControllerOrders(None, kill_gang=True, not_failed=True))
    assert killed == ["gang"] and link.let_go
    link.no_gang()
    answer(link, fake, ControllerOrders(lease(5)))
    assert not link.let_go, "the next gang may fail"
    link.claim()
    answer(link, fake, ControllerOrders(None, kill_gang=True))
    assert len(killed) == 2 and not link.let_go
