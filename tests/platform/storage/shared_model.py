"""Many processes on many nodes, one shared directory, virtual time: every operation may be late, every answer later.

The directory does atomically what a file server does atomically. Everything else lies as NFS clients do: listings and
the absence of a name come from a node's cache for up to ``list_lag_s``, contents are up to ``read_lag_s`` old, calls
fail now and then. An operation of a process that is paused or killed meanwhile takes effect all the same.
"""

import errno
import heapq
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from random import Random
from typing import Any

from ebbtide.storage.errors import StorageError, TransferFailed
from ebbtide.storage.files.file_operations import (
    CreateFile,
    ListNames,
    MakeDirectory,
    Operation,
    Overwrite,
    ReadFile,
    RemoveFile,
)


@dataclass(frozen=True)
class Sleep:
    """A thread's request to go on after so many seconds of its process's own clock."""

    seconds: float


Thread = Generator[Operation | Sleep, Any, None]


@dataclass
class Directory:
    """What the server holds, and what each node has in its caches."""

    list_lag_s: float = 0.0
    read_lag_s: float = 0.0
    files: dict[Path, list[tuple[float, bytes | None]]] = field(default_factory=dict)
    _listings: dict[int, tuple[float, frozenset[str]]] = field(default_factory=dict)
    _absent: dict[tuple[int, Path], float] = field(default_factory=dict)

    def content(self, path: Path) -> bytes | None:
        """The truth."""
        history = self.files.get(path)
        return history[-1][1] if history else None

    def names(self) -> frozenset[str]:
        """The truth."""
        return frozenset(path.name for path in self.files if self.content(path) is not None)

    def perform(self, node: int, operation: Operation, now_s: float) -> Any:
        """As a process on ``node`` gets to see it."""
        match operation:
            case MakeDirectory():
                return None
            case ListNames():
                made_s, names = self._listings.get(node, (float("-inf"), frozenset()))
                if now_s - made_s >= self.list_lag_s:
                    names = self.names()
                    self._listings[node] = (now_s, names)
                return names
            case ReadFile(path):
                if now_s - self._absent.get((node, path), float("-inf")) < self.list_lag_s:
                    return None
                found = self._read(path, now_s)
                if found is None:
                    self._absent[node, path] = now_s
                return found
            case CreateFile(path, data):
                self._absent.pop((node, path), None)
                self._listings.pop(node, None)  # a client that changes a directory asks for it anew
                if self.content(path) is not None:
                    return False
                self._write(path, data, now_s)
                return True
            case Overwrite(path, data, expected):
                if expected not in (self.content(path) or b""):
                    return False
                self._write(path, data, now_s)
                return True
            case RemoveFile(path):
                self._listings.pop(node, None)
                self._write(path, None, now_s)
                return None

    def _read(self, path: Path, now_s: float) -> bytes | None:
        """The oldest content that a client may still have."""
        history = self.files.get(path, [])
        for (_, content), (replaced_s, _) in pairwise(history):
            if replaced_s > now_s - self.read_lag_s:
                return content
        return history[-1][1] if history else None

    def _write(self, path: Path, data: bytes | None, now_s: float) -> None:
        self.files.setdefault(path, []).append((now_s, data))


class Process:
    """Threads that are paused and killed together, with a clock of their own."""

    def __init__(self, world: "World", node: int, *, rate: float, offset_s: float) -> None:
        self.world, self.node = world, node
        self.alive, self.paused_until_s = True, 0.0
        self._rate, self._offset_s = rate, offset_s

    def clock_s(self) -> float:
        """Runs a little wrong, and began some other time."""
        return self.world.now_s * self._rate + self._offset_s

    def start(self, thread: Thread) -> None:
        """Run a thread until it returns."""
        self.world.at(0.0, lambda: self._go_on(thread, None, None))

    def pause(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        self.paused_until_s = self.world.now_s + seconds

    def kill(self) -> None:
        """kill -9."""
        self.alive = False

    def _go_on(self, thread: Thread, answer: Any, error: StorageError | None) -> None:
        world = self.world
        if not self.alive:
            return
        if self.paused_until_s > world.now_s:
            world.at(self.paused_until_s - world.now_s, lambda: self._go_on(thread, answer, error))
            return
        try:
            request = thread.send(answer) if error is None else thread.throw(error)
        except StopIteration:
            return
        if isinstance(request, Sleep):
            world.at(request.seconds / self._rate, lambda: self._go_on(thread, None, None))
        else:
            world.at(world.latency_s(), lambda: self._answer(thread, request))

    def _answer(self, thread: Thread, operation: Operation) -> None:
        """The server has got it, whatever became of the process meanwhile."""
        world = self.world
        answer, error = None, None
        if world.random.random() < world.failing:
            error = TransferFailed("do", operation.path, errno=errno.EIO)
        if error is None or world.random.random() < 0.5:  # a failure may hide that it was done
            answer = world.directory.perform(self.node, operation, world.now_s)
        world.at(world.latency_s(), lambda: self._go_on(thread, answer, error))


class World:
    """Everything, and what is due when."""

    def __init__(self, random: Random, directory: Directory, *, slow: float = 0.05, failing: float = 0.0) -> None:
        self.random, self.directory = random, directory
        self.slow, self.failing = slow, failing
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def latency_s(self) -> float:
        """Half of a call: mostly short, sometimes far too long."""
        if self.random.random() < self.slow:
            return self.random.choice([1.0, 4.0, 9.0])
        return self.random.uniform(0.001, 0.1)

    def process(self, node: int) -> Process:
        """A new one; clocks differ by a per cent and by days."""
        rate, offset_s = self.random.uniform(0.99, 1.01), self.random.uniform(0, 1e6)
        return Process(self, node, rate=rate, offset_s=offset_s)

    def at(self, delay_s: float, what: Callable[[], None]) -> None:
        """Have ``what`` done later."""
        heapq.heappush(self._due, (self.now_s + delay_s, next(self._numbers), what))

    def run(self, until_s: float) -> None:
        """Let time pass."""
        while self._due and self._due[0][0] <= until_s:
            self.now_s, _, what = heapq.heappop(self._due)
            what()
        self.now_s = until_s
