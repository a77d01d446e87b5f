"""Rates among real threads and processes: waiting, giving up, sharing one book, and going on without it."""

import errno
import fcntl
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.storage.bandwidth.rate_limiter import NodeShelf, OwnShelf, Rates, _decode, _encode
from ebbtide.storage.bandwidth.rate_scheduler import Ask, Budget, RateSchedule, TrafficClass, take
from ebbtide.storage.errors import WaitTimeout
from ebbtide_testing.cluster.virtual_clock import VirtualClock
from tests.platform.storage.played import Player, until

LOAD, WRITE, PREFETCH, SCRUB = TrafficClass
MIB = 1 << 20
BUDGET = Budget(1e9)


def peek(shelf: OwnShelf | NodeShelf) -> RateSchedule:
    """What lies there."""

    def look(book: RateSchedule | None) -> tuple[RateSchedule, RateSchedule]:
        assert book is not None
        return book, book

    return shelf.update(look)


def test_what_fits_the_budget_goes_at_once_and_a_transfer_that_ends_leaves_nothing() -> None:
    shelf = OwnShelf()
    with Rates(BUDGET, shelf=shelf).transfer(LOAD) as admit:
        hook: Callable[[int], None] = admit
        hook(16 * MIB)
        assert len(peek(shelf).transfers) == 1
    assert peek(shelf).transfers == {}
    assert admit.why == ""


def test_more_than_a_burst_is_let_through_in_pieces_at_the_budgets_pace() -> None:
    clock = VirtualClock()
    rates = Rates(BUDGET, clock_s=lambda: clock.now_s, sleep=clock.run_for)
    began_s = clock.now_s
    with rates.transfer(LOAD) as admit:
        admit(2_000_000_000)
        admit(0)
    taken_s = clock.now_s - began_s
    assert taken_s == pytest.approx((2e9 - BUDGET.burst_bytes) / 1e9, abs=0.002)
    assert admit.waited_s == pytest.approx(taken_s)


def test_a_wait_ends_with_its_patience_and_tells_what_it_was_for() -> None:
    rates = Rates(BUDGET)
    with rates.transfer(LOAD) as load, rates.transfer(SCRUB, patience_s=0.1) as scrub:
        load(1)
        with pytest.raises(WaitTimeout, match=r"SCRUB.* after 0\.1 s: SERVE_LOAD comes first: 2% of 1 GB/s") as told:
            for _ in range(100):
                load(1)
                scrub(16 * MIB)
        assert told.value.after_s == 0.1
        load(1)


def test_whoever_waits_says_why_and_can_be_cancelled() -> None:
    cancel, rates, seen = threading.Event(), Rates(Budget(1.0)), []
    with rates.transfer(LOAD, cancel=cancel) as load, ThreadPoolExecutor(1) as threads:
        load(rates.budget.burst_bytes)
        waiting = threads.submit(load, MIB)
        until(lambda: load.why != "")
        seen.append(load.why)
        cancel.set()
        with pytest.raises(CancelledError):
            waiting.result(30.0)
        assert seen == ["the budget of 1e-09 GB/s is used up"] and load.why == ""


def test_a_thread_waits_no_longer_for_its_transfers_other_threads_than_for_anything_else() -> None:
    with Rates(BUDGET).transfer(LOAD, patience_s=0.2) as load:
        load._turn.acquire()
        began_s = time.monotonic()
        with pytest.raises(WaitTimeout):
            load(1)
        assert time.monotonic() - began_s < 30.0


def test_a_transfers_threads_pass_one_after_the_other_and_none_waits_beyond_its_patience() -> None:
    rates = Rates(Budget(1.0))
    with rates.transfer(LOAD, patience_s=0.2) as load, ThreadPoolExecutor(4) as threads:
        load(rates.budget.burst_bytes)
        errors = [one.exception(30.0) for one in [threads.submit(load, MIB) for _ in range(4)]]
        assert all(isinstance(error, WaitTimeout) for error in errors)


def grants(shelf: OwnShelf | NodeShelf, threads: int) -> int:
    """How many pieces of 1 MiB are let through in no time."""
    admitted = []

    def ask(number: int) -> None:
        with Rates(BUDGET, shelf=shelf, clock_s=lambda: 7.0).transfer(LOAD, patience_s=0.0) as admit:
            for _ in range(20):
                admit(MIB)
                admitted.append(number)

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(ask, number) for number in range(threads)]:
            error = done.exception(60.0)
            assert error is None or isinstance(error, WaitTimeout)
    return len(admitted)


def test_threads_that_share_a_book_never_count_twice(tmp_path: Path) -> None:
    for shelf in (OwnShelf(), NodeShelf(tmp_path / "rates" / "book")):
        assert grants(shelf, 8) == BUDGET.burst_bytes // MIB
    assert (tmp_path / "rates").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "rates" / "book").stat().st_mode & 0o777 == 0o600


def test_a_load_in_another_process_comes_first_until_it_is_killed(tmp_path: Path) -> None:
    book = tmp_path / "book"
    with Player("move", book, "SERVE_LOAD") as load:
        load.wait_for("moves")
        shelf = NodeShelf(book)
        with Rates(BUDGET, shelf=shelf).transfer(PREFETCH, patience_s=60.0) as prefetch:
            stop = threading.Event()

            def go_on() -> None:
                while not stop.is_set():
                    prefetch(16 * MIB)

            with ThreadPoolExecutor(1) as threads:
                moving = threads.submit(go_on)
                until(lambda: prefetch.why == "SERVE_LOAD comes first: 5% of 1 GB/s are left for PREFETCH")
                assert shelf.why_alone == ""
                load.kill()
                until(lambda: peek(shelf).classes[LOAD].asked_s + BUDGET.quiet_s < time.monotonic())
                until(lambda: "SERVE_LOAD" not in prefetch.why)
                stop.set()
                moving.result(60.0)


