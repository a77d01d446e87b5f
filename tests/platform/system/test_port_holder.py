"""A port that is taken is taken by a process, which has a pid and a command."""

import socket
import subprocess
import sys

import psutil
import pytest

from ebbtide.system.port_holder import port_holder

LISTENS = """
import socket, time
one = socket.create_server(("127.0.0.1", 0))
print(one.getsockname()[1], flush=True)
time.sleep(60)
"""


def test_another_process_is_named_with_its_command_and_the_remedy() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LISTENS, "vllm", "serve", "x" * 200], stdout=subprocess.PIPE, text=True
    ) as held:
        try:
            assert held.stdout is not None
            port = int(held.stdout.readline())
            found = port_holder(port)
            assert found.startswith(f"process {held.pid} (") and "\n" not in found.strip() and len(found) < 120
        finally:
            held.kill()


def test_a_connection_that_is_no_listener_is_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert port_holder(client.getsockname()[1]) == ""


def test_where_nothing_may_be_seen_it_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_kind: str) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", denied)
    assert port_holder(80) == ""
