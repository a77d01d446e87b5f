"""SIGTERM as Ctrl-C: what a command has to put right when it is stopped is put right either way."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def terminated_is_interrupted() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt in the main thread; elsewhere nothing changes."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
