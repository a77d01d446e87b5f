"""Blocking calls from an event loop, bounded."""

import asyncio
import threading
import time

import pytest

from ebbtide.client.bounded_calls import BoundedCalls, StillUnderWay


async def test_an_answer_and_an_error_come_back() -> None:
    calls = BoundedCalls("t")

    def fail(text: str) -> None:
        raise KeyError(text)

    assert await calls("k", 5.0, divmod, 7, 2) == (3, 1)
    with pytest.raises(KeyError, match="x"):
        await calls("k", 5.0, fail, "x")
    assert calls.under_way() == frozenset()


async def test_a_call_that_hangs_is_given_up_in_time_and_not_made_twice() -> None:
    calls = BoundedCalls("t")
    gate, made = threading.Event(), []

    def hang(number: int) -> None:
        made.append(number)
        gate.wait(30)
        raise RuntimeError("nobody waits for this any more")

    begun_s = time.monotonic()
    with pytest.raises(TimeoutError, match=r"k: no answer within 0\.1 s"):
        await calls("k", 0.1, hang, 1)
    with pytest.raises(StillUnderWay):
        await calls("k", 5.0, hang, 2)
    assert time.monotonic() - begun_s < 4.9
    assert made == [1] and calls.under_way() == {"k"}
    assert await calls("other", 5.0, abs, -1) == 1, "other calls go on"
    gate.set()
    while calls.under_way():
        await asyncio.sleep(0.01)
    assert await calls("k", 5.0, abs, -2) == 2
