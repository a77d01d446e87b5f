"""Asking something that may hang: a network filesystem whose server is gone, a driver in trouble.

A thread that hangs in the kernel cannot be ended. It is left behind as a daemon, and the process can end all the same.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TypeVar

T = TypeVar("T")


class NoAnswer(Exception):
    """Nothing came back in time."""


def within(deadline_s: float, ask: Callable[[], T]) -> T:
    """What ``ask`` returns or raises.

    Raises:
        NoAnswer: after ``deadline_s`` seconds.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        # Outermost loop of this thread: whatever it is, it is raised again where the question was asked.
        except Exception as error:  # noqa: BLE001
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return answer.result(timeout=deadline_s)
    except FutureTimeout:
        if answer.done():  # what was asked raised a TimeoutError of its own
            raise
        raise NoAnswer(f"no answer within {deadline_s:g} s") from None
