"""A proxy in the environment, as companies have it, is not asked for the pool's own job service."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from ebbtide_train.submission import dashboard


class Version(BaseHTTPRequestHandler):
    """Ray's job service, as far as a client asks before anything else."""

    def do_GET(self) -> None:
        body = json.dumps({"version": "4", "ray_version": "2", "ray_commit": "c", "session_name": "s"}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def service() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Version)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.xfail(
    strict=True, raises=ConnectionError, reason="Ray's client takes the proxy of the environment for all addresses"
)
def test_the_job_service_is_asked_directly(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(dashboard, "dashboard_url", lambda: service)
    dashboard.job_service()
