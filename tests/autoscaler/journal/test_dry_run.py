"""What an observing pool would have done is told once, and again when it comes back."""

import pytest

from ebbtide.pool.events import DrainSeat, GrantJob, Slot
from ebbtide.pool.ids import JobName, NodeId, SeatId, SlotId
from ebbtide.pool.state import PoolState, SlotRecord
from ebbtide.pool.transitions import SlotState
from ebbtide_autoscaler.core.tick.instructions import CloseSeat, HoldFence
from ebbtide_autoscaler.journal.dry_run import news, takes_a_slot, would_record

GRANT = GrantJob(JobName("j"), (SlotId("n:0"),), "3 s idle")
LATER = GrantJob(JobName("j"), (SlotId("n:0"),), "4 s idle")
DRAIN = DrainSeat(SeatId("e/0"), "r")


def test_the_same_move_is_told_once_whatever_the_numbers_in_its_reason() -> None:
    fresh, told = news((GRANT,), frozenset())
    assert [body["reason"] for body in fresh] == ["3 s idle"]
    assert news((LATER,), told) == ([], told)
    fresh, told = news((LATER, DRAIN), told)
    assert [body["kind"] for body in fresh] == ["drain_seat"]


def test_a_move_that_was_called_off_is_told_again() -> None:
    _, told = news((GRANT,), frozenset())
    _, told = news((), told)
    assert [body["kind"] for body in news((GRANT,), told)[0]] == ["grant_job"]


def test_its_record_is_none_of_the_events_that_a_replay_applies() -> None:
    record = would_record(news((GRANT,), frozenset())[0][0], name="7.w1", at_s=5.0)
    assert (record["type"], record["id"], record["body"]["job"]) == ("would", "7.w1", "j")


@pytest.mark.proves("an observer takes no fence")
def test_an_observer_takes_no_fence_but_gets_back_that_of_a_slot_in_use() -> None:
    slot = Slot(SlotId("n:0"), NodeId("n"), 0)
    for state, takes in ((SlotState.UNFENCED, True), (SlotState.FOREIGN, True), (SlotState.RECLAIMING, False)):
        pool = PoolState(slots={slot.id: SlotRecord(slot, state)})
        assert takes_a_slot(pool, HoldFence(slot.id)) is takes
        assert not takes_a_slot(pool, CloseSeat(SeatId("e/0")))
