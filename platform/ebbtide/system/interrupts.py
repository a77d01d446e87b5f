"""Signals that end a command: each as Ctrl-C, so that what has to be put right is put right; and none meanwhile.

A signal that was ignored from birth (`nohup`, a shell's background) stays ignored.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | signal.Handlers
ENDING = (signal.SIGTERM, signal.SIGHUP)


class Terminated(KeyboardInterrupt):
    """A signal that ends the process, not Ctrl-C; ``number`` is which."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def terminated_is_interrupted() -> Iterator[None]:
    """SIGTERM and SIGHUP raise `Terminated`, as Ctrl-C does, in the main thread; elsewhere nothing changes."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Terminated(number)

    with _handled(ENDING, interrupt):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """No signal that can be ignored ends what is done in here, nor Ctrl-C: for putting right, within seconds."""
    with _handled((signal.SIGINT, *ENDING), signal.SIG_IGN):
        yield


@contextmanager
def _handled(numbers: tuple[signal.Signals, ...], handler: Handler) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.getsignal(one) for one in numbers}
    taken = [one for one in numbers if before[one] not in (signal.SIG_IGN, None)]  # None: not set from Python
    for one in taken:
        signal.signal(one, handler)
    try:
        yield
    finally:
        for one in taken:
            signal.signal(one, before[one])
