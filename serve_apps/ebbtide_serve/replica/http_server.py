"""An HTTP server on a free port inside the caller's event loop; it touches no signal handlers of its process."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn


class _QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers: the process belongs to Ray."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


class PortServer:
    """Serves one ASGI app at ``http://host:<a free port>``."""

    def __init__(self, app: Any, host: str) -> None:
        self._app = app
        self._host = host
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen; connections are accepted when this returns.

        Raises:
            OSError: the address cannot be bound.
        """
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited; asyncio sets it not in all cases
        listener.bind((self._host, 0))
        listener.listen(2048)
        host = f"[{self._host}]" if family == socket.AF_INET6 else self._host
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_keep_alive=75,  # longer than the gateway keeps an idle connection, so that it closes first
            timeout_graceful_shutdown=1,
        )
        self._server = _QuietServer(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.005)
        self.url = f"http://{host}:{listener.getsockname()[1]}"

    async def stop(self) -> None:
        """Close the port and what is still connected. Safe before start and to repeat."""
        if self._server is None or self._task is None:
            return
        self._server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
