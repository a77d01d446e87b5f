"""Blocking calls (to Ray, to Serve) from an event loop: in threads of their own, with a deadline, one of a kind.

Ray's calls block for as long as its GCS is away, up to minutes, and cannot be interrupted. A thread that hangs is
left alone; until it comes back the same call is not made again, so that an outage costs at most one thread per kind
of call, and never one of the event loop's few default threads.
"""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


class StillUnderWay(TimeoutError):
    """The same call was made before and has not come back; nothing was done."""


class BoundedCalls:
    """Makes the calls. To be used from one event loop."""

    def __init__(self, name: str, *, threads: int = 16) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._under_way: dict[Hashable, Future[Any]] = {}

    async def __call__(
        self, key: Hashable, timeout_s: float, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """``function(*args, **kwargs)`` in a thread.

        Args:
            key: of this kind of call; while one is under way no other starts.
            timeout_s: how long to wait; the call itself goes on after that.

        Raises:
            StillUnderWay: an earlier call of this kind has not come back.
            TimeoutError: no answer in time.
        """
        if key in self._under_way:
            raise StillUnderWay(f"{key} has not come back yet")
        call = self._threads.submit(function, *args, **kwargs)
        self._under_way[key] = call
        call.add_done_callback(lambda _: self._under_way.pop(key, None))
        waiting = asyncio.wrap_future(call)
        try:
            return cast(T, await asyncio.wait_for(asyncio.shield(waiting), timeout_s))
        except TimeoutError:
            waiting.add_done_callback(_forget)
            raise TimeoutError(f"{key}: no answer within {timeout_s:g} s") from None

    def under_way(self) -> frozenset[Hashable]:
        """The kinds of calls that have not come back."""
        return frozenset(self._under_way)


def _forget(late: "asyncio.Future[Any]") -> None:
    """Take note of how a call ended that nobody waits for, or asyncio would complain."""
    if not late.cancelled():
        late.exception()
