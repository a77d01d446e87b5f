"""Saying how something comes along until it is done: each change of words once, never the same line twice."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LOOK_EVERY_S = 0.3


class NotInTime(TimeoutError):
    """It was not done within the limit; the message is what was said last."""


def until_done(
    look: Callable[[], T | None],
    *,
    done: Callable[[T], bool],
    words: Callable[[T], str],
    say: Callable[[str], None],
    limit_s: float,
    silent: str = "the arbiter does not answer; everything that runs goes on",
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Look again and again until ``done``, saying ``words`` when they change.

    Args:
        look: the present state; None: nobody answered, which is said as ``silent`` and tried again.
        limit_s: seconds after which to give up.

    Raises:
        NotInTime: it was not done by then.
    """
    deadline_s = clock() + limit_s
    said = ""
    while True:
        found = look()
        now = silent if found is None else words(found)
        if now and now != said:
            say(now)
            said = now
        if found is not None and done(found):
            return found
        if clock() > deadline_s:
            raise NotInTime(said or "nothing has changed")
        sleep(LOOK_EVERY_S)
