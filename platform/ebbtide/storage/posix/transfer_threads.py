"""The threads of one transfer: every call that may hang runs in them, so that the caller always returns in time.

A call into the kernel cannot be cancelled. So the caller's own thread makes none: a *lead* thread opens, starts more
threads for the chunks and closes, while the caller waits for its end or for the deadline. At the deadline the crew is
given up: no further call is begun and no callback is called, its buffers are buried until their calls end
(`BufferPool.bury`), its threads are daemons, and the last one to end closes the files. After any *other* failure the
caller waits until all threads have ended, so that nothing writes into any memory once it returns. An interrupt in the
caller's thread (Ctrl-C, SIGTERM) waits a short while only, since the deadline may be minutes away; a crew that has not
ended by then is given up as at the deadline.

Why threads of its own for each transfer and not a pool: a mount that hangs keeps its threads for ever, and must not
keep those of a healthy one. Starting four costs far less than one chunk.
"""

import contextlib
import errno
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from ebbtide.storage.errors import TransferFailed, TransferTimeout
from ebbtide.storage.memory.buffer_pool import Buffer, BufferPool

# How soon a thread that waits for a buffer sees that its transfer has ended.
LOOK_EVERY_S = 0.05
# How long an interrupt waits for calls under way. Requests take well below a second, unless they hang; a sync may take
# longer, and does no harm when it is left alone.
INTERRUPTED_S = 5.0
# How long the caller's thread waits at once. Python sees a signal that another thread received, or that arrives just
# before the wait begins, only when the wait ends.
WAIT_AT_ONCE_S = 1.0

Item = TypeVar("Item")


class Stopped(Exception):
    """The transfer has failed or was given up: unwind, and touch nothing."""


