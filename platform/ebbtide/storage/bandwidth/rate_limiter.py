"""Sharing one filesystem's bandwidth among all that a node does with it: the hands of `rate_scheduler`.

Threads of any number of processes share one book: a small node-local file, locked for microseconds by ``flock`` (this
is never a network filesystem). A process that stands still while it has the lock (a checkpoint of it is being taken)
must not stop the others: who cannot have the lock soon goes on with a book of its own.

Transports ask by themselves (`traffic`). Use around what moves bytes in another way::

    with rates.transfer(TrafficClass.PREFETCH) as admit:
        for chunk in chunks:
            admit(len(chunk))
            send(chunk)

Not guaranteed: anything about the network or the server, whose other clients nobody here knows; see
`concurrency_limit`.
"""

import contextlib
import fcntl
import json
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeVar
from uuid import uuid4

from ebbtide.storage.bandwidth.rate_scheduler import (
    ASK_AGAIN_S,
    Answer,
    Ask,
    Budget,
    ClassEntry,
    RateSchedule,
    TrafficClass,
    TransferEntry,
    leave,
    take,
)
from ebbtide.storage.errors import WaitTimeout

T = TypeVar("T")

_LOCK_PATIENCE_S = 0.25  # the lock is held for some 0.1 ms; whoever keeps it longer stands still
_LOCK_RETRY_S = 0.001
_ALONE_S = 5.0  # before a lock that could not be had is tried again
_LEAST_WAIT_S = 0.0005
_BOOK_LIMIT_BYTES = 1 << 20  # some thousand transfers
_BOOK_BYTES = 1 << 14  # a hundred transfers; memory for the limit itself would be mapped anew each time, for 0.08 ms


class Shelf(Protocol):
    """Where a book lies."""

    def update(self, change: Callable[[RateSchedule | None], tuple[RateSchedule, T]]) -> T:
        """Let nobody else touch it while ``change`` makes a new book of the present one; None: there is none."""


class OwnShelf:
    """The book of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._book: RateSchedule | None = None

    def update(self, change: Callable[[RateSchedule | None], tuple[RateSchedule, T]]) -> T:
        """See `Shelf`."""
        with self._lock:
            self._book, answer = change(self._book)
            return answer


class NodeShelf:
    """The book of all processes of one user on a node.

    Args:
        path: node-local, best in memory (/dev/shm); its directory is made with mode 0700. One per filesystem shared.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.why_alone = ""
        """Why this process goes on with a book of its own; empty if it does not."""
        self._begin()

    def _begin(self) -> None:
        self._pid, self._fd = os.getpid(), -1
        self._own, self._mutex = OwnShelf(), threading.Lock()
        self._alone_until_s = -math.inf
        self._last: tuple[bytes, RateSchedule | None] = (
            b"",
            None,
        )  # what was written last, so as not to parse it again

    def update(self, change: Callable[[RateSchedule | None], tuple[RateSchedule, T]]) -> T:
        """See `Shelf`."""
        if self._pid != os.getpid():  # a fork: another thread may have had our locks, and the file's is its parent's
            self._begin()
        if time.monotonic() < self._alone_until_s:
            return self._own.update(change)
        with self._mutex:
            try:
                fd = self._locked()
            except OSError as error:
                self._go_alone(f"cannot lock {self._path}: {error.strerror}")
                return self._own.update(change)
            try:
                self.why_alone = ""
                data = _content(fd)
                book, answer = change(self._last[1] if data == self._last[0] else _decode(data))
                data = _encode(book)
                self._last = data, book
                # Cut after it was written: whoever is killed in between leaves a text that is none, and so no book.
                os.pwrite(fd, data, 0)
                os.ftruncate(fd, len(data))
                return answer
            except OSError as error:
                self._go_alone(f"cannot keep {self._path}: {error.strerror}")
                return self._own.update(change)
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)

    def _go_alone(self, why: str) -> None:
        self.why_alone, self._alone_until_s = why, time.monotonic() + _ALONE_S

    def _locked(self) -> int:
        fd = self._opened()
        until_s = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except BlockingIOError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(_LOCK_RETRY_S)

    def _opened(self) -> int:
        """Kept open; anew when the file was removed, or nobody else would see what is written there."""
        if self._fd >= 0 and os.fstat(self._fd).st_nlink:
            return self._fd
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        os.makedirs(self._path.parent, mode=0o700, exist_ok=True)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        return self._fd


