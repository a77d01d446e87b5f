"""Sending a request to a replica's own port, and telling apart the ways in which that fails.

Straight to the replica, because a stream through Serve's handle costs two more hops. Every request has a connection of
its own: a kept-alive one that the replica closes just now looks like a replica that died with our request, and closing
the connection is how a replica learns that the client hung up. On a private network a connection costs < 1 ms.

Of the client's headers nothing is passed on: no Authorization, no cookies. Of the replica's only ``PASSED_BACK``.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp

from ebbtide.client.messages import SeatRoute
from ebbtide_serve.gateway.errors import SeatLost, SeatUnreachable, StreamBroken
from ebbtide_serve.gateway.sse import EventSplitter

TOKEN_HEADER = "x-ebbtide-token"
REQUEST_ID_HEADER = "x-request-id"
PASSED_BACK = ("content-type", "retry-after")
# The codes of a replica's 503, as `replica_http` writes them.
_REFUSED = (b'"replica_starting"', b'"replica_draining"')  # it read nothing of the request
_LOST = (b'"engine_failed"',)  # the engine died with the request


@dataclass
class Reply:
    """A replica's answer of which the first bytes are here. ``close`` it in any case."""

    status: int
    headers: dict[str, str]
    first: bytes  # the whole body, unless it is a stream of events
    events: EventSplitter | None  # None: not a stream
    _response: aiohttp.ClientResponse

    async def rest(self) -> AsyncIterator[bytes]:
        """The further events of a stream, as they come.

        Raises:
            StreamBroken: the replica went away before ``[DONE]``.
        """
        assert self.events is not None, "only a stream has a rest"
        try:
            async for data in self._response.content.iter_any():
                whole = self.events.feed(data)
                if whole:
                    yield whole
        except (aiohttp.ClientError, OSError) as error:
            raise StreamBroken(str(error)) from error
        if not self.events.finished and not self.events.ended_in_error:
            raise StreamBroken("the replica ended the stream without [DONE]")

    def close(self) -> None:
        """Close the connection; a generation that still runs is aborted by the replica."""
        self._response.close()


class Upstream:
    """The client side of all connections to replicas; use it in one event loop, between start and stop."""

    def __init__(self, token: str, connect_timeout_s: float) -> None:
        self._token = token
        self._connect_timeout_s = connect_timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Get ready to connect."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            # Whole answers have deadlines of their own, by the caller.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,  # a proxy from the environment must never see prompts
        )

    async def stop(self) -> None:
        """Close what is still open."""
        if self._session is not None:
            await self._session.close()

    async def send(self, seat: SeatRoute, path: str, body: bytes, request_id: str) -> Reply:
        """Send a request and wait for the first bytes of the answer: an event of a stream, else the whole body.

        Raises:
            SeatUnreachable: not executed: no connection, or the replica drains or is not ready yet.
            SeatLost: it may have been executed, but no answer came, or its engine failed.
        """
        assert self._session is not None, "send before start"
        headers = {
            "content-type": "application/json",
            "accept-encoding": "identity",
            TOKEN_HEADER: self._token,
            REQUEST_ID_HEADER: request_id,
        }
        try:
            response = await self._session.post(
                seat.url.rstrip("/") + path, data=body, headers=headers, allow_redirects=False
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            raise SeatUnreachable(f"{seat.seat}: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise SeatLost(f"{seat.seat}: {error}") from error
        try:
            return await _first_bytes(response, seat)
        except BaseException:
            response.close()
            raise


async def _first_bytes(response: aiohttp.ClientResponse, seat: SeatRoute) -> Reply:
    headers = {name: response.headers[name] for name in PASSED_BACK if name in response.headers}
    try:
        if response.content_type != "text/event-stream":
            body = await response.read()
            _check_unavailable(response.status, body, seat)
            return Reply(response.status, headers, body, None, response)
        events = EventSplitter()
        async for data in response.content.iter_any():
            whole = events.feed(data)
            if whole:
                return Reply(response.status, headers, whole, events, response)
    except (aiohttp.ClientError, OSError) as error:
        raise SeatLost(f"{seat.seat}: {error}") from error
    raise SeatLost(f"{seat.seat} sent no event")


def _check_unavailable(status: int, body: bytes, seat: SeatRoute) -> None:
    if status == 503 and any(code in body for code in _REFUSED):
        raise SeatUnreachable(f"{seat.seat} takes no requests now")
    if status == 503 and any(code in body for code in _LOST):
        raise SeatLost(f"the engine of {seat.seat} failed")
