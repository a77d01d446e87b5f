"""The gateway's own uvicorn server, started and stopped inside a running event loop.

Not behind Serve's proxy: the gateway decides what is public. What a single connection may do is in
``http.client_connection``.

Not guaranteed: a gateway that is killed drops what it holds; its clients see a closed connection and try again.
"""

import asyncio
import contextlib
import errno
import resource
import socket
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from ebbtide_serve.gateway.app import Gateway, build_app
from ebbtide_serve.gateway.clock import Clock
from ebbtide_serve.gateway.http.client_connection import Bounds, connection_class
from ebbtide_serve.gateway.http.tls import TlsFiles
from ebbtide_serve.gateway.link import ArbiterPort
from ebbtide_serve.gateway.settings import GatewaySettings

BIND_PATIENCE_S = 10.0  # the kernel frees a killed predecessor's port at once, but it may still be draining
BIND_RETRY_S = 0.1
BACKLOG = 2048  # connections not yet accepted; uvicorn's own default
# What the kernel may hold of an answer that its client does not read: thousands of tokens, and not the megabytes that
# it would grow to by itself. At 100 ms away it allows 2.5 MB/s, far above any stream of tokens.
SEND_BUFFER_BYTES = 256 << 10
OTHER_DESCRIPTORS = 256  # of this process: Ray's sockets, files, libraries
# What only another gateway can obey; all else is changed while it runs.
FIXED = ("host", "port", "node", "per_node", "internal_token", "tls_cert", "tls_key")
FIXED_BOUNDS = ("max_connections", "max_header_bytes", "max_headers", "header_timeout_s", "client_stall_s")


class GatewayServer:
    """One gateway on one port."""

    def __init__(self, settings: GatewaySettings, link: ArbiterPort, clock: Clock | None = None) -> None:
        self._settings = settings
        self.app: FastAPI = build_app(settings, link, clock)
        self.gateway: Gateway = self.app.state.gateway
        self.port = settings.port
        self._tls = TlsFiles(Path(settings.tls_cert), Path(settings.tls_key)) if settings.tls_cert else None
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None

    async def start(self, bind_patience_s: float = BIND_PATIENCE_S) -> None:
        """Bind and serve; returns when connections are accepted.

        Raises:
            OSError: the port stayed taken for ``bind_patience_s``, or the address is not ours.
            ValueError: the certificate cannot be used.
        """
        settings = self._settings
        if self._tls is not None:
            self._tls.load()
        listener = await _bind(settings, bind_patience_s)
        self.port = listener.getsockname()[1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.gateway.url = f"{settings.scheme}://{host}:{self.port}"
        bounds = Bounds(
            max_connections=_affordable(settings.max_connections),
            max_header_bytes=settings.max_header_bytes,
            max_headers=settings.max_headers,
            header_timeout_s=settings.header_timeout_s,
            client_stall_s=settings.client_stall_s,
        )
        config = uvicorn.Config(
            self.app,
            http=connection_class(bounds),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=settings.idle_timeout_s,  # type: ignore[arg-type] # handed to call_later as it is
            timeout_graceful_shutdown=5,  # our own drain came before; this is for last bytes to slow readers
        )
        self._server = _Server(config, listener, self._tls, handshake_s=settings.header_timeout_s)
        self._serving = asyncio.create_task(self._server.serve())
        while not self._server.started:
            if self._serving.done():
                await self._serving
                raise RuntimeError("the gateway's server ended while it started")
            await asyncio.sleep(0.005)
        if self._tls is not None:
            self._reloading = asyncio.create_task(self._tls.reload_forever())

    @property
    def alive(self) -> bool:
        """Whether it accepts connections."""
        return self._serving is not None and not self._serving.done() and not self.gateway.stopping

    def change(self, settings: GatewaySettings) -> None:
        """Obey other endpoints and limits; running requests go on.

        Raises:
            ValueError: something else differs, which only a new gateway can obey; nothing was changed.
        """
        for name in FIXED:
            # guard: what only a new gateway can obey is refused by a running one
            if getattr(settings, name) != getattr(self._settings, name):
                raise ValueError(f"{name} of a running gateway cannot be changed; deploy a new one")
        kept = {name: getattr(self._settings, name) for name in FIXED_BOUNDS}
        self._settings = replace(settings, **kept)
        self.gateway.change(self._settings)

    async def stop(self, drain_s: float | None = None) -> None:
        """Accept nothing new, let running requests end (at most ``drain_s``, default from the settings), and close."""
        if self._server is None or self._serving is None:
            return
        if self._reloading is not None:
            self._reloading.cancel()
        for server in self._server.servers:
            server.close()
        await self.gateway.drain(self._settings.drain_s if drain_s is None else drain_s)
        self._server.should_exit = True
        await self._serving
        self._server = None


class _Server(uvicorn.Server):
    """Leaves the process's signal handlers alone, since it is a Ray worker's; and bounds TLS handshakes."""

    def __init__(
        self, config: uvicorn.Config, listener: socket.socket, tls: TlsFiles | None, *, handshake_s: float
    ) -> None:
        super().__init__(config)
        self._listener, self._tls, self._handshake_s = listener, tls, handshake_s

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise RuntimeError("the gateway's app did not start")
        loop = asyncio.get_running_loop()

        def connection() -> asyncio.Protocol:
            made = self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            assert isinstance(made, asyncio.Protocol)
            return made

        server = await loop.create_server(
            connection,
            sock=self._listener,
            backlog=BACKLOG,
            ssl=self._tls.context if self._tls else None,
            ssl_handshake_timeout=self._handshake_s if self._tls else None,  # guard: TLS handshakes have a deadline
            ssl_shutdown_timeout=5.0 if self._tls else None,
        )
        self.servers = [server]
        self.started = True


async def _bind(settings: GatewaySettings, patience_s: float) -> socket.socket:
    """A listening address of our own; shared (SO_REUSEPORT) only where each node has a gateway."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + patience_s
    host, port = settings.host, settings.port
    family, _, _, _, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
    while True:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # past connections in TIME_WAIT
            if settings.per_node:  # guard: a second gateway on a port shows unless each node has one
                # Two of our "nodes" may be one machine (tests), and a successor may start while its predecessor
                # drains. Elsewhere a second gateway on the port is a mistake that must show.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # guard: what a client does not read is bounded in the kernel
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # inherited by connections
            # Inherited too. asyncio sets it itself, but not on what a listener without a protocol number accepts; then
            # a body waits for the delayed ACK of its headers: 40 ms.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listener.bind(address)
            listener.listen(BACKLOG)  # here, since only listening proves that the port is ours alone
        except OSError as error:
            listener.close()
            # guard: a port that is taken is waited for and then named
            if error.errno != errno.EADDRINUSE or loop.time() >= deadline_s:
                raise OSError(error.errno, f"gateway address {host}:{port}: {error.strerror}") from error
        else:
            listener.setblocking(False)
            return listener
        await asyncio.sleep(BIND_RETRY_S)


def _affordable(connections: int) -> int:
    """As many of ``connections`` as this process may have descriptors for: each takes two while it is served."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + OTHER_DESCRIPTORS
    # guard: no more connections are taken than descriptors allow
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return max(1, min(connections, (soft - OTHER_DESCRIPTORS) // 2))
    return connections
