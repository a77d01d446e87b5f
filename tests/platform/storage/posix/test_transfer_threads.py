"""The threads of a transfer: the caller returns in time, and nothing goes on behind its back once it has."""

import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.storage.errors import TransferFailed, TransferTimeout
from ebbtide.storage.memory.buffer_pool import Buffer, BufferPool
from ebbtide.storage.posix import transfer_threads as crew_module
from ebbtide.storage.posix.transfer_threads import Stopped, TransferThreads

PATH = Path("somewhere") / "file"
LONG_S = 30.0


@pytest.fixture
def pool() -> BufferPool:
    return BufferPool(2, 4096)


def test_all_items_are_shared_out_once(pool: BufferPool) -> None:
    crew, seen, names = TransferThreads(PATH, pool, threads=3, deadline_s=LONG_S), list[int](), set[str]()
    both = threading.Barrier(3)

    def work(items: Iterator[int]) -> None:
        both.wait(LONG_S)
        names.add(threading.current_thread().name)
        seen.extend(items)

    crew.run(lambda: crew.share(range(100), work, threads=9))
    assert sorted(seen) == list(range(100))
    assert len(names) == 3
    assert crew.ended


def test_no_more_threads_are_started_than_are_wanted(pool: BufferPool) -> None:
    crew, threads = TransferThreads(PATH, pool, threads=8, deadline_s=LONG_S), set()

    def work(items: Iterator[int]) -> None:
        threads.add(threading.get_ident())
        list(items)

    crew.run(lambda: crew.share([1], work, threads=1))
    assert len(threads) == 1


def test_the_first_failure_comes_out_unchanged_after_all_threads_have_ended(pool: BufferPool) -> None:
    crew, ended = TransferThreads(PATH, pool, threads=2, deadline_s=LONG_S), []
    failure, both = KeyError("mine"), threading.Barrier(2)

    def work(items: Iterator[int]) -> None:
        item = next(items)
        both.wait(LONG_S)
        if item == 0:
            raise failure
        time.sleep(0.2)
        ended.append(True)

    with pytest.raises(KeyError) as caught:
        crew.run(lambda: crew.share([0, 1], work, threads=2))
    assert caught.value is failure
    assert ended == [True] and crew.ended


def test_after_a_failure_no_further_item_and_no_further_call_is_begun(pool: BufferPool) -> None:
    crew, begun, both = TransferThreads(PATH, pool, threads=2, deadline_s=LONG_S), list[int](), threading.Barrier(2)

    def work(items: Iterator[int]) -> None:
        item = next(items)
        both.wait(LONG_S)
        if item == 0:
            raise ValueError("first")
        with pytest.raises(Stopped):
            while True:
                crew.doing("read", 1)
        with pytest.raises(Stopped):
            crew.pause(LONG_S)
        begun.extend(items)
        raise Stopped

    with pytest.raises(ValueError, match="first"):
        crew.run(lambda: crew.share([0, 1, *range(1000)], work, threads=2))
    assert begun == []


def test_a_hanging_call_is_left_alone_in_time_and_named(pool: BufferPool) -> None:
    crew, answer = TransferThreads(PATH, pool, threads=1, deadline_s=0.2), threading.Event()

    def lead() -> None:
        crew.doing("sync", None)
        answer.wait(LONG_S)

    began = time.monotonic()
    with pytest.raises(TransferTimeout, match=r"cannot sync somewhere/file.*within 0.2 s") as caught:
        crew.run(lead)
    assert time.monotonic() - began < 20
    assert (caught.value.action, caught.value.offset) == ("sync", None)
    assert not crew.ended
    answer.set()
    while not crew.ended:
        time.sleep(0.001)


def test_the_timeout_names_the_call_that_has_hung_longest(pool: BufferPool) -> None:
    crew, answer = TransferThreads(PATH, pool, threads=2, deadline_s=0.3), threading.Event()

    def work(items: Iterator[int]) -> None:
        for offset in items:
            crew.doing("read", offset)
            if offset == 0:
                answer.wait(LONG_S)
            else:
                time.sleep(0.01)

    with pytest.raises(TransferTimeout) as caught:
        crew.run(lambda: crew.share(range(1000), work, threads=2))
    assert caught.value.offset == 0
    answer.set()


def test_a_failure_before_the_deadline_is_the_cause_of_the_timeout(pool: BufferPool) -> None:
    crew, answer = TransferThreads(PATH, pool, threads=2, deadline_s=0.3), threading.Event()
    both = threading.Barrier(2)

    def work(items: Iterator[int]) -> None:
        item = next(items)
        both.wait(LONG_S)
        if item == 0:
            raise KeyError("mine")
        answer.wait(LONG_S)

    with pytest.raises(TransferTimeout) as caught:
        crew.run(lambda: crew.share([0, 1], work, threads=2))
    assert isinstance(caught.value.__cause__, KeyError)
    answer.set()


