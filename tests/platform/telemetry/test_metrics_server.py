"""The arbiter's port: what it answers, to whom, and that a hanging client is nobody else's problem."""

import socket
from collections.abc import Iterator

import httpx
import pytest

from ebbtide.telemetry.metrics_server import MetricsServer
from ebbtide.telemetry.registry import Metrics

TOKEN = "t" * 32


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    server = MetricsServer(Metrics([]), host="127.0.0.1", port=0)
    yield server
    server.stop()


def test_it_answers_with_metrics_on_a_free_port_and_nothing_else(server: MetricsServer) -> None:
    assert server.port > 0
    response = httpx.get(server.url, trust_env=False)
    assert response.status_code == 200 and "ebbtide_build_info" in response.text
    assert response.headers["content-type"].startswith("text/plain")
    base = server.url.removesuffix("/metrics")
    assert httpx.get(f"{base}/", trust_env=False).status_code == 404
    assert httpx.get(f"{base}/debug", trust_env=False).status_code == 404
    assert httpx.post(server.url, trust_env=False).status_code == 405


def test_with_a_token_a_scrape_must_show_it() -> None:
    server = MetricsServer(Metrics([]), host="127.0.0.1", port=0, token=TOKEN)
    try:
        assert httpx.get(server.url, trust_env=False).status_code == 401
        for wrong in ("Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer"):
            assert httpx.get(server.url, trust_env=False, headers={"authorization": wrong}).status_code == 401
        shown = {"authorization": f"Bearer {TOKEN}"}
        assert httpx.get(server.url, trust_env=False, headers=shown).status_code == 200
    finally:
        server.stop()


def test_a_client_that_hangs_holds_up_nobody(server: MetricsServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as hanging:
        hanging.sendall(b"GET /metr")
        assert httpx.get(server.url, trust_env=False, timeout=5).status_code == 200


def test_a_taken_port_is_refused_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            MetricsServer(Metrics([]), host="127.0.0.1", port=taken.getsockname()[1])


def test_a_stopped_server_gives_its_port_back() -> None:
    first = MetricsServer(Metrics([]), host="127.0.0.1", port=0)
    first.stop()
    second = MetricsServer(Metrics([]), host="127.0.0.1", port=first.port)
    second.stop()
    assert second.port == first.port
