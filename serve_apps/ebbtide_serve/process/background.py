"""Work that nobody waits for: in a thread of its own, at the lowest priority for the CPU."""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

NICE = 19  # the threads that it starts inherit it (sched(7): a thread's own on Linux)


def be_nice() -> None:
    """Give this thread, and those that it starts, the lowest priority for the CPU."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


async def nicely(work: Callable[[], T], name: str) -> T:
    """``work()`` in a daemon thread; if this is cancelled the work goes on, and its result is lost."""
    answer: Future[T] = Future()

    def run() -> None:
        be_nice()
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            answer.set_exception(error)
        else:
            answer.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.shield(asyncio.wrap_future(answer))
