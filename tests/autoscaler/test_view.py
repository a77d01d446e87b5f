"""What `ebbtide status` shows."""

from ebbtide.pool.apply import replay
from ebbtide.pool.events import Body, Event, NodeFound, NodeLost, Slot, SlotFound
from ebbtide.pool.ids import NodeId, RecordId, SlotId
from ebbtide_autoscaler.seen import Seen
from ebbtide_autoscaler.view import LOST_SHOWN_S, view

NODE = NodeId("n")


def test_a_lost_slot_is_shown_as_long_as_it_is_news() -> None:
    bodies: tuple[Body, ...] = (NodeFound(NODE, 1), SlotFound(Slot(SlotId("n:0"), NODE, 0)), NodeLost(NODE))
    state = replay([Event(RecordId(str(i)), 100.0, None, body) for i, body in enumerate(bodies)])
    seen = Seen(started_s=0.0)
    assert [slot["state"] for slot in view(state, seen, {}, 101.0)["slots"]] == ["lost"]
    assert view(state, seen, {}, 101.0 + LOST_SHOWN_S)["slots"] == []
