"""A pool of buffers, lent for one chunk at a time, that never lends memory on which a request may still write.

A request that hangs in the kernel cannot be taken back: hours later it may write into its buffer. So whoever gives up
on a task *buries* its buffer. A buried buffer comes back into the pool only when the task itself gives it back. Until
then a replacement takes its place, so that one hanging mount does not starve the others; at most as many replacements
are made as the pool had buffers, so that the memory is bounded by twice the pool. After that `borrow` waits.

Not guaranteed: fairness between borrowers. After a fork the child must make its own pool: the parent's memory does not
exist there, and its locks may be held by threads that do not.
"""

import os
import threading
import time
from collections import deque

from ebbtide.storage.errors import Refused
from ebbtide.storage.memory.arena import Arena, Register
from ebbtide.storage.transport.transport import ALIGNMENT_BYTES, CHUNK_BYTES

# Two for each of the default transport's four threads: one being filled, one still being copied away by its Pending.
DEFAULT_COUNT = 8


class Buffer:
    """Memory lent by a pool; give back exactly what was borrowed.

    Attributes:
        memory: its bytes; the address is a multiple of ``ALIGNMENT_BYTES``.
    """

    __slots__ = ("memory",)

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory


class BufferPool:
    """Lends buffers of one size. Shared by threads and transports; not by processes."""

    def __init__(self, count: int, buffer_bytes: int = CHUNK_BYTES, *, register: Register | None = None) -> None:
        """Make ``count`` buffers now.

        Args:
            count: buffers, at least one.
            buffer_bytes: of each; a multiple of ``ALIGNMENT_BYTES``.
            register: see `Arena`; also called for each replacement.

        Raises:
            ValueError: for a count or size that cannot be.
            MemoryError: when the kernel refuses.
        """
        if count < 1 or buffer_bytes < ALIGNMENT_BYTES or buffer_bytes % ALIGNMENT_BYTES:
            hint = f"give at least one, of a multiple of {ALIGNMENT_BYTES} bytes"
            raise ValueError(f"a pool of {count} buffers of {buffer_bytes} bytes makes no sense: {hint}")
        self.count, self.buffer_bytes = count, buffer_bytes
        self._register = register
        self._pid = os.getpid()
        arena = Arena(count * buffer_bytes, register=register)
        starts = range(0, count * buffer_bytes, buffer_bytes)
        self._free = deque(Buffer(arena.view[start : start + buffer_bytes]) for start in starts)
        self._lent: set[Buffer] = set()
        self._buried: set[Buffer] = set()
        self._spare: list[Buffer] = []  # came back from the graveyard after a replacement had taken their place
        self._replacements = 0
        self._changed = threading.Condition()

    @property
    def free(self) -> int:
        """Buffers that can be borrowed now, replacements that would be made for it not counted."""
        with self._changed:
            return len(self._free)

    @property
    def buried(self) -> int:
        """Buffers whose tasks were given up and have not ended."""
        with self._changed:
            return len(self._buried)

    @property
    def replacements(self) -> int:
        """Buffers made beyond ``count``; never more than ``count``."""
        return self._replacements

    def borrow(self, timeout_s: float) -> Buffer | None:
        """A buffer, or None if none became free in ``timeout_s`` seconds (0: do not wait).

        Raises:
            Refused: in a process that did not make this pool.
            MemoryError: when no memory for a replacement can be had.
        """
        if os.getpid() != self._pid:
            hint = "make a pool of its own in the child (process_pool does)"
            raise Refused(f"this buffer pool belongs to process {self._pid}, which forked this one: {hint}")
        until = time.monotonic() + timeout_s
        with self._changed:
            while not self._free and not self._replace_one():
                left = until - time.monotonic()
                if left <= 0 or not self._changed.wait(min(left, threading.TIMEOUT_MAX)):
                    if self._free:
                        break
                    return None
            buffer = self._free.pop()  # what was used last: some of it may be in the processor's cache
            self._lent.add(buffer)
            return buffer

    def give_back(self, buffer: Buffer) -> None:
        """Its task has ended, in whatever way, also long after it was buried: it may be lent again."""
        with self._changed:
            if buffer in self._lent:
                self._lent.remove(buffer)
                self._free.append(buffer)
            else:
                self._buried.remove(buffer)  # KeyError: given back twice, or never lent: a bug of ours
                self._keep_count(buffer)
            self._changed.notify()

    def bury(self, buffer: Buffer) -> bool:
        """Its task was given up but has not ended: do not lend it until the task gives it back.

        Returns:
            False when the task gave it back already.
        """
        with self._changed:
            if buffer not in self._lent:
                return False
            self._lent.remove(buffer)
            self._buried.add(buffer)
            self._changed.notify()
            return True

    def _keep_count(self, buffer: Buffer) -> None:
        if len(self._free) + len(self._lent) < self.count:
            self._free.append(buffer)
        else:
            self._spare.append(buffer)

    def _replace_one(self) -> bool:
        if len(self._free) + len(self._lent) >= self.count:
            return False
        if self._spare:
            self._free.append(self._spare.pop())
            return True
        if self._replacements >= self.count:
            return False
        arena = Arena(self.buffer_bytes, register=self._register)
        self._replacements += 1
        self._free.append(Buffer(arena.view[: self.buffer_bytes]))
        return True


_process_pools: dict[int, BufferPool] = {}  # by process id: a forked child finds none, and makes its own
_making = threading.Lock()


def process_pool(count: int | None = None, *, register: Register | None = None) -> BufferPool:
    """The pool of this process, made by the first call and kept for ever.

    Args:
        count: buffers of ``CHUNK_BYTES``; None takes what is there, or ``DEFAULT_COUNT``.
        register: see `Arena`; only the first call may give it.

    Raises:
        Refused: when the pool is there already and differs from what is asked for.
    """
    with _making:
        pool = _process_pools.get(os.getpid())
        if pool is None:
            pool = _process_pools[os.getpid()] = BufferPool(count or DEFAULT_COUNT, register=register)
        elif (count is not None and count != pool.count) or register is not None:
            hint = "set its size once, where the process starts"
            raise Refused(f"the buffer pool of this process was made already, with {pool.count} buffers: {hint}")
        return pool


def _forget_the_parents_lock() -> None:
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_forget_the_parents_lock)
