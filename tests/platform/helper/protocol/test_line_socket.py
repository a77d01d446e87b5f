"""One line each way: how long it may be, how long it may take, and what an end that closes early gets."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from ebbtide.helper.protocol.line_socket import Ended, LineTooLong, TooSlow, part, read_line, send_line

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Pair]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def test_a_line_is_read_up_to_its_end_and_no_longer_than_allowed(ends: Pair) -> None:
    here, there = ends
    there.sendall(b"12345\nand more")
    assert read_line(here, 5, 1.0) == b"12345"
    for raw in (b"123456\n", b"1234567"):
        mine, theirs = socket.socketpair()
        with mine, theirs, pytest.raises(LineTooLong, match="more than 5 bytes"):
            theirs.sendall(raw)
            read_line(mine, 5, 1.0)


def test_who_closes_early_has_asked_nothing(ends: Pair) -> None:
    here, there = ends
    there.sendall(b"12")
    there.shutdown(socket.SHUT_WR)
    with pytest.raises(Ended):
        read_line(here, 5, 1.0)


def test_a_line_has_its_time_as_a_whole_and_not_each_byte_of_it(ends: Pair) -> None:
    here, there = ends
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.05):
            there.sendall(b"x")

    dripping = threading.Thread(target=drip)
    dripping.start()
    began_s = time.monotonic()
    try:
        with pytest.raises(TooSlow, match=r"within 0\.3 s"):
            read_line(here, 60, 0.3)
        assert time.monotonic() - began_s < 2.9
    finally:
        over.set()
        dripping.join()


def test_who_does_not_take_the_answer_holds_up_nobody(ends: Pair) -> None:
    with pytest.raises(TooSlow, match=r"not taken within 0\.1 s"):
        send_line(ends[0], b"x" * (64 << 20), 0.1)


def test_who_talks_on_is_heard_out_for_a_while_and_not_for_ever(ends: Pair) -> None:
    here, there = ends
    over = threading.Event()

    def talk() -> None:
        there.settimeout(0.1)
        while not over.is_set():
            try:
                there.sendall(b"x" * 1000)
            except OSError:
                continue

    talking = threading.Thread(target=talk)
    talking.start()
    try:
        began_s = time.monotonic()
        part(here, 200_000, 20.0)  # it ends by the bytes ...
        assert time.monotonic() - began_s < 10.0
        part(here, 1 << 60, 0.2)  # ... or by the time
    finally:
        over.set()
        talking.join()
