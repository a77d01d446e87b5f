"""Sending a request to a replica's own port, and telling apart the ways in which that fails.

Straight to the replica, because a stream through Serve's handle costs two more hops. Every request has a connection of
its own: a kept-alive one that the replica closes just now looks like a replica that died with our request, and closing
the connection is how a replica learns that the client hung up. On a private network a connection costs < 1 ms.

Of the client's headers nothing is passed on: no Authorization, no cookies. Of the replica's only ``PASSED_BACK``.
"""

import asyncio
import functools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from ebbtide.client.messages import SeatRoute
from ebbtide_serve.gateway.errors import SeatDead, SeatLost, SeatUnreachable, StreamBroken
from ebbtide_serve.gateway.http.replica_connection import ReplicaConnection
from ebbtide_serve.gateway.http.sse import EventSplitter

TOKEN_HEADER = "x-ebbtide-token"
REQUEST_ID_HEADER = "x-request-id"
PASSED_BACK = ("content-type", "retry-after")
WHOLE_MAX_BYTES = 64 << 20  # of an answer that is no stream: a million tokens with their log probabilities
# The codes of a replica's 503, as `replica.http_app` writes them.
_REFUSED = (b'"replica_starting"', b'"replica_draining"')  # it read nothing of the request
_LOST = (b'"engine_failed"',)  # the engine died with the request


@dataclass
class Reply:
    """A replica's answer of which the first bytes are here. ``close`` it in any case."""

    status: int
    headers: dict[str, str]
    first: bytes  # the whole body, unless it is a stream of events
    events: EventSplitter | None  # None: not a stream
    _wire: ReplicaConnection

    async def rest(self) -> AsyncIterator[bytes]:
        """The further events of a stream, as they come.

        Raises:
            StreamBroken: the replica went away before ``[DONE]``.
        """
        assert self.events is not None, "only a stream has a rest"
        while data := await self._wire.read():
            whole = self.events.feed(data)
            if whole:
                yield whole
        # guard: a stream that ends without [DONE] counts as broken
        if not self.events.finished and not self.events.ended_in_error:
            raise StreamBroken("the replica ended the stream without [DONE]")

    def close(self) -> None:
        """Close the connection; a generation that still runs is aborted by the replica."""
        self._wire.close()


class Upstream:
    """The client side of all connections to replicas; use it in one event loop.

    Args:
        token: the pool's internal token.
        connect_timeout_s: until a replica's port answers.
        silence_s: a stream without a byte for so long counts as lost. Not so an answer in one piece, which is silent
            until it is whole.
    """

    def __init__(self, token: str, connect_timeout_s: float, silence_s: float) -> None:
        self._token = token  # guard: a replica is shown the internal token
        self.connect_timeout_s = connect_timeout_s
        self.silence_s = silence_s

    async def send(self, seat: SeatRoute, path: str, body: bytes, request_id: str, *, stream: bool = False) -> Reply:
        """Send a request and wait for the first bytes of the answer: an event of a stream, else the whole body.

        Raises:
            SeatUnreachable: not executed: no connection, or the replica drains or is not ready yet.
            SeatLost: it may have been executed, but no answer came.
            SeatDead: the same, and nothing will ever come from there.
        """
        loop = asyncio.get_running_loop()
        host, port = _address(seat.url)
        try:
            async with asyncio.timeout(self.connect_timeout_s):  # guard: connecting to a replica has a deadline
                _, wire = await loop.create_connection(
                    # guard: a replica that works on an answer in one piece may be silent
                    lambda: ReplicaConnection(loop, self.silence_s if stream else None),
                    host,
                    port,
                )
        except OSError as error:  # TimeoutError is one too
            raise SeatUnreachable(f"{seat.seat}: {error or 'no connection in time'}") from error
        wire.ask(self._head(f"{host}:{port}", path, len(body), request_id), body)
        try:
            return await _first_bytes(wire, seat)
        except BaseException:  # guard: a client that hangs up before the first byte ends its generation
            wire.close()
            raise

    def _head(self, host: str, path: str, body_bytes: int, request_id: str) -> bytes:
        # Every part is ours or was checked: a path of `Route`, a request id of plain characters.
        lines = (
            f"POST {path} HTTP/1.1",
            f"host: {host}",
            "content-type: application/json",
            f"content-length: {body_bytes}",
            f"{TOKEN_HEADER}: {self._token}",
            f"{REQUEST_ID_HEADER}: {request_id}",
            "connection: close",
            "\r\n",
        )
        return "\r\n".join(lines).encode("latin-1")


async def _first_bytes(wire: ReplicaConnection, seat: SeatRoute) -> Reply:
    try:
        await wire.answered()
        headers = {name: wire.headers[name] for name in PASSED_BACK if name in wire.headers}
        if headers.get("content-type", "").partition(";")[0].strip() != "text/event-stream":
            body = await _whole(wire)
            _check_unavailable(wire.status, body, seat)
            return Reply(wire.status, headers, body, None, wire)
        events = EventSplitter()
        while data := await wire.read():
            whole = events.feed(data)
            if whole:
                return Reply(wire.status, headers, whole, events, wire)
    except StreamBroken as error:
        raise SeatLost(f"{seat.seat}: {error}") from error
    raise SeatLost(f"{seat.seat} sent no event")  # guard: a stream without any event is lost and not empty


async def _whole(wire: ReplicaConnection) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    while data := await wire.read():
        parts.append(data)
        size_bytes += len(data)
        if size_bytes > WHOLE_MAX_BYTES:  # guard: an answer in one piece is bounded in size
            raise StreamBroken(f"the replica's answer is larger than {WHOLE_MAX_BYTES} bytes")
    return b"".join(parts)


@functools.lru_cache(maxsize=1024)
def _address(url: str) -> tuple[str, int]:
    """Host and port of a replica.

    Raises:
        SeatUnreachable: it is no address.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise SeatUnreachable(f"{url!r} is no replica's address")
    return host, port


def _check_unavailable(status: int, body: bytes, seat: SeatRoute) -> None:
    # guard: a refusal of a replica uses up no retry; a draining replica's 503 is not passed on to the client
    if status == 503 and any(code in body for code in _REFUSED):
        raise SeatUnreachable(f"{seat.seat} takes no requests now")
    # guard: a 503 of a replica whose engine failed is a loss and no answer
    if status == 503 and any(code in body for code in _LOST):
        raise SeatDead(f"the engine of {seat.seat} failed")
