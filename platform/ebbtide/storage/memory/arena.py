"""Memory that lives as long as the process: aligned to 2 MiB, of huge pages where there are, touched in advance.

Why: the first touch of memory costs more than reading the bytes that go into it, and requests into 4 KiB pages are cut
small by the block layer. The same reads into a fresh buffer reached 0.18 of the storage's speed, into 4 KiB pages
0.74, into memory like this 0.99 (docs/measured.md, "What the design rests on"). So memory is never given back: an
`Arena` is made once and used again and again. That also makes late writes harmless: a request that hangs may still
write into it tomorrow.

Not guaranteed: huge pages (`Arena.huge_bytes` says what came; the kernel may be told ``never``, or be short of them).
In a forked child the memory does not exist: writes by the device into pages shared with a child are a known hazard of
O_DIRECT (open(2), NOTES), and a copy on write would double the memory. A child that touches it dies at once.

Source: madvise(2) for MADV_POPULATE_WRITE and MADV_DONTFORK; Documentation/admin-guide/mm/transhuge.rst.
"""

import ctypes
import errno
import mmap
import re
from collections.abc import Callable
from pathlib import Path

from ebbtide.storage.files import libc

HUGE_PAGE_BYTES = 2 << 20  # x86-64, and arm64 with 4 KiB base pages
SMAPS = Path("/proc/self/smaps")

# Called with the address and size of new memory, for instance to pin it for a GPU; given by whoever knows the GPU.
Register = Callable[[int, int], None]


class Arena:
    """One stretch of memory, as a rule never given back.

    Attributes:
        address: of its first byte, a multiple of 2 MiB.
        size_bytes: as asked for, rounded up to 2 MiB.
        populated: whether the kernel populated it by one order; else each page was touched.
    """

    def __init__(self, size_bytes: int, *, register: Register | None = None) -> None:
        """Reserve, populate and register ``size_bytes``.

        Raises:
            ValueError: for a size that is not positive.
            MemoryError: when the kernel refuses.
            Exception: what ``register`` raised; nothing stays, unless that was an interrupt.
        """
        if size_bytes <= 0:
            raise ValueError(f"an arena of {size_bytes} bytes makes no sense: give a positive size")
        self.size_bytes = -(-size_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        try:
            start = libc.map_memory(self.size_bytes + HUGE_PAGE_BYTES)
        except OSError as error:
            raise MemoryError(f"cannot reserve {self.size_bytes} bytes for an arena: {error.strerror}") from error
        self.address = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        self._trim(start)
        self._view = memoryview((ctypes.c_ubyte * self.size_bytes).from_address(self.address)).cast("B")
        try:
            libc.madvise(self.address, self.size_bytes, libc.MADV_DONTFORK)
            self._ask_for_huge_pages()
            self.populated = self._populate()
        except BaseException:
            self.unmap()
            raise
        if register is not None:
            try:
                register(self.address, self.size_bytes)
            except Exception:  # it was not registered; after an interrupt nobody knows, and the memory must stay
                self.unmap()
                raise

    @property
    def view(self) -> memoryview:
        """All of its bytes, writable."""
        return self._view

    def unmap(self) -> None:
        """Give it back after all. A view of it that still exists is deadly: only for who can prove that none does."""
        self._view.release()
        libc.unmap_memory(self.address, self.size_bytes)

    def huge_bytes(self) -> int:
        """How much of it lies in huge pages now, as /proc/self/smaps tells; 0 where that cannot be read.

        A mapping that the kernel merged with a neighbour counts as a whole, up to the arena's size.
        """
        try:
            return _huge_bytes(SMAPS.read_text(), self.address, self.size_bytes)
        except OSError:
            return 0

    def _trim(self, start: int) -> None:
        before = self.address - start
        if before:
            libc.unmap_memory(start, before)
        if HUGE_PAGE_BYTES - before:
            libc.unmap_memory(self.address + self.size_bytes, HUGE_PAGE_BYTES - before)

    def _ask_for_huge_pages(self) -> None:
        try:
            libc.madvise(self.address, self.size_bytes, libc.MADV_HUGEPAGE)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a kernel without huge pages: slower, but right
                raise

    def _populate(self) -> bool:
        try:
            libc.madvise(self.address, self.size_bytes, libc.MADV_POPULATE_WRITE)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise MemoryError(f"no memory for an arena of {self.size_bytes} bytes") from error
            for offset in range(0, self.size_bytes, mmap.PAGESIZE):  # EINVAL before Linux 5.14
                self._view[offset] = 0
            return False
        return True


def address_of(memory: memoryview) -> int:
    """Of its first byte."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _huge_bytes(smaps: str, address: int, size_bytes: int) -> int:
    found, inside = 0, False
    for line in smaps.splitlines():
        if place := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            start, end = int(place[1], 16), int(place[2], 16)
            inside = start < address + size_bytes and end > address
        elif inside and line.startswith("AnonHugePages:"):
            found += int(line.split()[1]) * 1024
    return min(found, size_bytes)
