"""What is told once: why workloads wait, and what an observing pool would have done."""

from ebbtide.pool.events import GrantJob
from ebbtide.pool.ids import JobName, SlotId
from ebbtide_autoscaler.journal.annotations import Annotations

GRANT = GrantJob(JobName("train"), (SlotId("n0:0"),), "1 free")


def test_waits_are_told_when_their_reasons_change_and_not_when_their_numbers_do() -> None:
    remarks = Annotations()
    assert remarks.waits({"train": "waits for 2 slots, 1.5 s"}, 5.0) == [
        {"type": "waits", "at_s": 5.0, "subjects": ["train"], "waits": {"train": "waits for 2 slots, 1.5 s"}}
    ]
    assert remarks.waits({"train": "waits for 3 slots, 9 s"}, 6.0) == []
    assert remarks.waits({}, 7.0)[0]["subjects"] == []


def test_a_move_that_is_not_made_is_told_when_it_is_first_decided_and_when_it_comes_back() -> None:
    remarks = Annotations()
    assert [one["id"] for one in remarks.would([GRANT], epoch=3, now_s=5.0)] == ["3.w1"]
    assert remarks.would([GRANT], epoch=3, now_s=6.0) == []
    assert remarks.would([], epoch=3, now_s=7.0) == []
    assert [one["id"] for one in remarks.would([GRANT], epoch=3, now_s=8.0)] == ["3.w2"]
