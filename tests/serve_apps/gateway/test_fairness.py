"""One key's flood costs another key next to nothing."""

import asyncio
import json

import pytest

from ebbtide.client.messages import RoutingTable, SeatRoute
from ebbtide_serve.gateway.admission.held_requests import Hold, HoldLimits, Seated
from ebbtide_serve.gateway.admission.routing_table import Routes
from ebbtide_serve.gateway.clock import SystemClock
from ebbtide_serve.gateway.errors import Refusal
from tests.builders.gateway import bearer, key, request
from tests.serve_apps.gateway.fakes import MODEL, chat, running_gateway, until

SEAT = SeatRoute("m/0", "r", "http://127.0.0.1:1")
PLACES = 4
PER_SEAT = 8


def hold_of(max_requests: int = 100, max_bytes: int = 10**6) -> Hold:
    clock = SystemClock()
    return Hold(Routes(clock, PLACES), HoldLimits(max_requests, max_bytes, 60.0, 5.0), clock)


class Crowd:
    """Requests of several keys at one hold; notes in which order they get a place."""

    def __init__(self, hold: Hold) -> None:
        self.hold = hold
        self.placed: list[str] = []
        self.seated: list[tuple[str, Seated]] = []
        self.refused: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    def send(self, key: str, number: int, size_bytes: int = 1) -> None:
        self._tasks += [asyncio.create_task(self._ask(key, size_bytes)) for _ in range(number)]

    async def _ask(self, key: str, size_bytes: int) -> None:
        try:
            seated = await self.hold.seat("m", size_bytes, key=key)
        except Refusal as refusal:
            assert refusal.status == 429
            self.refused.append(key)
            return
        self.placed.append(key)
        self.seated.append((key, seated))

    async def finish(self, number: int = 1) -> None:
        for _ in range(number):
            key, seated = self.seated.pop(0)
            self.hold.release("m", seated.seat, key)
            await self.settle()

    async def settle(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.mark.proves("the next place goes to the key with the fewest requests running")
async def test_the_next_free_place_goes_to_the_key_with_the_fewest_requests_running() -> None:
    crowd = Crowd(hold_of())
    crowd.hold.adopt(RoutingTable(1, {"m": (SEAT,)}))
    crowd.send("flood", 50)
    await crowd.settle()
    crowd.send("other", 3)
    await crowd.settle()
    assert crowd.placed == ["flood"] * PLACES
    await crowd.finish(2)
    assert crowd.placed[PLACES:] == ["other", "other"]  # at once, though 46 were there before it
    await crowd.finish(1)
    assert crowd.placed[-1] == "flood"  # one of its own is left, and two of the other run
    await crowd.end()


async def test_places_are_shared_evenly_by_all_keys_that_want_them() -> None:
    crowd = Crowd(hold_of(1000))
    crowd.hold.adopt(RoutingTable(1, {"m": (SEAT,)}))
    for name, number in [("a", 200), ("b", 40), ("c", 40), ("d", 40)]:
        crowd.send(name, number)
    await crowd.settle()
    await crowd.finish(120)
    later = crowd.placed[PLACES : PLACES + 120]
    assert all(28 <= later.count(name) <= 32 for name in "abcd"), later
    await crowd.end()


@pytest.mark.proves("of equal keys the next place goes to the one served longest ago")
async def test_keys_with_equally_many_running_take_turns() -> None:
    """One place: whoever has it leaves it with nothing running, as do all that wait."""
    clock = SystemClock()
    crowd = Crowd(Hold(Routes(clock, 1), HoldLimits(100, 10**6, 60.0, 5.0), clock))
    crowd.hold.adopt(RoutingTable(1, {"m": (SEAT,)}))
    for name in "abc":
        crowd.send(name, 5)
    await crowd.settle()
    await crowd.finish(8)
    assert [crowd.placed.count(name) for name in "abc"] == [3, 3, 3], crowd.placed
    await crowd.end()


@pytest.mark.proves("a request that lost its seat is never displaced")
async def test_a_request_that_lost_its_place_is_never_sent_away_for_another_key() -> None:
    hold = hold_of(max_requests=2)
    again = [asyncio.create_task(hold.seat("m", 1, key="flood", again=True)) for _ in range(2)]
    crowd = Crowd(hold)
    await crowd.settle()
    crowd.send("other", 1)
    await crowd.settle()
    assert crowd.refused == ["other"] and not any(task.done() for task in again)
    hold.adopt(RoutingTable(1, {"m": (SEAT,)}))
    assert [(await task).seat for task in again] == [SEAT, SEAT]
    await crowd.end()


@pytest.mark.proves("a flood gives way in a room full of requests", "a flood keeps its own part of the room")
async def test_a_flood_fills_the_whole_room_and_gives_way_to_others_up_to_their_part() -> None:
    crowd = Crowd(hold_of(max_requests=10))
    crowd.send("flood", 30)
    await crowd.settle()
    assert crowd.hold.held("m") == 10 and crowd.refused == ["flood"] * 20
    crowd.send("other", 8)
    await crowd.settle()
    assert crowd.hold.held("m") == 10
    assert (crowd.refused.count("flood"), crowd.refused.count("other")) == (25, 3)
    crowd.send("third", 8)
    await crowd.settle()
    assert crowd.refused.count("third") in (5, 6) and crowd.hold.held("m") == 10
    crowd.hold.adopt(RoutingTable(1, {"m": (SEAT,)}))
    await crowd.settle()
    while crowd.hold.held("m") or crowd.seated:
        await crowd.finish()
    assert len(crowd.placed) == 10, "whoever was refused was never executed"
    assert crowd.hold.held_bytes("m") == 0
    await crowd.end()


@pytest.mark.proves("a flood gives way in a room full of bytes")
async def test_bytes_are_shared_like_places() -> None:
    crowd = Crowd(hold_of(max_bytes=1000))
    crowd.send("flood", 12, size_bytes=100)
    await crowd.settle()
    crowd.send("other", 1, size_bytes=350)
    await crowd.settle()
    assert crowd.refused == ["flood"] * 6 and crowd.hold.held_bytes("m") == 950
    crowd.send("other", 1, size_bytes=350)  # its part is full now
    crowd.send("other", 1, size_bytes=2000)  # more than there is at all: nobody is sent away for it
    await crowd.settle()
    assert crowd.refused.count("other") == 2 and crowd.hold.held_bytes("m") == 950
    await crowd.end()


@pytest.mark.timeout(120)
async def test_b_is_served_while_a_floods_with_two_thousand_requests() -> None:
    """Over real sockets: B's requests wait for a place or two, not for A's two thousand."""
    async with running_gateway(
        keys=(key("a"), key("b")), max_inflight_per_seat=PER_SEAT, hold_max_requests=256, hold_max_age_s=60.0
    ) as scene:
        replica = await scene.replica(tokens=1, token_every_s=0.05)  # 160 requests a second
        await scene.route(replica)
        raw = request(json.dumps(chat(user="a")).encode(), f"authorization: {bearer('a')['authorization']}")
        statuses: list[int] = []

        async def flood() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", scene.server.port)
            writer.write(raw)
            statuses.append(int((await reader.readuntil(b"\r\n")).split()[1]))
            await reader.readuntil(b"}}") if statuses[-1] == 200 else None
            writer.close()

        flooding = [asyncio.create_task(flood()) for _ in range(2000)]
        await until(lambda: scene.traffic.held == 256 and len(statuses) > 1000, 60)
        overtook = []
        for _ in range(8):
            assert scene.traffic.held > 100, "A waits all the time"
            reader, writer = await asyncio.open_connection("127.0.0.1", scene.server.port)
            before = len(replica.bodies)
            writer.write(request(json.dumps(chat(user="b")).encode(), f"authorization: {bearer('b')['authorization']}"))
            assert b" 200 " in await reader.readuntil(b"\r\n")
            users = [json.loads(body)["user"] for body in replica.bodies[before:]]
            overtook.append(users.index("b"))
            writer.close()
        for task in flooding:
            task.cancel()
        await asyncio.gather(*flooding, return_exceptions=True)
        # First come, first served would let more than a hundred of A's go before each of them.
        assert max(overtook) <= 4 * PER_SEAT, overtook
        assert set(statuses) <= {200, 429} and 429 in statuses
        assert scene.server.gateway.report().traffic[MODEL].arrivals > 0
