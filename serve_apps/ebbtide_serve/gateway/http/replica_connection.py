"""One HTTP/1.1 exchange with a replica on a connection of its own.

Written on the loop's own transport and llhttp (``httptools``) instead of a client library: a token passes through here
as few calls (docs/measured.md has the figures), and every way in which a replica can misbehave has one place.

Bounded: what a replica sends faster than it is read waits in its own socket, headers are limited, and a replica that
says nothing for ``silence_s`` counts as gone.
"""

import asyncio
import socket
from typing import cast

import httptools

from ebbtide_serve.gateway.errors import StreamBroken

AHEAD_MAX_BYTES = 256 << 10  # read and not yet passed on; then the replica has to wait
HEADERS_MAX = 64
HEADERS_MAX_BYTES = 16 << 10
# A node that vanished from the network is noticed after 15 + 3 x 5 s, also while nothing is sent.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class ReplicaConnection(asyncio.Protocol):
    """Made for one request; ``silence_s`` None: it may be silent for as long as it likes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, silence_s: float | None) -> None:
        self.status = 0  # 0: no headers yet
        self.headers: dict[str, str] = {}
        self._loop = loop
        self._silence_s = silence_s
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._header_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._paused = False
        self._complete = False
        self._broken = ""
        self._waiter: asyncio.Future[None] | None = None
        self._heard_s = 0.0
        self._watch: asyncio.TimerHandle | None = None

    # ---- for who asks

    def ask(self, request: bytes, body: bytes) -> None:
        """Send the request."""
        assert self._transport is not None, "ask before the connection is made"
        self._transport.write(request)
        self._transport.write(body)
        if self._silence_s is not None:
            self._heard_s = self._loop.time()
            self._watch = self._loop.call_later(self._silence_s, self._check_silence)

    async def answered(self) -> None:
        """Wait for status and headers.

        Raises:
            StreamBroken: they never come.
        """
        while not self.status:
            await self._more()

    async def read(self) -> bytes:
        """The next piece of the body, all that is there; b"" is its end.

        Raises:
            StreamBroken: the replica went away, hangs, or does not speak HTTP.
        """
        while not self._body:
            if self._complete:
                return b""
            await self._more()
        data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        self._body_bytes = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def close(self) -> None:
        """Hang up; a generation that still runs is aborted by the replica."""
        if self._watch is not None:
            self._watch.cancel()
        if self._transport is not None:
            self._transport.abort()

    async def _more(self) -> None:
        if self._broken:
            raise StreamBroken(self._broken)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _break(self, why: str) -> None:
        if not self._complete and not self._broken:
            self._broken = why
        self._wake()

    def _check_silence(self) -> None:
        assert self._silence_s is not None
        left_s = self._heard_s + self._silence_s - self._loop.time()
        if (
            self._paused  # guard: a replica that waits for a slow client may be silent
            or left_s > 0
        ):
            self._watch = self._loop.call_later(max(left_s, 1.0), self._check_silence)
        else:
            # guard: a replica that is silent for too long is lost
            self._break(f"the replica said nothing for {self._silence_s:g} s")

    # ---- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # guard: a vanished node is noticed
        for option, value in KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._heard_s = self._loop.time()
        if not self.status:
            self._header_bytes += len(data)  # more than headers perhaps, in the one read that ends them
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self._complete:  # bytes after the end are nobody's
                self._break("the replica does not speak HTTP")  # guard: a replica that speaks no HTTP is lost
        # guard: a replica's headers are bounded in size
        if not self.status and self._header_bytes > HEADERS_MAX_BYTES:
            self._break("the replica's headers do not end")
        if self._body_bytes > AHEAD_MAX_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()  # guard: what a slow client does not read stays with the replica
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed by the replica, or by us."""
        if self._watch is not None:
            self._watch.cancel()
        self._break(f"the replica closed the connection ({exc})" if exc else "the replica closed the connection")

    # ---- llhttp's calls

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        if len(self.headers) >= HEADERS_MAX:  # guard: a replica's headers are bounded in number
            raise ValueError("too many headers")
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The last one."""
        status = self._parser.get_status_code()
        # guard: an interim answer is not the answer
        if status >= 200:  # those below announce another answer, and nobody asked for one
            self.status = status

    def on_body(self, body: bytes) -> None:
        """A piece of the body, without its chunk's frame."""
        self._body.append(body)
        self._body_bytes += len(body)

    def on_message_complete(self) -> None:
        """The end, as the answer's own framing says."""
        if self.status:
            self._complete = True
