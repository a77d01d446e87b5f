"""One class of traffic in one process: `rate_limiter` lets each chunk go, `concurrency_limit` how many at once.

A transport that has a `Traffic` asks here before each chunk of each transfer, so nobody who moves bytes has to think of
it. Threads are added to a transfer and taken from it while it runs: between two chunks each looks whether the class has
too many at work, or too few. Nobody waits for a place: a transfer always keeps one thread, and one whose requests hang
counts no more once it was given up. So a thread that hangs or a process that is killed holds up nobody.

A transfer alone begins with ``START`` threads, never has fewer than ``LEAST``, and tries more and fewer now and then;
they stay where they are worth it. The transfers of a process share what was found. The processes of a node do not see
each other's findings, and each would gain by more than its part; so the book, which knows how many transfers there are,
bounds all of them together.

Not guaranteed: anything among nodes.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from ebbtide.storage.bandwidth.concurrency_limit import Concurrency
from ebbtide.storage.bandwidth.rate_limiter import Admission, Rates
from ebbtide.storage.bandwidth.rate_scheduler import TrafficClass
from ebbtide.storage.transport.transport import CHUNK_BYTES, Range

# On a quiet machine four and eight move the same (2.13 and 2.18 GB/s hashed; the machine of docs/measured.md).
# On a busy one threads wait for the processor instead of for the disk, and more of them keep it busy: beside a load of
# 15 to 25 hashed reads came to 0.80 to 0.89 of fio with four, 0.82 to 0.99 with eight, for the same CPU (few rounds).
START, LEAST = 8, 6  # alone never fewer, whatever is found
MOST = 16  # 16 requests of 16 MiB, 256 MiB: 25 GB/s at 10 ms each
# Of a class on a node: eight GPUs with four each; eight for each took four times as long on Lustre (cudf #17185).
NODE_MOST = 32
LEAVE_BYTES = 2 * CHUNK_BYTES  # asked for at once, at least: the book costs 0.1 to 0.2 ms
# And as much more as is moved in this time, where that keeps nobody waiting (`Budget.ask_bytes`). Well below the time
# after which lower classes take a class that does not ask for quiet.
LEAVE_S = 0.1
WAITING = "wait for leave to move"


class Team(Protocol):
    """The threads of a transfer; a `TransferThreads` is one."""

    @property
    def stopped(self) -> bool:
        """Whether it failed or was given up."""

    def doing(self, action: str, offset: int | None) -> None:
        """Called by a thread that begins something; may raise to end it."""

    def pause(self, seconds: float) -> None:
        """Wait; may raise to end it."""

    def waiting_for_others(self) -> AbstractContextManager[None]:
        """Within it, one thread waits for what is not the transfer's fault."""

    def hire(self) -> bool:
        """One thread more; False: there is none to be had."""


