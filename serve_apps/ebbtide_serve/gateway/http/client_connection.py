"""One client's connection: uvicorn's HTTP/1.1 on llhttp, with bounds on everything that a client can do to it.

``httptools`` and not ``h11``, because each token that is streamed passes through here (docs/measured.md); but neither
it nor uvicorn limits headers, time, or a client that does not read. So, beyond uvicorn:

- headers: at most so many and so large, complete within a deadline (slowloris), also for later requests;
- an idle connection is closed, and so is one whose request was answered while its body still comes;
- a client that does not take what it asked for is cut off: at most what the socket and ``WRITE_AHEAD_BYTES`` hold
  waits for it, and only for so long;
- of pipelined requests a few wait; when the client goes, all of them end;
- beyond ``max_connections`` the answer is 503, at once.

Answers to what is no HTTP have OpenAI's shape, and nothing is logged for them: a flood of them fills no disk.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from ebbtide_serve.gateway.errors import error_body

PIPELINED_MAX = 8  # no client that we know pipelines at all
WRITE_AHEAD_BYTES = 64 << 10  # asyncio's own mark: above it we wait


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one client may do; see ``GatewaySettings``."""

    max_connections: int
    max_header_bytes: int
    max_headers: int
    header_timeout_s: float
    client_stall_s: float


class _Refused(Exception):
    """The request in hand is answered with an error, and the connection closed."""

    def __init__(self, status: int, message: str, code: str) -> None:
        self.status, self.message, self.code = status, message, code


