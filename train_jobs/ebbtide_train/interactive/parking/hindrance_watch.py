"""Asks now and then what would keep a session from being parked, so that it is known before anybody wants its slot.

In a thread of its own: the supervisor looks at its tree ten times a second, and a helper that hangs is slow to say so.
"""

import threading
from collections.abc import Callable

from ebbtide_train.interactive.ports import InTheWay

EVERY_S = 15.0  # a look reads /proc: milliseconds for each process; a person who reads it does so a few times a day


class HindranceWatch:
    """One session's, over all its lives under one supervisor.

    Args:
        ask: what is in the way now; may take long, never raises.
    """

    def __init__(self, ask: Callable[[], InTheWay], *, every_s: float = EVERY_S) -> None:
        self._ask, self._every_s = ask, every_s
        self._turn = threading.Condition()
        self._lives, self._closed = False, False
        self._life, self._seen = 0, 0  # which one it is, and was looked at last
        self._found: InTheWay | None = None
        self._thread = threading.Thread(target=self._watch, name="hindrance-watch", daemon=True)

    @property
    def found(self) -> InTheWay | None:
        """The last answer about what runs now; None: there is none yet."""
        return self._found

    def begin(self) -> None:
        """It runs, or runs again: look at once, and then now and then."""
        self._set(lives=True)
        if not self._thread.is_alive():
            self._thread.start()

    def pause(self) -> None:
        """It does not run now."""
        self._set(lives=False)

    def close(self) -> None:
        """Look no more."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()

    def _set(self, *, lives: bool) -> None:
        with self._turn:
            self._lives, self._found = lives, None
            self._life += 1
            self._turn.notify_all()

    def _watch(self) -> None:
        while (life := self._next()) >= 0:
            found = self._ask()
            with self._turn:
                if self._life == life:  # else it is about what ran before
                    self._found, self._seen = found, life

    def _next(self) -> int:
        """Wait until it is time to look, which is at once at a new life; which life that is. -1: never again."""
        with self._turn:
            while not self._closed:
                self._turn.wait_for(lambda: self._closed or (self._lives and self._life != self._seen), self._every_s)
                if self._lives and not self._closed:
                    return self._life
            return -1
