"""Numbers of reports never fall, also from one process of a job to the next."""

from ebbtide_train.arbiter_client.report_numbers import ReportNumbers


def test_numbers_rise_though_the_clock_stands_or_falls() -> None:
    times = iter([1000, 1000, 400, 5000])
    sequence = ReportNumbers(lambda: next(times))
    assert [sequence.next() for _ in range(4)] == [1000, 1001, 1002, 5000]


def test_a_later_process_goes_on_above_an_earlier_one() -> None:
    """The driver speaks for a job until its controller does: the arbiter must not drop the controller's reports."""
    driver, controller = ReportNumbers(lambda: 1000), ReportNumbers(lambda: 4000)
    assert max(driver.next() for _ in range(30)) < controller.next()
