"""The gateway is kept on the settings in force: sent once, again after a failure, and never in the way of a tick."""

import asyncio
from typing import cast

from ebbtide.client.seat_actuator import SeatActuator
from ebbtide_autoscaler.control.gateway_sync import GatewaySync


class FakeServe:
    def __init__(self) -> None:
        self.told: list[str] = []
        self.refuses = False

    async def start_gateway(self, settings_json: str) -> None:
        await asyncio.sleep(0)
        if self.refuses:
            raise RuntimeError("Serve is down")
        self.told.append(settings_json)


async def ticks(keeper: GatewaySync, settings: str, number: int = 5) -> None:
    for _ in range(number):
        keeper.keep(settings)
        await asyncio.sleep(0.001)


def a_keeper() -> tuple[FakeServe, GatewaySync]:
    serve = FakeServe()
    return serve, GatewaySync(cast(SeatActuator, serve))


async def test_the_same_settings_are_sent_once_and_changed_ones_at_once() -> None:
    serve, keeper = a_keeper()
    await ticks(keeper, "a")
    await ticks(keeper, "b")
    assert serve.told == ["a", "b"] and keeper.has("b")


async def test_a_failure_is_shown_since_when_and_tried_again() -> None:
    serve, keeper = a_keeper()
    serve.refuses = True
    await ticks(keeper, "a")
    since_s = keeper.trouble_since_s
    assert keeper.trouble == "RuntimeError: Serve is down" and since_s > 0 and not keeper.has("a")
    serve.refuses = False
    await ticks(keeper, "a")
    assert serve.told == [], "not before the pause is over"
    keeper._due_s = 0.0  # the pause is over
    await ticks(keeper, "a")
    assert serve.told == ["a"] and (keeper.trouble, keeper.trouble_since_s) == ("", 0.0)


async def test_it_is_sent_again_now_and_then_for_a_serve_that_lost_it() -> None:
    serve, keeper = a_keeper()
    await ticks(keeper, "a")
    keeper._due_s = 0.0  # it was long ago
    await ticks(keeper, "a", 1)
    assert serve.told == ["a", "a"]