def test_a_process_that_stands_still_with_the_lock_stops_nobody(tmp_path: Path) -> None:
    path = tmp_path / "book"
    shelf = NodeShelf(path)
    with Rates(BUDGET, shelf=shelf).transfer(LOAD) as admit:
        admit(MIB)
        holder = os.open(path, os.O_RDWR)
        fcntl.flock(holder, fcntl.LOCK_EX)
        admit(MIB)
        assert shelf.why_alone == f"cannot lock {path}: Resource temporarily unavailable"
        began_s = time.monotonic()
        for _ in range(50):
            admit(4096)
        assert time.monotonic() - began_s < 50 * 0.25, "the lock is not waited for again and again"
        os.close(holder)


def test_a_directory_that_cannot_be_used_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    shelf = NodeShelf(tmp_path / "file" / "book")
    with Rates(BUDGET, shelf=shelf).transfer(LOAD) as admit:
        admit(MIB)
    assert "cannot lock" in shelf.why_alone


def test_a_book_that_cannot_be_kept_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    shelf = NodeShelf(tmp_path / "book")
    with Rates(BUDGET, shelf=shelf).transfer(LOAD) as admit:
        admit(MIB)
    assert shelf.why_alone == f"cannot keep {tmp_path / 'book'}: No space left on device"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        "[1]",
        "{}",
        '[NaN, 1, {"SERVE_LOAD": [0, 0], "CHECKPOINT_WRITE": [0, 0], "PREFETCH": [0, 0], "SCRUB": [0, 0]}, {}]',
        '[1, 1, {"SERVE_LOAD": ["x", 0], "CHECKPOINT_WRITE": [0, 0], "PREFETCH": [0, 0], "SCRUB": [0, 0]}, {}]',
        "[" * 5000,
    ],
)
def test_a_damaged_book_is_begun_anew(tmp_path: Path, text: str) -> None:
    path = tmp_path / "book"
    path.write_text(text)
    shelf = NodeShelf(path)
    with Rates(BUDGET, shelf=shelf).transfer(LOAD) as admit:
        admit(MIB)
        assert len(peek(shelf).transfers) == 1
    assert shelf.why_alone == ""


def test_a_shorter_book_leaves_no_rest_of_a_longer_one(tmp_path: Path) -> None:
    shelf = NodeShelf(tmp_path / "book")
    rates = Rates(BUDGET, shelf=shelf)
    doors = [rates.transfer(LOAD) for _ in range(20)]
    for door in doors:
        door(1)
    for door in doors:
        door.__exit__(None, None, None)
    assert peek(shelf).transfers == {}
    assert _decode((tmp_path / "book").read_bytes()) == peek(shelf)


def test_a_book_longer_than_the_first_look_is_read_whole(tmp_path: Path) -> None:
    shelf, other = NodeShelf(tmp_path / "book"), NodeShelf(tmp_path / "book")
    doors = [Rates(BUDGET, shelf=shelf).transfer(LOAD) for _ in range(400)]
    for door in doors:
        door(1)
    assert (tmp_path / "book").stat().st_size > 1 << 14
    assert peek(other) == peek(shelf) and len(peek(other).transfers) == 400


def test_what_another_has_written_meanwhile_counts(tmp_path: Path) -> None:
    """Each remembers what it wrote last, and must not take that for what is there."""
    shelf, other = NodeShelf(tmp_path / "book"), NodeShelf(tmp_path / "book")
    with Rates(BUDGET, shelf=shelf).transfer(LOAD) as mine, Rates(BUDGET, shelf=other).transfer(LOAD) as yours:
        for number in range(3):
            mine(MIB)
            yours(MIB)
            assert len(peek(shelf).transfers) == 2, number
        assert mine.sharers == yours.sharers == 2
    assert peek(shelf).transfers == peek(other).transfers == {}


def test_a_book_that_was_removed_is_begun_anew_where_others_will_find_it(tmp_path: Path) -> None:
    path = tmp_path / "book"
    shelf, other = NodeShelf(path), NodeShelf(path)
    with Rates(BUDGET, shelf=shelf).transfer(LOAD) as admit:
        admit(MIB)
        path.unlink()
        admit(MIB)
        assert peek(other) == peek(shelf)


def test_a_forked_child_shares_no_lock_with_its_parent(tmp_path: Path) -> None:
    shelf, asked, busy, done = NodeShelf(tmp_path / "book"), [], threading.Event(), threading.Event()

    def linger(book: RateSchedule | None) -> tuple[RateSchedule, None]:
        busy.set()
        done.wait(60.0)
        return book or RateSchedule.new(BUDGET, 0.0), None

    with Rates(BUDGET, shelf=shelf).transfer(LOAD) as admit, ThreadPoolExecutor(1) as threads:
        admit(MIB)
        asked.append(threads.submit(shelf.update, linger))
        busy.wait(60.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            try:
                signal.alarm(60)
                admit(MIB)
                os._exit(0 if "cannot lock" in shelf.why_alone else 3)
            finally:
                os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        done.set()
        asked[0].result(60.0)
        admit(MIB)
        assert shelf.why_alone == ""


@given(st.lists(st.tuples(st.sampled_from(TrafficClass), st.text(max_size=5), st.integers(1, MIB)), max_size=6))
def test_a_book_comes_back_as_it_was(asks: list[tuple[TrafficClass, str, int]]) -> None:
    book = RateSchedule.new(BUDGET, 3.0)
    for n, (kind, transfer, nbytes) in enumerate(asks):
        book, _ = take(book, BUDGET, Ask(kind, transfer, nbytes), 3.0 + n / 7)
    assert _decode(_encode(book)) == book
