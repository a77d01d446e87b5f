"""Work in the background: nice, answered or failed like any other, and never in the way."""

import asyncio
import os
import threading

import pytest

from ebbtide_serve.process.background import NICE, nicely


async def test_it_runs_at_the_lowest_priority_and_so_do_its_own_threads() -> None:
    def look() -> list[int]:
        found = [os.getpriority(os.PRIO_PROCESS, threading.get_native_id())]
        inner = threading.Thread(
            target=lambda: found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        )
        inner.start()
        inner.join()
        return found

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert await nicely(look, "look") == [NICE, NICE]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


async def test_what_it_raises_is_raised_where_it_is_awaited() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await nicely(fail, "fail")


async def test_whoever_is_cancelled_does_not_wait_for_it() -> None:
    goes_on = threading.Event()
    task = asyncio.create_task(nicely(goes_on.wait, "wait"))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5.0)
    goes_on.set()
