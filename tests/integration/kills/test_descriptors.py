"""Connections to the living are not counted, as far as there are few of them; all that could be a leak is."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.integration.kills.descriptors import PER_PEER, Connection, connections, to_the_living

A, B, C = ("127.0.0.1", 1), ("127.0.0.1", 2), ("127.0.0.1", 3)


def test_both_ends_of_a_connection_between_processes_that_live() -> None:
    found = to_the_living([Connection(10, A, B), Connection(20, B, A), Connection(10, A, C), Connection(30, C, A)])
    assert found == {10: 2, 20: 1, 30: 1}


def test_an_end_whose_other_end_is_gone_or_nobodys_is_a_leak() -> None:
    assert to_the_living([Connection(10, A, B), Connection(10, A, C), Connection(None, C, A)]) == {}


def test_a_connection_of_a_process_to_itself_is_its_own_affair() -> None:
    assert to_the_living([Connection(10, A, B), Connection(10, B, A)]) == {}


def test_many_to_one_peer_count_from_the_sixth_on() -> None:
    many = [("127.0.0.1", 100 + number) for number in range(50)]
    ends = [Connection(10, A, one) for one in many] + [Connection(20, one, A) for one in many]
    assert to_the_living(ends) == {10: PER_PEER, 20: PER_PEER}


SERVER = """
import socket, sys
listening = socket.create_server(("127.0.0.1", 0), backlog=64)
print(listening.getsockname()[1], flush=True)
held = [listening.accept() for _ in range(int(sys.argv[1]))]
print("accepted", flush=True)
sys.stdin.read()
"""
CLIENT = """
import socket, sys
held = [socket.create_connection(("127.0.0.1", int(sys.argv[2]))) for _ in range(int(sys.argv[1]))]
print("connected", flush=True)
sys.stdin.read()
"""


@contextmanager
def child(script: str, *arguments: object) -> Iterator[tuple["subprocess.Popen[str]", Callable[[], str]]]:
    """A process that goes on until its standard input is closed, and what reads its next line."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        stdout = running.stdout
        assert stdout is not None
        try:
            yield running, lambda: stdout.readline().strip()
        finally:
            running.kill()


def counted(pid: int) -> int:
    """Descriptors of a process, as a soak counts them."""
    return psutil.Process(pid).num_fds() - to_the_living(connections()).get(pid, 0)


@pytest.mark.parametrize(("held", "while_alive"), [(3, 0), (20, 20 - PER_PEER)])
def test_real_connections_count_as_soon_as_the_other_process_is_dead(held: int, while_alive: int) -> None:
    with child(SERVER, held) as (server, says):
        port = says()
        before = counted(server.pid)
        with child(CLIENT, held, port) as (client, client_says):
            assert (says(), client_says()) == ("accepted", "connected")
            assert counted(server.pid) - before == while_alive
            client.kill()
            client.wait()
            assert counted(server.pid) - before == held, "each of them is left of a dead process"