class Traffic:
    """All transfers of one process in one class on one filesystem. May be used by several threads.

    Args:
        rates: shared with all processes of the node.
        kind: the class.
        concurrency: finds how many requests shall be in flight.
    """

    def __init__(
        self,
        rates: Rates,
        kind: TrafficClass,
        *,
        concurrency: Concurrency | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rates, self.kind = rates, kind
        self._concurrency = concurrency or Concurrency(start=START, least=LEAST, most=MOST)
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._transfers: list[Lanes] = []

    @property
    def limit(self) -> int:
        """How many requests shall be in flight now, of all transfers of this process together."""
        return self._concurrency.limit

    @contextmanager
    def transfer(self, team: Team, nbytes: int, *, most: int | None = None, fixed: bool = False) -> Iterator["Lanes"]:
        """Take part with one transfer, until the context ends.

        Args:
            team: its threads.
            nbytes: that it will move.
            most: threads that it can use.
            fixed: its threads neither come nor go, and nothing is learnt of them.
        """
        with self.rates.transfer(self.kind) as admission:
            lanes = Lanes(self, team, admission, nbytes, most or MOST)
            if fixed:
                yield lanes.fixed()
                return
            with self._lock:
                self._transfers.append(lanes)
            try:
                yield lanes
            finally:
                with self._lock:
                    self._transfers.remove(lanes)

    def _allowed(self, lanes: "Lanes") -> int:
        """To one transfer: what others leave of the limit, at least an equal share, and one in any case."""
        alive = [transfer for transfer in self._transfers if not transfer.team.stopped]
        others = sum(one.at_work for one in alive if one is not lanes)
        share = -(-self.limit // max(1, len(alive)))
        return max(1, min(max(self.limit - others, share), lanes.most, NODE_MOST // lanes.sharers))

    def _in_flight(self) -> int:
        return sum(transfer.moving for transfer in self._transfers if not transfer.team.stopped)


class Lanes:
    """One transfer's threads.

    Attributes:
        most: that it can use.
        at_work: that it has, those that were hired and have not begun included.
        moving: that have leave and a chunk.
    """

    def __init__(self, traffic: Traffic, team: Team, admission: Admission, nbytes: int, most: int) -> None:
        """Made by `Traffic.transfer`."""
        self.team, self.most = team, most
        self.at_work = self.moving = 0
        self._traffic, self._admission = traffic, admission
        self._unasked, self._granted = nbytes, 0
        self._asked, self._asked_s = 0, -math.inf  # last: how much, and when
        self._hired = self._running = 0
        self._asking = threading.Lock()
        self._fixed = False

    def fixed(self) -> "Lanes":
        """Itself, with threads that neither come nor go."""
        self._fixed = True
        return self

    @property
    def sharers(self) -> int:
        """How many transfers of this class the node has, this one included."""
        return self._admission.sharers

    def first(self, chunks: int) -> int:
        """With how many threads to begin, for so many chunks. They count from now on."""
        with self._traffic._lock:
            self._hired = self.at_work = min(self._traffic._allowed(self), max(1, chunks))
            return self.at_work

    def over(self, items: Iterator[Range]) -> Iterator[Range]:
        """One thread's way through what all of them share: each item when there is leave to move it.

        Ends before the items do if there are too many threads; another one goes on.
        """
        gone = False
        self._begin()
        try:
            for item in items:
                self.team.doing(WAITING, item.offset)
                self._ask(item.length)
                began_s = self._begin_item()
                try:
                    yield item
                finally:
                    self._end_item()
                if self._fixed:
                    continue
                if gone := self._learn(item.length, self._traffic._clock_s() - began_s):
                    return
                if self._needs_one_more() and not self.team.hire():
                    self._not_hired()
        finally:
            if not gone:
                with self._traffic._lock:
                    self.at_work -= 1
                    self._running -= 1

    def _ask(self, nbytes: int) -> None:
        with self._asking:  # whoever has it pauses as a team does, and so ends when the transfer does
            missing = nbytes - self._granted
            if missing > 0:
                ask = max(missing, min(self._leave_bytes(), self._unasked))
                with self.team.waiting_for_others():
                    self._admission(ask, self.team.pause)
                self._unasked = max(0, self._unasked - ask)
                self._granted += ask
                self._asked = ask
            self._granted -= nbytes

    def _leave_bytes(self) -> int:
        """How much to ask for at once, by how fast the last leave was used up."""
        now_s = self._traffic._clock_s()
        since_s, self._asked_s = now_s - self._asked_s, now_s
        by_speed = int(self._asked * LEAVE_S / max(since_s, 1e-6))
        most = self._traffic.rates.budget.ask_bytes(self._traffic.kind)
        return max(LEAVE_BYTES, min(by_speed, most, 2 * self._asked))

    def _begin(self) -> None:
        with self._traffic._lock:
            self._running += 1
            if self._hired:
                self._hired -= 1  # counted already
            else:
                self.at_work += 1

    def _begin_item(self) -> float:
        with self._traffic._lock:
            self.moving += 1
        return self._traffic._clock_s()

    def _end_item(self) -> None:
        with self._traffic._lock:
            self.moving -= 1

    def _learn(self, nbytes: int, seconds: float) -> bool:
        """From a chunk that was moved; whether its thread is one too many now."""
        with self._traffic._lock:
            self._traffic._concurrency.observe(nbytes, seconds, self._traffic._in_flight() + 1)
            if self._running == 1 or self.at_work <= self._traffic._allowed(self):  # the last one goes on to the end
                return False
            self.at_work -= 1
            self._running -= 1
            return True

    def _needs_one_more(self) -> bool:
        with self._traffic._lock:
            if self.at_work >= self._traffic._allowed(self):
                return False
            self._hired += 1
            self.at_work += 1
            return True

    def _not_hired(self) -> None:
        with self._traffic._lock:
            self._hired -= 1
            self.at_work -= 1
