"""A thread with an event loop of its own, which other threads wake and hand work to."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any


class LoopThread:
    """One thread; its event loop lives until the process ends, or its main coroutine does."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._woken: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()

    def start(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``main``; returns when the thread takes work."""

        async def begin() -> None:
            self._loop, self._woken = asyncio.get_running_loop(), asyncio.Event()
            self._ready.set()
            await main()

        threading.Thread(target=lambda: asyncio.run(begin()), name=self._name, daemon=True).start()
        self._ready.wait()

    def run(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        """Have the thread carry out ``work``, from any other thread."""
        assert self._loop is not None, "start comes first"
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wake(self) -> None:
        """End the pause that the thread is in, or its next one; from any thread."""
        if self._loop is not None and self._woken is not None:
            self._loop.call_soon_threadsafe(self._woken.set)

    async def pause(self, least_s: float, most_s: float) -> None:
        """In the thread itself: wait ``least_s``, then until it is woken or ``most_s`` are over."""
        assert self._woken is not None, "only the thread itself pauses"
        await asyncio.sleep(least_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), max(0.0, most_s - least_s))
        self._woken.clear()