class Rates:
    """Hands out the right to move bytes; one per process and filesystem, for any number of threads.

    Args:
        shelf: where the book lies; by default this process shares with nobody.
        clock_s: the same for all who share the shelf.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        shelf: Shelf | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._budget, self._shelf = budget, shelf or OwnShelf()
        self._clock_s, self._sleep = clock_s, sleep

    @property
    def budget(self) -> Budget:
        """What is shared."""
        return self._budget

    def transfer(
        self, kind: TrafficClass, *, patience_s: float = math.inf, cancel: threading.Event | None = None
    ) -> "Admission":
        """Take part with one transfer, until the context ends.

        Args:
            patience_s: how long one chunk may wait.
            cancel: set by whoever wants the transfer to end.
        """
        return Admission(self, kind, patience_s, cancel)

    def _ask(self, ask: Ask) -> Answer:
        def change(book: RateSchedule | None) -> tuple[RateSchedule, Answer]:
            now_s = self._clock_s()
            return take(book or RateSchedule.new(self._budget, now_s), self._budget, ask, now_s)

        return self._shelf.update(change)

    def _leave(self, transfer: str) -> None:
        def change(book: RateSchedule | None) -> tuple[RateSchedule, None]:
            return leave(book or RateSchedule.new(self._budget, self._clock_s()), transfer), None

        self._shelf.update(change)


@dataclass
class Admission:
    """One transfer's door: call it before each chunk, from any of its threads, which pass one after the other.

    Attributes:
        why: why one of its threads waits now, in words; empty if none does.
        waited_s: seconds that its threads have waited, added up.
        sharers: how many transfers of its class the node had when it asked last, itself included.
    """

    _rates: Rates
    _kind: TrafficClass
    _patience_s: float
    _cancel: threading.Event | None
    why: str = ""
    waited_s: float = 0.0
    sharers: int = 1
    _name: str = field(default_factory=lambda: f"{os.getpid()}.{uuid4().hex[:8]}")
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, nbytes: int, wait: Callable[[float], None] | None = None) -> None:
        """Wait until ``nbytes`` may be moved.

        Args:
            nbytes: at once; much is asked for in pieces.
            wait: how to wait so many seconds, 0 included; what it raises ends the wait.

        Raises:
            WaitTimeout: the transfer's patience is at its end; it says what was waited for.
            CancelledError: the transfer was cancelled (concurrent.futures).
        """
        began_s = self._rates._clock_s()
        until_s = began_s + self._patience_s
        if not self._turn.acquire(timeout=min(self._patience_s, threading.TIMEOUT_MAX)):
            raise WaitTimeout(self._what, why=self.why, after_s=self._patience_s)
        try:
            left = nbytes
            while left > 0:
                left -= self._admit(min(left, self._rates.budget.ask_bytes(self._kind)), until_s, wait or self._wait)
        finally:
            self.why = ""
            self.waited_s += self._rates._clock_s() - began_s
            self._turn.release()

    @property
    def _what(self) -> str:
        return f"waiting to move bytes ({self._kind.name})"

    def _admit(self, nbytes: int, until_s: float, wait: Callable[[float], None]) -> int:
        while True:
            wait(0.0)
            answer = self._rates._ask(Ask(self._kind, self._name, nbytes))
            self.sharers = answer.sharers
            if answer.granted:
                wait(answer.wait_s)
                return nbytes
            self.why = answer.why
            left_s = until_s - self._rates._clock_s()
            if left_s <= 0:
                raise WaitTimeout(self._what, why=answer.why, after_s=self._patience_s)
            wait(max(min(answer.wait_s, ASK_AGAIN_S, left_s), _LEAST_WAIT_S))

    def _wait(self, seconds: float) -> None:
        if self._cancel is not None:
            if self._cancel.wait(seconds):
                raise CancelledError(f"{self._kind.name}: cancelled while it waited for its turn")
        elif seconds > 0:
            self._rates._sleep(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rates._leave(self._name)


def _content(fd: int) -> bytes:
    found = os.pread(fd, _BOOK_BYTES, 0)
    return found if len(found) < _BOOK_BYTES else os.pread(fd, _BOOK_LIMIT_BYTES, 0)


def _encode(book: RateSchedule) -> bytes:
    classes = {kind.name: [entry.asked_s, entry.credit_bytes] for kind, entry in book.classes.items()}
    transfers = {
        name: [entry.kind.name, entry.fair_bytes, entry.waiting, entry.asked_s]
        for name, entry in book.transfers.items()
    }
    return json.dumps([book.at_s, book.tokens, classes, transfers]).encode()


def _decode(data: bytes) -> RateSchedule | None:
    """None for what is no book: it is begun anew, which costs one burst."""
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        at_s, tokens, classes, transfers = json.loads(data)
        book = RateSchedule(
            float(at_s),
            float(tokens),
            {kind: ClassEntry(*map(float, classes[kind.name])) for kind in TrafficClass},
            {
                name: TransferEntry(TrafficClass[kind], float(fair_bytes), waiting is True, float(asked_s))
                for name, (kind, fair_bytes, waiting, asked_s) in transfers.items()
            },
        )
        if math.isfinite(book.at_s) and math.isfinite(book.tokens):
            return book
    return None
