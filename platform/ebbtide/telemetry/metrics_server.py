"""``/metrics`` over HTTP from a thread of its own, for a process that has no HTTP server.

Loopback, unless a token is given: then every scrape must show it (``Authorization: Bearer``). A scrape that hangs or
fails costs its own thread and nobody else.
"""

import hmac
import logging
import socket
import threading
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

from ebbtide.telemetry.registry import Metrics

PATH = "/metrics"
CONNECTION_S = 10.0  # an idle or slow client is dropped after this; a scrape takes milliseconds

log = logging.getLogger(__name__)


class MetricsServer:
    """Serves until :meth:`stop`."""

    def __init__(self, metrics: Metrics, *, host: str, port: int, token: str = "") -> None:
        """Bind and serve.

        Args:
            metrics: what is shown.
            host: an address of this machine; any but loopback needs ``token``.
            port: 0 = any free one.
            token: what a scrape must show; empty: nothing.

        Raises:
            OSError: the address is taken, or is not ours.
        """
        self._metrics, self._token = metrics, token
        kind = _Servers6 if ":" in host else _Servers
        self._server = make_server(host, port, self._answer, kind, handler_class=_Handler)
        self.port = int(self._server.server_port)
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    @property
    def url(self) -> str:
        """Where a person looks."""
        return f"http://{self.address}{PATH}"

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != PATH:
            return _short(start, "404 Not Found", f"only {PATH} is here")
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return _short(start, "405 Method Not Allowed", "GET it")
        if self._token and not _shows(str(environ.get("HTTP_AUTHORIZATION", "")), self._token):
            return _short(start, "401 Unauthorized", "send 'Authorization: Bearer <the token of metrics.token_file>'")
        try:
            body, content_type = self._metrics.text(str(environ.get("HTTP_ACCEPT", "")))
        except Exception:  # outermost of a scrape: it fails alone
            log.exception("a scrape failed")
            return _short(start, "500 Internal Server Error", "the log says why")
        start("200 OK", [("Content-Type", content_type), ("Content-Length", str(len(body)))])
        return [body]


def _shows(authorization: str, token: str) -> bool:
    scheme, _, shown = authorization.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), token.encode())


def _short(start: StartResponse, status: str, message: str) -> list[bytes]:
    body = f"{message}\n".encode()
    headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
    if status.startswith("401"):
        headers.append(("WWW-Authenticate", 'Bearer realm="ebbtide"'))
    start(status, headers)
    return [body]


class _Servers(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Servers6(_Servers):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = CONNECTION_S

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are no news."""
