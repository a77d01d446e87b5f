"""A park must really lower the process's own memory."""

import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from ebbtide.snapshot.eviction.host_pool import HostPool
from ebbtide.snapshot.eviction.tensor_eviction import evict, plan
from ebbtide.system.process_memory import anonymous_bytes, malloc_trim


@pytest.mark.parametrize("size_bytes", [64 << 10, 32 << 20])
def test_anonymous_memory_falls_by_what_was_evicted(size_bytes: int) -> None:
    """In a process of its own: the heap of this one also shrinks by what earlier tests left in it."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as own:
        for before, away, back, evicted in own.submit(_evicted_and_restored, size_bytes).result(100.0):
            assert before - away > 0.9 * evicted  # small blocks leave part-filled pages
            assert back > before - 0.1 * evicted


def _evicted_and_restored(size_bytes: int) -> list[tuple[int, int, int, int]]:
    """Bytes of anonymous memory before, while blocks of this size are evicted, and after, and the bytes evicted.

    Small blocks matter: they stay in glibc's heap unless it is trimmed. Twice, since the first frees raise glibc's mmap
    threshold: from then on big blocks come from the heap too.
    """
    found = []
    for _ in range(2):
        tensors = [torch.ones(size_bytes // 4) for _ in range((128 << 20) // size_bytes)]
        checked = plan([(str(index), tensor) for index, tensor in enumerate(tensors)])
        pool = HostPool(checked.size_bytes)
        malloc_trim()
        before = anonymous_bytes()
        evicted = evict(checked, pool)
        malloc_trim()
        away = anonymous_bytes()
        evicted.restore()
        found.append((before, away, anonymous_bytes(), checked.size_bytes))
        del tensors, checked, evicted
        pool.close()
    return found


def test_the_pool_is_not_anonymous_memory_and_goes_when_closed() -> None:
    before = anonymous_bytes()
    pool = HostPool(64 << 20)
    pool.bytes.fill_(7)
    assert anonymous_bytes() - before < 8 << 20
    pool.close()
    pool.close()


def test_an_open_view_keeps_its_pages_after_close() -> None:
    pool = HostPool(4096)
    view = pool.bytes[:4]
    view.fill_(3)
    pool.close()
    assert view.tolist() == [3, 3, 3, 3]


def test_another_process_can_be_measured() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert anonymous_bytes(child.pid) > 0
    finally:
        child.communicate(b"\n")
    with pytest.raises(OSError):
        anonymous_bytes(child.pid)
