"""Progress is said when it changes, also that nobody answers, and it ends."""

import pytest

from ebbtide_autoscaler.lifecycle.progress import NotInTime, until_done


class Time:
    def __init__(self) -> None:
        self.now_s = 0.0

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def watched(states: list[int | None], *, limit_s: float = 100.0) -> tuple[list[str], int]:
    said: list[str] = []
    time, left = Time(), list(states)
    last = until_done(
        lambda: left.pop(0) if len(left) > 1 else left[0],
        done=lambda number: number == 0,
        words=lambda number: f"{number} left" if number else "",
        say=said.append,
        limit_s=limit_s,
        silent="silence",
        clock=time.clock,
        sleep=time.sleep,
    )
    return said, last


def test_each_change_is_said_once() -> None:
    assert watched([2, 2, 1, None, None, 1, 0]) == (["2 left", "1 left", "silence", "1 left"], 0)


def test_it_gives_up_with_what_was_said_last() -> None:
    with pytest.raises(NotInTime, match="2 left"):
        watched([2], limit_s=1.0)
