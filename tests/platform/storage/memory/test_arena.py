"""Arenas: aligned, populated, huge where the kernel allows it, registered once, and absent in a forked child."""

import ctypes
import errno
import os
import signal
from pathlib import Path

import pytest

from ebbtide.storage.files import libc
from ebbtide.storage.memory import arena as memory
from ebbtide.storage.memory.arena import HUGE_PAGE_BYTES, Arena


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def is_mapped(address: int, size: int) -> bool:
    """Whether anything is mapped in that whole stretch."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(one, 16) for one in line.split()[0].split("-"))
        if start <= address and address + size <= end:
            return True
    return False


@pytest.mark.parametrize("size", [1, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1, 5 * HUGE_PAGE_BYTES])
def test_it_is_aligned_and_rounded_up_and_writable_to_its_ends(size: int) -> None:
    arena = Arena(size)
    assert arena.address % HUGE_PAGE_BYTES == 0
    assert size <= arena.size_bytes < size + HUGE_PAGE_BYTES
    assert len(arena.view) == arena.size_bytes
    assert ctypes.addressof(ctypes.c_char.from_buffer(arena.view)) == arena.address
    arena.view[0], arena.view[-1] = 1, 2
    assert (arena.view[0], arena.view[-1]) == (1, 2)


def test_its_pages_are_there_before_anybody_touches_them() -> None:
    before = resident_bytes()
    arena = Arena(32 << 20)
    assert resident_bytes() - before > 0.9 * arena.size_bytes


def test_without_the_kernels_order_each_page_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    really = libc.madvise

    def madvise(address: int, size: int, advice: int) -> None:
        if advice in (libc.MADV_POPULATE_WRITE, libc.MADV_HUGEPAGE):
            raise OSError(errno.EINVAL, "an old kernel")
        really(address, size, advice)

    monkeypatch.setattr(libc, "madvise", madvise)
    before = resident_bytes()
    arena = Arena(32 << 20)
    assert not arena.populated
    assert resident_bytes() - before > 0.9 * arena.size_bytes


def test_it_says_how_much_of_it_is_huge() -> None:
    arena = Arena(16 << 20)
    assert 0 <= arena.huge_bytes() <= arena.size_bytes
    if "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        assert arena.huge_bytes() % HUGE_PAGE_BYTES == 0


def test_huge_pages_are_counted_in_the_mappings_it_lies_in_only() -> None:
    smaps = """\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
AnonHugePages:      4096 kB
7f0000400000-7f0000800000 rw-p 00000000 00:00 0
Rss:                4096 kB
AnonHugePages:      2048 kB
7f0000800000-7f0000c00000 rw-p 00000000 00:00 0
AnonHugePages:      4096 kB
"""
    assert memory._huge_bytes(smaps, 0x7F0000400000, 4 << 20) == 2 << 20
    assert memory._huge_bytes(smaps, 0x7F0000200000, 4 << 20) == 4 << 20, "never more than its size"
    assert memory._huge_bytes(smaps, 0x7E0000000000, 4 << 20) == 0


def test_no_smaps_means_nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "SMAPS", tmp_path / "none")
    assert Arena(1).huge_bytes() == 0


def test_it_is_registered_as_a_whole_and_once() -> None:
    registered: list[tuple[int, int]] = []
    arena = Arena(3, register=lambda address, size: registered.append((address, size)))
    assert registered == [(arena.address, arena.size_bytes)]


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_that_makes_no_sense_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        Arena(size)


def test_more_than_there_is_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="arena"):
        Arena(1 << 60)


def test_memory_that_runs_out_while_it_is_populated_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def madvise(address: int, size: int, advice: int) -> None:
        if advice == libc.MADV_POPULATE_WRITE:
            raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(libc, "madvise", madvise)
    with pytest.raises(MemoryError, match="arena"):
        Arena(1)


@pytest.mark.parametrize("advice", [libc.MADV_DONTFORK, libc.MADV_HUGEPAGE, libc.MADV_POPULATE_WRITE])
@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EFAULT])
def test_one_that_could_not_be_made_leaves_nothing_mapped(
    monkeypatch: pytest.MonkeyPatch, advice: int, code: int
) -> None:
    really, places = libc.madvise, list[tuple[int, int]]()

    def madvise(address: int, size: int, what: int) -> None:
        really(address, size, what)  # the pages are there: half of a populate is
        if what == advice:
            places.append((address, size))
            raise OSError(code, "not that")

    monkeypatch.setattr(libc, "madvise", madvise)
    if (advice, code) == (libc.MADV_POPULATE_WRITE, errno.EFAULT):
        assert not Arena(8 << 20).populated, "touched instead"
        return
    with pytest.raises((MemoryError, OSError)):
        Arena(8 << 20)
    assert not is_mapped(*places[0])


def test_one_that_could_not_be_registered_leaves_nothing_mapped() -> None:
    places: list[tuple[int, int]] = []

    def refuse(address: int, size: int) -> None:
        places.append((address, size))
        raise RuntimeError("no memory can be pinned")

    with pytest.raises(RuntimeError, match="pinned"):
        Arena(8 << 20, register=refuse)
    assert not is_mapped(*places[0])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_it_does_not_exist_in_a_forked_child() -> None:
    arena = Arena(1)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        arena.view[0] = 1
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV
