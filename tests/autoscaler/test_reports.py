"""Reports that Ray hands over out of order are dropped, and nobody else's are."""

from dataclasses import replace

from ebbtide.client.messages import ReplicaPhase, ReplicaReport
from ebbtide_autoscaler.reports import heard, overtaken

REPORT = ReplicaReport("e/0", "a", "n", 1, 1, ReplicaPhase.READY, seq=5)
SENDER = ("replica", "node", "pid")


def test_an_earlier_report_of_the_same_process_is_late() -> None:
    assert overtaken(heard(REPORT), SENDER, replace(REPORT, seq=4))
    assert not overtaken(heard(REPORT), SENDER, replace(REPORT, seq=5))
    assert not overtaken(heard(REPORT), SENDER, replace(REPORT, seq=6))


def test_a_new_process_counts_from_one_again() -> None:
    for changed in ({"pid": 2}, {"replica": "b"}, {"node": "m"}):
        assert not overtaken(heard(REPORT), SENDER, replace(REPORT, seq=1, **changed))


def test_a_sender_that_does_not_count_is_always_believed() -> None:
    assert not overtaken(heard(REPORT), SENDER, replace(REPORT, seq=0))
    assert not overtaken(None, SENDER, REPORT)
