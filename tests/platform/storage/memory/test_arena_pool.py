"""Arenas lent: free again with the last view, whoever holds it, and never before."""

import gc
import os
import threading

import numpy as np
import pytest

from ebbtide.storage.errors import Refused
from ebbtide.storage.memory.arena import address_of
from ebbtide.storage.memory.arena_pool import Arenas

MIB = 1 << 20


def test_memory_is_as_large_as_asked_for_and_aligned() -> None:
    memory = Arenas().lend(3 * MIB + 5)
    assert len(memory) == 3 * MIB + 5 and not memory.readonly
    assert address_of(memory) % (2 * MIB) == 0


def test_nothing_can_be_lent_too() -> None:
    assert len(Arenas().lend(0)) == 0


def test_an_arena_is_lent_again_when_its_last_view_is_gone() -> None:
    arenas = Arenas()
    memory = arenas.lend(2 * MIB)
    address, part = address_of(memory), memory[5:9]
    array = np.frombuffer(part, np.uint8)
    del memory, part
    other = arenas.lend(2 * MIB)
    assert address_of(other) != address, "lent while an array still shows it"
    assert arenas.free_bytes == 0
    del array
    assert arenas.free_bytes == 2 * MIB
    assert address_of(arenas.lend(MIB)) == address
    assert arenas.total_bytes == 4 * MIB


def test_a_thread_that_hangs_on_it_keeps_it() -> None:
    arenas, answer = Arenas(), threading.Event()

    def hang(memory: memoryview) -> None:
        answer.wait(60)

    thread = threading.Thread(target=hang, args=[arenas.lend(MIB)])
    thread.start()
    gc.collect()
    assert arenas.free_bytes == 0
    answer.set()
    thread.join()
    del thread
    assert arenas.free_bytes == 2 * MIB


def test_the_smallest_that_fits_is_taken_and_much_larger_ones_are_left() -> None:
    arenas = Arenas()
    loans = {size: arenas.lend(size * MIB) for size in (4, 6, 32)}
    addresses = {size: address_of(memory) for size, memory in loans.items()}
    loans.clear()
    assert address_of(arenas.lend(4 * MIB)) == addresses[4]
    five = arenas.lend(5 * MIB)
    assert address_of(five) == addresses[6]
    seven = arenas.lend(7 * MIB)
    assert address_of(seven) not in addresses.values()
    assert (len(five), len(seven)) == (5 * MIB, 7 * MIB)


def test_beyond_the_limit_free_arenas_go_and_then_nothing_is_lent() -> None:
    arenas = Arenas(limit_bytes=8 * MIB)
    first = arenas.lend(4 * MIB)
    arenas.lend(2 * MIB)
    second = arenas.lend(4 * MIB)
    assert arenas.total_bytes == 8 * MIB, "the free one was unmapped"
    second[:] = bytes([1]) * len(second)
    first[:] = bytes([2]) * len(first)
    with pytest.raises(MemoryError, match="8388608 bytes are held, 8388608 allowed"):
        arenas.lend(1)
    del first
    assert len(arenas.lend(4 * MIB)) == 4 * MIB


def test_registered_arenas_are_never_unmapped() -> None:
    registered: list[int] = []
    arenas = Arenas(limit_bytes=4 * MIB, register=lambda address, size: registered.append(size))
    arenas.lend(2 * MIB)
    with pytest.raises(MemoryError):
        arenas.lend(4 * MIB)
    assert registered == [2 * MIB]
    assert len(arenas.lend(2 * MIB)) == 2 * MIB
    assert registered == [2 * MIB], "and lent again without being registered twice"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_cannot_use_its_parents_arenas() -> None:
    arenas, child = Arenas(), os.fork()
    if child == 0:
        try:
            arenas.lend(1)
        except Refused:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
