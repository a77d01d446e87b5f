"""The gateway's own uvicorn server, started and stopped inside a running event loop.

Not behind Serve's proxy: the gateway decides what is public. Against slow or endless headers uvicorn has only a size
limit, so :class:`PatientProtocol` adds a deadline; its 400 is OpenAI-shaped.

Not guaranteed: a gateway that is killed drops what it holds; its clients see a closed connection and try again.
"""

import asyncio
import contextlib
import errno
import json
import socket
from collections.abc import Generator
from dataclasses import replace

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from ebbtide_serve.gateway.app import Gateway, build_app
from ebbtide_serve.gateway.clock import Clock
from ebbtide_serve.gateway.errors import error_body
from ebbtide_serve.gateway.link import ArbiterPort
from ebbtide_serve.gateway.settings import GatewaySettings

BIND_PATIENCE_S = 10.0  # the kernel frees a killed predecessor's port at once, but it may still be draining
BIND_RETRY_S = 0.1
BACKLOG = 2048  # connections not yet accepted; uvicorn's own default
KEEP_ALIVE_S = 30.0  # idle between two requests of a client


class GatewayServer:
    """One gateway on one port."""

    def __init__(self, settings: GatewaySettings, link: ArbiterPort, clock: Clock | None = None) -> None:
        self._settings = settings
        self.app: FastAPI = build_app(settings, link, clock)
        self.gateway: Gateway = self.app.state.gateway
        self.port = settings.port
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self, bind_patience_s: float = BIND_PATIENCE_S) -> None:
        """Bind and serve; returns when connections are accepted.

        Raises:
            OSError: the port stayed taken for ``bind_patience_s``, or the address is not ours.
        """
        listener = await _bind(self._settings.host, self._settings.port, bind_patience_s)
        self.port = listener.getsockname()[1]
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        self.gateway.url = f"http://{host}:{self.port}"
        config = uvicorn.Config(
            self.app,
            http=_protocol(self._settings.header_timeout_s),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=int(KEEP_ALIVE_S),
            h11_max_incomplete_event_size=self._settings.max_header_bytes,
            timeout_graceful_shutdown=5,  # our own drain came before; this is for last bytes to slow readers
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started:
            if self._serving.done():
                await self._serving
                raise RuntimeError("the gateway's server ended while it started")
            await asyncio.sleep(0.005)

    @property
    def alive(self) -> bool:
        """Whether it accepts connections."""
        return self._serving is not None and not self._serving.done() and not self.gateway.stopping

    def change(self, settings: GatewaySettings) -> None:
        """Obey other keys and endpoints; running requests go on.

        Raises:
            ValueError: something else differs, which only a new gateway can obey; nothing was changed.
        """
        same = replace(settings, keys=self._settings.keys, endpoints=self._settings.endpoints)
        if same != self._settings:
            raise ValueError("only keys and endpoints of a running gateway can be changed; deploy a new one")
        self._settings = settings
        self.gateway.replace_keys(settings)

    async def stop(self, drain_s: float | None = None) -> None:
        """Accept nothing new, let running requests end (at most ``drain_s``, default from the settings), and close."""
        if self._server is None or self._serving is None:
            return
        for server in self._server.servers:
            server.close()
        await self.gateway.drain(self._settings.drain_s if drain_s is None else drain_s)
        self._server.should_exit = True
        await self._serving
        self._server = None


class _Server(uvicorn.Server):
    """Leaves the process's signal handlers alone: the process is a Ray worker's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def _bind(host: str, port: int, patience_s: float) -> socket.socket:
    """A listening address of our own; never shared (no SO_REUSEPORT): a second gateway there is a mistake."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + patience_s
    family, _, _, _, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
    while True:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # past connections in TIME_WAIT
            listener.bind(address)
            listener.listen(BACKLOG)  # here, since only listening proves that the port is ours alone
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE or loop.time() >= deadline_s:
                raise OSError(error.errno, f"gateway address {host}:{port}: {error.strerror}") from error
        else:
            listener.setblocking(False)
            return listener
        await asyncio.sleep(BIND_RETRY_S)


def _protocol(header_timeout_s: float) -> type[H11Protocol]:
    """uvicorn makes the protocol objects itself, so the deadline travels in the class."""
    return type("GatewayProtocol", (PatientProtocol,), {"header_timeout_s": header_timeout_s})


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with a deadline for whatever is not a running request.

    That is: a new connection until its first headers are complete, further headers on a kept connection, and the rest
    of a body whose request was answered already (an early 401 or 413).
    """

    header_timeout_s: float = 10.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected."""
        super().connection_made(transport)
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE or self._is_leftover():
            self._await_headers()
        else:
            self._clear_deadline()

    def on_response_complete(self) -> None:
        """A response went out."""
        super().on_response_complete()
        if self._is_leftover():
            self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._clear_deadline()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, or has headers beyond the limit, in OpenAI's shape."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # garbage behind a request whose answer has begun
            return
        body = json.dumps(error_body(msg, kind="invalid_request_error", code="invalid_http")).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            output = self.conn.send(event)
            if output:
                self.transport.write(output)
        self.transport.close()

    def _is_leftover(self) -> bool:
        answered = self.cycle is not None and self.cycle.response_complete
        return bool(answered and self.conn.their_state is h11.SEND_BODY)

    def _await_headers(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.header_timeout_s, self._too_slow)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        self.transport.close()
