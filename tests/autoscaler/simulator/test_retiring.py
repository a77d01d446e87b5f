"""An endpoint that is removed has no replica a moment later, whatever its replicas were about."""

from dataclasses import replace

import pytest

from ebbtide.pool.events import DrainSeat, GrantSeat, Move, ParkSeat, WakeSeat
from ebbtide.pool.handlers.seat_handlers import occupied_seats
from ebbtide.pool.ids import NodeId, SeatId, slot_id
from ebbtide.pool.transitions import SeatState
from ebbtide_simulator.model.engine import Times
from ebbtide_simulator.model.pool import Pool
from tests.autoscaler.closed_loop import an_endpoint
from tests.autoscaler.simulator.ledgers import CHAT

SEAT, OTHER = SeatId("chat/0"), SeatId("chat/1")
SPEC = an_endpoint(replicas_min=1, warm_replicas=2)
SECOND = (slot_id(NodeId("node-0000"), 1),)


def go_on(pool: Pool, until_s: float) -> None:
    while pool.agenda.next_s() <= until_s:
        pool.now_s = pool.agenda.next_s()
        pool.agenda.pop()()
    pool.now_s = until_s


@pytest.mark.parametrize(
    ("moves", "after_s"),
    [
        ([], 1.0),
        ([ParkSeat(SEAT, "r")], 1.0),
        ([ParkSeat(SEAT, "r")], 11.0),
        ([ParkSeat(SEAT, "r")], 60.0),
        ([ParkSeat(SEAT, "r"), WakeSeat(SEAT, "r")], 1.0),
        ([DrainSeat(SEAT, "r")], 1.0),
        ([GrantSeat(OTHER, SECOND, "r")], 0.5),
        ([GrantSeat(OTHER, SECOND, "r")], 5.0),
    ],
)
def test_whatever_a_replica_is_about_it_is_gone_and_the_next_ones_start_anew(moves: list[Move], after_s: float) -> None:
    pool = Pool(1, 2, 1 << 40, Times(), 0, now_s=0.0, from_s=0.0, park_bytes={CHAT: 1})
    pool.declare(SPEC)
    pool.stand(CHAT, 1)
    for move in moves:
        pool.carry_out([move])
        go_on(pool, pool.now_s + (60.0 if move is not moves[-1] else after_s))
    assert not pool.refused
    pool.retire(CHAT)
    go_on(pool, pool.now_s + 60.0)
    assert not occupied_seats(pool.state, CHAT) and len(pool.state.free_slots()) == 2
    pool.declare(SPEC)
    pool.carry_out([GrantSeat(SEAT, SECOND, "r")])
    go_on(pool, pool.now_s + 600.0)
    assert pool.state.seats[SEAT].state is SeatState.READY, "nothing is asked of it any more"
    assert not pool.refused


def test_one_that_comes_back_at_once_keeps_what_is_granted_then() -> None:
    pool = Pool(1, 2, 1 << 40, Times(), 0, now_s=0.0, from_s=0.0, park_bytes={CHAT: 1})
    pool.declare(SPEC)
    pool.stand(CHAT, 1)
    pool.retire(CHAT)
    pool.declare(replace(SPEC, replicas_max=2))
    pool.carry_out([GrantSeat(OTHER, SECOND, "r")])
    go_on(pool, pool.now_s + 600.0)
    states = {seat: pool.state.seats[seat].state for seat in (SEAT, OTHER)}
    assert states == {SEAT: SeatState.COLD, OTHER: SeatState.READY}
