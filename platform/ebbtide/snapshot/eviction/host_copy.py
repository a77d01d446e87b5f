"""Copies between a storage and host memory, as fast as memory can.

Between CPU memories libc's ``memmove`` is called instead of torch's copy: long copies (from about 24 MB on, by the size
of the caches) it stores past the caches, so that what was there before is not read. Into memory that was just grown
that gave 8 to 11 GB/s here and torch 6, where memcpy between memories that have their pages gives 11 to 12.

Grown memory must get its pages first, and the kernel zeroes each. In pages of 4 KiB that came to 2 GB/s here, in huge
pages to the figures above; and giving 4 KiB pages back took as long as copying them out, giving huge ones back nothing
that counts. So huge pages are asked for. Where a page is there already none comes by itself: that is so at the edges
of each block, where the allocator has its books, and therefore almost everywhere if tensors are small (1 MiB: 1.7 GB/s,
and 6 with those edges made huge).

The figures are GB per second of one thread's CPU time, with 320 to 384 MB of tensors, on a shared machine of 2 cores.
By the clock, and with several threads: docs/measured.md, Preemption.

Not guaranteed: that the system gives huge pages; then it is only slower.
"""

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Iterable, Sequence

import torch

HUGE_PAGE_BYTES = 2 << 20  # of x86-64, and of arm64 with pages of 4 KiB; elsewhere the advice has no effect
_NEIGHBOURS_BYTES = 8192  # glibc's books of a block, and what alignment (torch: 64 bytes or a page) leaves between two
_BOOKS_BYTES = 16  # glibc's header lies right before a block, that of the next one right behind it
_MADV_COLLAPSE = 25  # <asm-generic/mman-common.h>, since Linux 6.1; Python has no name for it yet
_GAIN_S = 0.0008  # a huge page at once: 2 MiB come by 10 GB/s instead of 2
_TRIAL_S = 0.005  # a few calls, whatever they take: nobody notices that
THREADS_MOST = 4  # two did all that the memory of a machine with two cores can; more were not tried
LEAST_SHARE_BYTES = 16 << 20  # less is copied sooner (2 ms) than threads that share a processor are scheduled
_libc = ctypes.CDLL(None, use_errno=True)

Pair = tuple[torch.Tensor, torch.Tensor]
"""A target and its source."""

Span = tuple[int, int]
"""Addresses from the first to the one after the last."""


def copy_all(pairs: Sequence[Pair], threads: int = 1) -> None:
    """Copy all bytes of each pair; with a GPU on either side the copies may still be under way when this returns.

    Args:
        pairs: targets with their sources: flat, uint8, equally long; no two memories overlap.
        threads: between CPU memories so many copy at once. One gets 12 GB/s here and two 16, and into memory that was
            just grown, where the kernel clears pages at the same time, 5 and 10.
    """
    assert all(target.numel() == source.numel() for target, source in pairs)
    on_cpu = [pair for pair in pairs if pair[0].device.type == pair[1].device.type == "cpu"]
    mine, helpers = [], []
    for number, part in enumerate(shares(on_cpu, threads)):
        helper = threading.Thread(target=_copy_part, args=(part,), name=f"copy-{number}", daemon=True)
        try:
            if number:  # the first part is this thread's own
                helper.start()
                helpers.append(helper)
                continue
        except RuntimeError:  # "can't start new thread"
            pass
        mine += part
    _copy_part(mine)
    for helper in helpers:
        helper.join()
    for target, source in pairs:
        if target.device.type != "cpu" or source.device.type != "cpu":
            target.copy_(source, non_blocking=True)


def threads_for(ranks_here: int) -> int:
    """How many threads of a rank should copy while its gang parks, when nobody here computes: its share of the cores.

    Args:
        ranks_here: of the gang, on this node.
    """
    return max(1, min(THREADS_MOST, len(os.sched_getaffinity(0)) // max(1, ranks_here)))


def shares(pairs: Sequence[Pair], count: int) -> list[list[Pair]]:
    """The pairs in at most ``count`` parts of about equally many bytes, each in one piece as far as that goes: long
    copies are the fast ones."""
    share_bytes = max(LEAST_SHARE_BYTES, -(-sum(target.numel() for target, _ in pairs) // count))
    found: list[list[Pair]] = []
    room = 0
    for target, source in pairs:
        begin = 0
        while begin < target.numel():
            if not room:
                found.append([])
                room = share_bytes
            end = min(target.numel(), begin + room)
            found[-1].append((target[begin:end], source[begin:end]))
            room -= end - begin
            begin = end
    return found


def _copy_part(part: Iterable[Pair]) -> None:
    for target, source in part:
        ctypes.memmove(target.data_ptr(), source.data_ptr(), target.numel())  # without the interpreter's lock


def ask_for_huge_pages(memories: Sequence[torch.Tensor]) -> None:
    """Have what was just grown lie in huge pages; tensors on other devices than the CPU are passed over."""
    blocks = [
        (memory.data_ptr(), memory.data_ptr() + memory.numel()) for memory in memories if memory.device.type == "cpu"
    ]
    whole = [_inner(span) for span in join_spans(blocks, apart=_NEIGHBOURS_BYTES)]
    for span in whole:
        _advise(span, mmap.MADV_HUGEPAGE)
    _collapse(common(join_spans(edges(blocks)), whole))


def _collapse(spans: Iterable[Span]) -> None:
    """Make huge what has small pages already, as long as that is worth its time.

    Each call has every processor empty its queues first. On a machine with idle ones that takes less than a
    millisecond; where others compute, 45 were seen on average and 1,400 at worst, and a park had waited for 3 s.
    """
    spent_s = gained_s = 0.0
    for span in spans:
        began_s = time.perf_counter()
        _advise(span, _MADV_COLLAPSE)
        spent_s += time.perf_counter() - began_s
        gained_s += (span[1] - span[0]) / HUGE_PAGE_BYTES * _GAIN_S
        if spent_s > gained_s + _TRIAL_S:
            return


def join_spans(spans: Iterable[Span], *, apart: int = 0) -> list[Span]:
    """Spans in order, those as one that lie at most ``apart`` bytes from each other."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin - found[-1][1] <= apart:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def edges(blocks: Iterable[Span]) -> set[Span]:
    """The huge pages in which an allocator has written something about these blocks."""
    at = {place for begin, end in blocks for place in (begin - _BOOKS_BYTES, end + _BOOKS_BYTES)}
    firsts = {place // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES for place in at}
    return {(first, first + HUGE_PAGE_BYTES) for first in firsts}


def common(some: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """What lies in spans of both; each of the two in order and without overlaps."""
    found, left = [], list(others)
    for begin, end in some:
        left = [span for span in left if span[1] > begin]
        found += [(max(begin, low), min(end, high)) for low, high in left if max(begin, low) < min(end, high)]
    return found


def _inner(span: Span) -> Span:
    """Without what fills no huge page."""
    begin, end = span
    return -(-begin // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, end // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES


def _advise(span: Span, advice: int) -> None:
    begin, end = span
    if end > begin:  # it is advice: a system that does not take it says so, and nothing depends on that
        _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)