class ClientConnection(HttpToolsProtocol):
    """See the module; made by :func:`connection_class`."""

    bounds: Bounds

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_headers = False  # between a request's first byte and the end of its headers
        self._fed_bytes = 0  # of headers that are not complete
        self._headers_bytes = 0  # of headers that are
        self._refusal: _Refused | None = None
        self._running: RequestResponseCycle | None = None
        self._deadline: asyncio.TimerHandle | None = None  # for whatever is no running request
        self._stall: asyncio.TimerHandle | None = None

    # ---- asyncio's calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_AHEAD_BYTES)
        if len(self.connections) > self.bounds.max_connections:  # guard: a gateway has no more connections than it may
            message = f"This gateway has {self.bounds.max_connections} connections open, which is its limit."
            self._answer(_Refused(503, message, "too_many_connections"))
        else:
            self._await_headers()

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # no protocol but HTTP is spoken here; the request is answered as it stands
        # guard: what is no HTTP is answered with 400 and closed; a request whose length is in doubt is a 400
        except httptools.HttpParserError:
            self._answer(self._refusal or _Refused(400, "This is not a valid HTTP request.", "invalid_http"))
            return
        if self._in_headers:
            self._fed_bytes += len(data)  # one endless header is seen here; many are seen in `on_header`
            # guard: headers that are not complete are bounded in size
            if self._fed_bytes > self.bounds.max_header_bytes:
                self._answer(self._too_large())
                return
        self._watch_request()

    def pause_writing(self) -> None:
        """The client does not take its bytes as fast as they come."""
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        self._drop_stall()  # guard: a client that reads slowly is not cut off

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, or was sent away."""
        self._drop_deadline()
        self._drop_stall()
        self._unset_keepalive_if_required()
        # uvicorn tells only the newest request; of pipelined ones the first would go on for nobody.
        for cycle in (self._running, *(waiting for waiting, _ in self.pipeline)):
            if cycle is not None:
                cycle.disconnected = True  # guard: a client that goes ends all of its pipelined requests
                cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    # ---- llhttp's calls; what they raise ends `feed_data`

    def on_message_begin(self) -> None:
        """A request's first byte."""
        super().on_message_begin()
        self._in_headers = True
        self._fed_bytes = self._headers_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        super().on_url(url)
        if len(self.url) > self.bounds.max_header_bytes:  # guard: a target is bounded in length
            self._refuse(self._too_large())

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer of a chunked body."""
        super().on_header(name, value)
        self._headers_bytes += len(name) + len(value) + 4  # ": " and the line's end
        size_bytes = len(self.url) + self._headers_bytes
        if (
            len(self.headers) > self.bounds.max_headers  # guard: headers are bounded in number
            or size_bytes > self.bounds.max_header_bytes  # guard: all headers together are bounded in size
        ):
            self._refuse(self._too_large())

    def on_headers_complete(self) -> None:
        """The last header."""
        self._in_headers = False
        # llhttp takes 0.9 and 2.0 too.
        if self.parser.get_http_version() not in ("1.0", "1.1"):  # guard: only HTTP/1.0 and 1.1 are spoken
            self._refuse(_Refused(400, "This gateway speaks HTTP/1.1.", "invalid_http"))
        if len(self.pipeline) >= PIPELINED_MAX:  # guard: only a few pipelined requests wait
            self._refuse(_Refused(400, "Too many requests were sent without waiting for answers.", "pipelined"))
        super().on_headers_complete()
        if self.pipeline:  # guard: a client that goes while it pipelines is seen
            self.flow.resume_reading()  # uvicorn stops reading here, and then does not see the client go

    def on_response_complete(self) -> None:
        """A response is written."""
        super().on_response_complete()
        self._watch_request()
        self._watch_reading()

    # ---- uvicorn's hooks

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def timeout_keep_alive_handler(self) -> None:
        """Idle for too long."""
        super().timeout_keep_alive_handler()
        self._watch_reading()

    # ---- deadlines

    def _watch_request(self) -> None:
        """A running request has its own deadlines; all else has ours, but for an idle connection (uvicorn's)."""
        cycle = self.cycle
        running = self._running is not None and not self._running.response_complete
        leftover = cycle is not None and cycle.response_complete and cycle.more_body
        if running or not (
            self._in_headers  # guard: headers of later requests have a deadline
            or leftover  # guard: the rest of a refused body has a deadline
            or cycle is None
        ):
            self._drop_deadline()
        else:
            self._await_headers()

    def _await_headers(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            # guard: headers have a deadline
            self._deadline = self.loop.call_later(self.bounds.header_timeout_s, self._too_slow)

    def _drop_deadline(self) -> None:
        _cancel(self._deadline)
        self._deadline = None

    def _drop_stall(self) -> None:
        _cancel(self._stall)
        self._stall = None

    def _too_slow(self) -> None:
        self._deadline = None
        self.transport.close()
        self._watch_reading()

    def _watch_reading(self) -> None:
        """While bytes wait for the client, it has to take some of them now and then, closing or not."""
        if self._stall is None and self.transport.get_write_buffer_size() > 0:
            self._stall = self.loop.call_later(self.bounds.client_stall_s, self._stalled)

    def _stalled(self) -> None:
        self._stall = None
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()  # guard: a client that reads nothing is cut off

    # ---- refusals

    def _too_large(self) -> _Refused:
        bounds = self.bounds
        message = f"The headers are more than {bounds.max_headers} or larger than {bounds.max_header_bytes} bytes."
        return _Refused(431, message, "headers_too_large")

    def _refuse(self, refusal: _Refused) -> None:
        self._refusal = refusal
        raise refusal

    def _answer(self, refusal: _Refused) -> None:
        """Say why, unless another answer is under way, and close."""
        running = self._running
        # guard: a request whose rest is bad does not go on
        if running is not None and running is self.cycle and running.more_body and not running.response_started:
            # The rest of the request in hand is bad: its own answer is this one, and what was begun for it ends.
            running.disconnected = running.response_complete = True
            running.message_event.set()
        if running is None or running.response_complete:  # guard: no error is written into a running answer
            kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
            body = json.dumps(error_body(refusal.message, kind=kind, code=refusal.code)).encode()
            retry = b"retry-after: 1\r\n" if refusal.status == 503 else b""
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
            self.transport.write(STATUS_LINE[refusal.status] + head + retry + b"\r\n" + body)
        self.transport.close()
        self._drop_deadline()
        self._watch_reading()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def connection_class(bounds: Bounds) -> type[ClientConnection]:
    """uvicorn makes the protocol objects itself, so the bounds travel in the class."""
    return type("GatewayConnection", (ClientConnection,), {"bounds": bounds})
