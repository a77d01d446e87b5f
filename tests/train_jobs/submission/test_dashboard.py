"""A proxy in the environment, as companies have it, is not asked for the pool's own job service."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import requests

from ebbtide.system import direct_addresses
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


@pytest.fixture(scope="module")
def service() -> Iterator[HTTPServer]:
    server = HTTPServer(("0.0.0.0", 0), Version)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.mark.parametrize("names", [("HTTP_PROXY", "http_proxy"), ("http_proxy",), ("ALL_PROXY",), ("all_proxy",)])
@pytest.mark.parametrize("exceptions", [None, "", "internal.example", "10.0.0.0/8, .corp"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "the machine's"])
def test_the_job_service_is_asked_directly(
    host: str, exceptions: str | None, names: tuple[str, ...], service: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    for name in names:
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    if exceptions is not None:
        monkeypatch.setenv("NO_PROXY", exceptions)
    own = direct_addresses._own_addresses()
    host = next((one for one in own if "." in one and one != "127.0.0.1"), "127.0.0.1") if " " in host else host
    monkeypatch.setattr(dashboard, "dashboard_url", lambda: f"http://{host}:{service.server_port}")
    dashboard.job_service()
    with pytest.raises(requests.exceptions.ProxyError):  # the world outside is still asked for by the proxy
        requests.get("http://hub.example/model", timeout=5)
