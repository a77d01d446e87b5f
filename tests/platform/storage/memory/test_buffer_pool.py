"""The pool: what was given up is not lent again before its task ended, and the pool neither starves nor grows."""

import os
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ebbtide.storage.errors import Refused
from ebbtide.storage.memory import buffer_pool
from ebbtide.storage.memory.buffer_pool import Buffer, BufferPool, process_pool
from ebbtide.storage.transport.transport import CHUNK_BYTES
from tests.examples import examples

# Python 3.12 warns of forking beside threads; that is what these tests are about.
FORKS = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def test_it_lends_each_buffer_once() -> None:
    pool = BufferPool(3, 4096)
    lent = [pool.borrow(0) for _ in range(3)]
    assert pool.borrow(0) is None
    assert len({id(one) for one in lent}) == 3
    for number, one in enumerate(lent):
        assert one is not None and len(one.memory) == 4096
        one.memory[:] = bytes([number]) * 4096
    assert [one.memory[4095] for one in lent if one is not None] == [0, 1, 2], "their memory overlaps"


def test_what_was_given_back_last_is_lent_first() -> None:
    """It may still be in the processor's cache; two threads with one buffer each need two, however many there are."""
    pool = BufferPool(4, 4096)
    one, other = pool.borrow(0), pool.borrow(0)
    assert one is not None and other is not None
    pool.give_back(one)
    pool.give_back(other)
    assert pool.borrow(0) is other and pool.borrow(0) is one


def test_who_waits_gets_what_is_given_back() -> None:
    pool = BufferPool(1, 4096)
    one = pool.borrow(0)
    assert one is not None
    threading.Timer(0.05, pool.give_back, [one]).start()
    assert pool.borrow(30) is one


def test_who_waits_in_vain_is_told_so_in_time() -> None:
    pool = BufferPool(1, 4096)
    pool.borrow(0)
    began = time.monotonic()
    assert pool.borrow(0.05) is None
    assert 0.04 < time.monotonic() - began < 20


def test_a_buried_buffer_is_replaced_within_a_bound_and_comes_back_when_its_task_ends() -> None:
    pool = BufferPool(2, 4096)
    dead: list[Buffer] = []
    for _ in range(4):
        buffer = pool.borrow(0)
        assert buffer is not None and buffer not in dead
        assert pool.bury(buffer)
        dead.append(buffer)
    assert (pool.buried, pool.replacements) == (4, 2)
    assert pool.borrow(0) is None, "more replacements than the pool has buffers"
    pool.give_back(dead[0])
    assert pool.borrow(0) is dead[0]


def test_who_waits_gets_a_replacement_when_a_buffer_is_buried() -> None:
    pool = BufferPool(1, 4096)
    one = pool.borrow(0)
    assert one is not None
    threading.Timer(0.05, pool.bury, [one]).start()
    other = pool.borrow(30)
    assert other is not None and other is not one


def test_burying_what_was_given_back_does_nothing() -> None:
    pool = BufferPool(1, 4096)
    one = pool.borrow(0)
    assert one is not None
    pool.give_back(one)
    assert not pool.bury(one)
    assert (pool.free, pool.buried) == (1, 0)


def test_giving_back_twice_is_a_bug_that_shows() -> None:
    pool = BufferPool(1, 4096)
    one = pool.borrow(0)
    assert one is not None
    pool.give_back(one)
    with pytest.raises(KeyError):
        pool.give_back(one)


def test_replacements_are_registered_too() -> None:
    registered: list[int] = []
    pool = BufferPool(1, 4096, register=lambda address, size: registered.append(address))
    one = pool.borrow(0)
    assert one is not None and pool.bury(one) and pool.borrow(0)
    assert len(set(registered)) == 2


@pytest.mark.parametrize(("count", "size"), [(0, 4096), (1, 0), (1, 100), (1, 4097), (-1, 4096)])
def test_a_pool_that_makes_no_sense_is_refused(count: int, size: int) -> None:
    with pytest.raises(ValueError, match="makes no sense"):
        BufferPool(count, size)


def in_child(check: Callable[[], int]) -> int:
    child = os.fork()
    if child == 0:
        try:
            os._exit(check())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@FORKS
def test_a_forked_child_cannot_use_its_parents_pool() -> None:
    pool = BufferPool(1, 4096)

    def check() -> int:
        try:
            pool.borrow(0)
        except Refused:
            return 7
        return 0

    assert in_child(check) == 7


@FORKS
def test_the_process_has_one_pool_and_a_forked_child_makes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "_process_pools", {})
    pool = process_pool(2)
    assert process_pool() is pool is process_pool(2)
    assert (pool.count, pool.buffer_bytes) == (2, CHUNK_BYTES)

    def check() -> int:
        mine = process_pool(1)
        one = mine.borrow(0)
        assert mine is not pool and one is not None
        one.memory[:5] = b"bytes"
        return 7

    with buffer_pool._making:  # as if another thread were making one: the child must not wait for it
        assert in_child(check) == 7


def test_the_process_pool_is_not_changed_behind_its_users_backs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "_process_pools", {})
    process_pool(1)
    with pytest.raises(Refused, match="made already, with 1 buffers"):
        process_pool(2)
    with pytest.raises(Refused, match="made already"):
        process_pool(register=lambda address, size: None)


class Lending(RuleBasedStateMachine):
    """Borrowing, giving back and burying in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BufferPool(3, 4096)
        self.lent: list[Buffer] = []
        self.dead: list[Buffer] = []

    @rule()
    def borrow(self) -> None:
        one = self.pool.borrow(0)
        assert (one is None) == (len(self.lent) >= 3 or len(self.lent) + len(self.dead) >= 6)
        if one is not None:
            assert one not in self.lent and one not in self.dead, "lent while somebody may write into it"
            self.lent.append(one)

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.lent))
        self.lent.remove(one)
        self.pool.give_back(one)

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def bury(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.lent))
        self.lent.remove(one)
        self.dead.append(one)
        assert self.pool.bury(one)

    @precondition(lambda self: self.dead)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.dead))
        self.dead.remove(one)
        self.pool.give_back(one)

    @invariant()
    def is_bounded(self) -> None:
        assert self.pool.replacements <= 3
        assert self.pool.buried == len(self.dead)
        assert self.pool.free + len(self.lent) <= 3


TestLending = Lending.TestCase
TestLending.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
