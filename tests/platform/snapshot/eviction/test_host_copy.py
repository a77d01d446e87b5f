"""Copies between storages and host memory: every byte, and huge pages where the system has them."""

import os
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.snapshot.eviction import host_copy
from ebbtide.snapshot.eviction.host_copy import (
    HUGE_PAGE_BYTES,
    Span,
    common,
    copy_all,
    edges,
    join_spans,
    shares,
    threads_for,
)

MIB = 1 << 20
ROOT = Path(__file__).parents[4]
spans = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda at: (at[0], at[0] + at[1])))


def cells(some: list[Span]) -> set[int]:
    return {cell for begin, end in some for cell in range(begin, end)}


def test_copies_every_byte_of_unaligned_and_empty_memory() -> None:
    source = torch.arange(1000, dtype=torch.uint8)
    target = torch.zeros(1002, dtype=torch.uint8)
    copy_all([(target[1:1001], source), (target[:0], source[:0])])
    assert target.tolist() == [0, *source.tolist(), 0]


def test_a_copy_of_unlike_lengths_writes_nothing() -> None:
    one, target = torch.zeros(3, dtype=torch.uint8), torch.zeros(2, dtype=torch.uint8)
    with pytest.raises(AssertionError):
        copy_all([(one, torch.ones(3, dtype=torch.uint8)), (target, torch.ones(3, dtype=torch.uint8))])
    assert one.tolist() + target.tolist() == [0] * 5


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(1, 5))
def test_all_shares_together_are_all_bytes_once_and_none_is_larger_than_it_should_be(
    sizes: list[int], count: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_copy, "LEAST_SHARE_BYTES", 1)
        source = torch.arange(sum(sizes), dtype=torch.uint8)
        target = torch.full_like(source, 255)
        pairs = list(zip(torch.split(target, sizes), torch.split(source, sizes), strict=True))
        found = shares(pairs, count)
        assert len(found) <= count
        assert all(sum(part.numel() for part, _ in share) <= -(-sum(sizes) // count) for share in found)
        copy_all(pairs, count)
    assert target.tolist() == source.tolist()


def test_where_no_thread_is_to_be_had_one_copies_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(host_copy, "LEAST_SHARE_BYTES", 1)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    source = torch.arange(100, dtype=torch.uint8)
    target = torch.zeros_like(source)
    copy_all([(target, source)], 3)
    assert target.tolist() == source.tolist()


def test_ranks_share_the_cores_of_their_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert [threads_for(ranks) for ranks in (1, 2, 3, 8, 9, 0)] == [4, 4, 2, 1, 1, 4]


@given(spans, st.integers(0, 3))
def test_joined_spans_hold_the_same_and_are_apart(some: list[Span], apart: int) -> None:
    found = join_spans(some, apart=apart)
    assert cells(some) <= cells(found)
    assert all(later[0] - earlier[1] > apart for earlier, later in pairwise(found))
    if apart == 0:
        assert cells(found) == cells(some)


@given(spans, spans)
def test_what_is_common_is_in_both(some: list[Span], others: list[Span]) -> None:
    assert cells(common(join_spans(some), join_spans(others))) == cells(some) & cells(others)


def test_edges_are_the_huge_pages_of_a_blocks_ends() -> None:
    page = HUGE_PAGE_BYTES
    assert edges([(3 * page + 64, 5 * page + 100)]) == {(3 * page, 4 * page), (5 * page, 6 * page)}
    assert edges([(3 * page, 5 * page)]) == {(2 * page, 3 * page), (5 * page, 6 * page)}, "the header lies before"


@pytest.mark.parametrize("each_mib", [1, 16])
def test_what_comes_back_lies_in_huge_pages(each_mib: int) -> None:
    """At 1 MiB each huge page has a block's edge in it."""
    if "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("this machine gives no huge pages")
    command = [sys.executable, "-m", "tests.platform.snapshot.huge_pages", str(each_mib)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 32 * 1024


@pytest.mark.parametrize(("each_s", "calls"), [(0.0001, 50), (0.02, 1)])
def test_pages_are_made_huge_only_as_long_as_that_is_worth_its_time(
    monkeypatch: pytest.MonkeyPatch, each_s: float, calls: int
) -> None:
    now_s, made = [0.0], list[Span]()

    def advise(span: Span, advice: int) -> None:
        made.append(span)
        now_s[0] += each_s

    monkeypatch.setattr(host_copy, "_advise", advise)
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    host_copy._collapse([(n * HUGE_PAGE_BYTES, (n + 1) * HUGE_PAGE_BYTES) for n in range(50)])
    assert len(made) == calls