class TransferThreads:
    """Runs one transfer; made by the caller's thread, used once."""

    def __init__(self, path: Path, pool: BufferPool | None, *, threads: int, deadline_s: float) -> None:
        """``deadline_s`` counts from now; without a ``pool`` nothing can be borrowed."""
        self._path, self._pool, self._threads = path, pool, threads
        self._deadline_s = deadline_s
        self._until = time.monotonic() + deadline_s
        self._waits_since = math.inf
        self._changed = threading.Condition()
        self._stop = False
        self._ended = False
        self._failure: BaseException | None = None
        self._lent: set[Buffer] = set()
        self._doing: dict[int, tuple[float, str, int | None]] = {}
        self._hire: Callable[[], bool] = _no_helper

    @property
    def stopped(self) -> bool:
        """Whether it failed or was given up: none of its threads begins anything any more."""
        return self._stop

    @property
    def ended(self) -> bool:
        """Whether all of its threads have ended their work."""
        return self._ended

    def run(self, lead: Callable[[], None]) -> None:
        """Run ``lead`` in a thread and wait for its end, but not beyond the deadline.

        Raises:
            TransferTimeout: threads are still at work; they end when the kernel lets them. A failure that came before
                is its cause.
            TransferFailed: EAGAIN: no thread could be started, and nothing was done.
            BaseException: what ``lead`` or any of its threads raised first, unchanged; all threads have ended. Or an
                interrupt in the caller's thread: threads that hang are still at work, as after TransferTimeout.
        """
        thread = threading.Thread(target=self._run_lead, args=(lead,), name=f"lead {self._path.name}", daemon=True)
        try:
            self._start(thread)
            ended = self._wait_for_end()
        except BaseException:  # an interrupt in the caller's thread: as with any failure, first let all calls end
            self._halt()
            if not self._wait_for_end():
                self._give_up()
            raise
        if not ended and self._give_up():
            raise self._timeout() from self._failure
        thread.join()  # it is past its last statement; with it go its references to the caller's memory
        failure, self._failure = self._failure, None  # else failure, traceback and crew would keep each other alive
        try:
            if failure is not None:
                raise failure
        finally:
            del failure

    def share(self, items: Iterable[Item], work: Callable[[Iterator[Item]], None], *, threads: int) -> None:
        """Run ``work`` in several threads, this one included, over one common iterator, and wait until all have ended.

        Raises:
            Stopped: when one of them failed, or the transfer was given up.
        """
        common = self._common(iter(items))
        helpers: list[threading.Thread] = []

        def hire() -> bool:
            helper = threading.Thread(target=self._run_helper, args=(work, common), daemon=True)
            helper.name = f"chunks {len(helpers) + 1} {self._path.name}"
            try:
                helper.start()
            except RuntimeError:  # the limit of threads: fewer will do
                return False
            helpers.append(helper)
            return True

        self._hire = hire
        try:
            while len(helpers) + 1 < min(threads, self._threads) and hire():
                pass
            self._run_helper(work, common)
            for helper in helpers:  # also those hired meanwhile, by one that is at work and so has not been joined
                helper.join()
        finally:
            self._hire = _no_helper  # else it would keep the caller's memory
        self.check()

    def hire(self) -> bool:
        """For a thread that is at work in `share`: let one more help; False if there is none to be had."""
        return self._hire()

    def check(self) -> None:
        """Raise `Stopped` once the transfer has failed or was given up."""
        with self._changed:
            if self._stop:
                raise Stopped

    def doing(self, action: str, offset: int | None) -> None:
        """Say what this thread begins now; raises `Stopped` if it must not."""
        with self._changed:
            if self._stop:
                raise Stopped
            self._doing[threading.get_ident()] = (time.monotonic(), action, offset)

    def fail(self, error: BaseException) -> None:
        """End the transfer because of ``error``; the first one counts. Said early, it lets the others stop sooner."""
        with self._changed:
            if self._failure is None and not isinstance(error, Stopped):
                self._failure = error
            self._stop = True
            self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        """Wait a little before asking again, 0 included; raises `Stopped` if there is no point any more."""
        with self._changed:
            if self._stop or (seconds > 0 and self._changed.wait_for(lambda: self._stop, seconds)):
                raise Stopped

    @contextlib.contextmanager
    def waiting_for_others(self) -> Iterator[None]:
        """Within it, time does not count against the deadline; for one thread at a time.

        The end wakes no thread: one that waits for the deadline looks again when it has come, and sees that it moved.
        """
        with self._changed:
            self._waits_since = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                if not self._stop:
                    self._until += time.monotonic() - self._waits_since
                self._waits_since = math.inf

    def borrow(self, offset: int) -> Buffer:
        """A buffer for the chunk at ``offset``; raises `Stopped` rather than wait beyond the transfer's end."""
        self.doing("borrow a buffer for", offset)
        while (buffer := self.borrow_at_once(LOOK_EVERY_S)) is None:
            self.check()
        return buffer

    def borrow_at_once(self, timeout_s: float = 0) -> Buffer | None:
        """A buffer if there is one."""
        assert self._pool is not None, "this transfer was made without buffers"
        buffer = self._pool.borrow(timeout_s)
        if buffer is not None:
            with self._changed:
                self._lent.add(buffer)
                if self._stop:
                    self._lent.remove(buffer)
                    self._pool.give_back(buffer)
                    raise Stopped
        return buffer

    def give_back(self, buffer: Buffer) -> None:
        """Nothing writes into it any more."""
        assert self._pool is not None
        with self._changed:
            self._lent.remove(buffer)
        self._pool.give_back(buffer)

    def _start(self, thread: threading.Thread) -> None:
        try:
            thread.start()
        except RuntimeError as error:
            self._ended = True  # it never began
            hint = "no thread could be started: raise the limit of threads (ulimit -u, pids.max), or run fewer"
            raise TransferFailed("open", self._path, errno=errno.EAGAIN, hint=hint) from error

    def _halt(self) -> None:
        with self._changed:
            self._until, self._waits_since = min(self._until, time.monotonic() + INTERRUPTED_S), math.inf
            self._stop = True
            self._changed.notify_all()

    def _wait_for_end(self) -> bool:
        with self._changed:
            while not self._ended and (left := self._until - min(time.monotonic(), self._waits_since)) > 0:
                self._changed.wait(min(left, WAIT_AT_ONCE_S))
            return self._ended

    def _give_up(self) -> bool:
        with self._changed:
            if self._ended:
                return False
            self._stop = True
            self._changed.notify_all()
            for buffer in self._lent:
                assert self._pool is not None
                self._pool.bury(buffer)
            return True

    def _timeout(self) -> TransferTimeout:
        with self._changed:
            _, action, offset = min(self._doing.values(), default=(0, "open", None))
        return TransferTimeout(action, self._path, after_s=self._deadline_s, offset=offset)

    def _run_lead(self, lead: Callable[[], None]) -> None:
        try:
            lead()
        except BaseException as error:  # noqa: BLE001  raised again in the caller's thread
            self.fail(error)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _run_helper(self, work: Callable[[Iterator[Item]], None], items: Iterator[Item]) -> None:
        try:
            work(items)
        except BaseException as error:  # noqa: BLE001  raised again in the caller's thread
            self.fail(error)
        finally:
            with self._changed:
                self._doing.pop(threading.get_ident(), None)

    def _common(self, items: Iterator[Item]) -> Iterator[Item]:
        return _Common(items, self._changed, lambda: self._stop)


def _no_helper() -> bool:
    return False


class _Common(Iterator[Item]):
    """An iterator for several threads, which ends when the transfer does."""

    def __init__(self, items: Iterator[Item], lock: contextlib.AbstractContextManager[bool], stop: Callable[[], bool]):
        self._items, self._lock, self._stop = items, lock, stop

    def __next__(self) -> Item:
        with self._lock:
            if self._stop():
                raise StopIteration
            return next(self._items)