def test_buffers_of_a_hanging_transfer_are_buried_until_its_calls_end(pool: BufferPool) -> None:
    crew, answer, lent = TransferThreads(PATH, pool, threads=1, deadline_s=0.2), threading.Event(), list[Buffer]()

    def lead() -> None:
        lent.append(crew.borrow(0))
        answer.wait(LONG_S)
        crew.give_back(lent[0])

    with pytest.raises(TransferTimeout):
        crew.run(lead)
    assert pool.buried == 1
    for _ in range(2):
        assert pool.borrow(0) not in (None, lent[0])
    answer.set()
    while pool.buried:
        time.sleep(0.001)


def test_who_waits_for_a_buffer_stops_when_the_transfer_does(pool: BufferPool) -> None:
    pool.borrow(0), pool.borrow(0)
    crew = TransferThreads(PATH, pool, threads=1, deadline_s=0.2)
    with pytest.raises(TransferTimeout) as caught:
        crew.run(lambda: crew.give_back(crew.borrow(7)))
    assert (caught.value.action, caught.value.offset) == ("borrow a buffer for", 7)
    until = time.monotonic() + LONG_S
    while not crew.ended:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_buffer_that_comes_after_the_end_is_given_back(pool: BufferPool) -> None:
    crew = TransferThreads(PATH, pool, threads=1, deadline_s=LONG_S)
    crew.fail(ValueError())
    with pytest.raises(Stopped):
        crew.borrow_at_once()
    assert pool.free == 2


def test_fewer_threads_will_do_where_no_more_can_be_had(pool: BufferPool, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("chunks"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    crew, seen = TransferThreads(PATH, pool, threads=4, deadline_s=LONG_S), list[int]()
    crew.run(lambda: crew.share(range(9), lambda items: seen.extend(items), threads=4))
    assert seen == list(range(9))


def test_an_interrupt_in_the_callers_thread_waits_for_calls_to_end_before_it_goes_on(
    pool: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew, ended = TransferThreads(PATH, pool, threads=1, deadline_s=LONG_S), list[str]()
    really, begun = crew._wait_for_end, threading.Event()
    answers: list[object] = []

    def interrupted() -> bool:
        if not answers:
            answers.append("interrupted")
            assert begun.wait(LONG_S)
            raise KeyboardInterrupt
        return really()

    monkeypatch.setattr(crew, "_wait_for_end", interrupted)

    def lead() -> None:
        begun.set()
        time.sleep(0.2)
        ended.append("ended")
        crew.check()
        ended.append("went on")

    with pytest.raises(KeyboardInterrupt):
        crew.run(lead)
    assert ended == ["ended"]


def test_an_interrupt_is_obeyed_soon_also_when_a_call_hangs(pool: BufferPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "INTERRUPTED_S", 0.2)
    crew, begun, answer, after = (
        TransferThreads(PATH, pool, threads=1, deadline_s=LONG_S),
        threading.Event(),
        threading.Event(),
        [],
    )
    really = crew._wait_for_end

    def interrupted() -> bool:
        monkeypatch.setattr(crew, "_wait_for_end", really)
        assert begun.wait(LONG_S)
        raise KeyboardInterrupt

    monkeypatch.setattr(crew, "_wait_for_end", interrupted)

    def lead() -> None:
        buffer = crew.borrow(0)
        begun.set()
        answer.wait(2 * LONG_S)
        crew.give_back(buffer)
        crew.doing("write", 0)
        after.append("went on")

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        crew.run(lead)
    assert time.monotonic() - began < LONG_S / 2 and not crew.ended
    assert pool.buried == 1, "the call that hangs may still write into it"
    answer.set()
    until = time.monotonic() + LONG_S
    while not crew.ended:
        assert time.monotonic() < until
        time.sleep(0.001)
    assert after == [] and pool.buried == 0


def test_an_interrupt_while_the_thread_is_started_leaves_nothing_running(
    pool: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    crew = TransferThreads(PATH, pool, threads=1, deadline_s=LONG_S)
    with pytest.raises(KeyboardInterrupt):
        crew.run(lambda: time.sleep(0.2))
    assert crew.ended


def test_without_a_single_thread_it_has_ended_and_the_limit_is_named(
    pool: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    crew = TransferThreads(PATH, pool, threads=4, deadline_s=LONG_S)
    with pytest.raises(TransferFailed, match=r"somewhere/file: .*EAGAIN.*limit of threads") as caught:
        crew.run(lambda: None)
    assert caught.value.errno == errno.EAGAIN and not isinstance(caught.value, TransferTimeout)
    assert crew.ended, "else it would count as one that hangs, for ever"


def test_an_infinite_deadline_is_none(pool: BufferPool) -> None:
    crew = TransferThreads(PATH, pool, threads=1, deadline_s=float("inf"))
    crew.run(crew.check)
    assert crew.ended


def test_no_time_at_all_is_a_timeout(pool: BufferPool) -> None:
    crew = TransferThreads(PATH, pool, threads=1, deadline_s=0)
    with pytest.raises(TransferTimeout):
        crew.run(lambda: crew.pause(LONG_S))
