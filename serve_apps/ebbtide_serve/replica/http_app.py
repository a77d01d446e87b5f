"""A replica's HTTP face inside the pool: two OpenAI routes and /health, for whoever holds the pool's internal token.

Written on plain ASGI, because three things must be exact: no response header leaves before the first event of a
stream is there (so a failure before it can still be a status, and the gateway may try elsewhere), a client that hangs
up stops its generation at once, and a request counts as in flight until its last byte is sent or its client is gone.

Not guaranteed: limits per client; the gateway in front has them.
"""

import asyncio
import contextlib
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ebbtide_serve.engine.port import Engine, JsonReply, Reply, Route, StreamReply, error_event, error_reply
from ebbtide_serve.errors import EngineFailed

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

TOKEN_HEADER = b"x-ebbtide-token"
BODY_LIMIT_BYTES = 32 << 20  # a guard for memory only; the gateway's own limit is lower
ROUTES = {route.value: route for route in Route}

UNAUTHORIZED = error_reply("missing or wrong x-ebbtide-token", "authentication_error", 401)
NOT_FOUND = error_reply("no such path on a replica", "invalid_request_error", 404)
WRONG_METHOD = error_reply("wrong method for this path", "invalid_request_error", 405)
TOO_LARGE = error_reply(f"the body is larger than {BODY_LIMIT_BYTES} bytes", "invalid_request_error", 413)
STARTING = error_reply("this replica is starting", "server_error", 503, code="replica_starting")
DRAINING = error_reply("this replica accepts nothing new", "server_error", 503, code="replica_draining")
TRIPPED = error_reply("the engine could not make anything of this request", "server_error", 500, code="engine_error")
HEALTHY = JsonReply(200, b'{"status": "ok"}')
_log = logging.getLogger(__name__)


class _HungUp(Exception):
    """The client is gone."""


class ReplicaApp:
    """The ASGI application; ``draining`` refuses what is new, ``inflight`` counts what is not finished."""

    def __init__(self, *, token: str) -> None:
        if not token:  # guard: no replica starts without the internal token
            raise ValueError("a replica needs the pool's internal token: without it anybody could use its GPU")
        self._token = token.encode()
        self._engine: Engine | None = None
        self._idle = asyncio.Condition()
        self.draining = False
        self.parked = False  # or on the way there or back: it refuses as well, whatever the arbiter says
        self.inflight = 0

    def serve(self, engine: Engine) -> None:
        """Answer with this engine from now on."""
        self._engine = engine

    async def until_idle(self, timeout_s: float) -> bool:
        """Wait until no request is in flight; False if some still are after ``timeout_s`` seconds."""
        async with self._idle:
            try:
                await asyncio.wait_for(self._idle.wait_for(lambda: self.inflight == 0), timeout_s)
            except TimeoutError:
                return False
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI's entry."""
        if scope["type"] != "http":
            return
        refusal = self._refuse(scope)
        if refusal is not None:
            await _send_whole(send, refusal)
            return
        if scope["path"] == "/health":
            await _send_whole(send, await self._health())
            return
        self.inflight += 1
        try:
            with contextlib.suppress(_HungUp):
                await self._answer(ROUTES[scope["path"]], receive, send)
        finally:
            self.inflight -= 1
            async with self._idle:
                self._idle.notify_all()

    def _refuse(self, scope: Scope) -> JsonReply | None:
        """Why the request is turned away unread, or None."""
        token = next((value for name, value in scope["headers"] if name == TOKEN_HEADER), b"")
        # guard: a replica answers only who shows the internal token
        if not hmac.compare_digest(token, self._token):
            return UNAUTHORIZED
        if scope["path"] == "/health":
            return None if scope["method"] == "GET" else WRONG_METHOD
        if scope["path"] not in ROUTES:
            return NOT_FOUND
        if scope["method"] != "POST":
            return WRONG_METHOD
        if (
            self.draining  # guard: a draining replica refuses what is new
            or self.parked
        ):
            return DRAINING
        # guard: a replica whose engine still starts refuses
        return STARTING if self._engine is None else None

    async def _health(self) -> JsonReply:
        try:
            if self._engine is None:
                return STARTING
            await self._engine.check_health()
        except EngineFailed as error:
            return error_reply(str(error), "server_error", 503)
        return HEALTHY

    async def _answer(self, route: Route, receive: Receive, send: Send) -> None:
        body = await _read_body(receive)
        if body is None:
            await _send_whole(send, TOO_LARGE)
            return
        work = asyncio.create_task(self._work(route, body, send))
        gone = asyncio.create_task(_hang_up(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
        finally:
            for task in (work, gone):
                task.cancel()  # guard: a client that goes stops its generation
            # The generation is aborted before the request stops counting as in flight.
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _work(self, route: Route, body: bytes, send: Send) -> None:
        try:
            reply = await self._handled(route, body)
            answer = await _send_stream(send, reply) if isinstance(reply, StreamReply) else reply
        except EngineFailed as error:
            answer = error_reply(str(error), "server_error", 503, code="engine_failed")
        if answer is not None:
            await _send_whole(send, answer)

    async def _handled(self, route: Route, body: bytes) -> Reply:
        assert self._engine is not None
        try:
            return await self._engine.handle(route, body)
        except EngineFailed:
            raise
        except Exception:  # noqa: BLE001 - outermost for one request: the engine lives on; a client is told no details
            _log.exception("the engine tripped over one request")
            return TRIPPED


async def _send_stream(send: Send, reply: StreamReply) -> JsonReply | None:
    """Send a stream to its end; an answer instead if it failed before its first event."""
    async with contextlib.aclosing(reply.events) as events:
        first = await anext(events, b"")
        failure = _failure_in(first)
        if failure is not None:  # guard: a failure before the first event is a status
            return failure
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
                if _failure_in(event) is not None:  # guard: an error event is the last word of a stream
                    break  # an error is the last word: a [DONE] after it would read as success
        except EngineFailed as error:
            await send({"type": "http.response.body", "body": error_event(str(error)), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    return None


def _failure_in(event: bytes) -> JsonReply | None:
    """The answer that an error event amounts to, or None for any other event."""
    if not event.startswith(b'data: {"error"'):
        return None
    body = event[len(b"data: ") :].strip()
    code = json.loads(body)["error"].get("code")
    return JsonReply(code if isinstance(code, int) and 400 <= code < 600 else 500, body)


async def _send_whole(send: Send, reply: JsonReply) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(reply.body)).encode())]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body, "more_body": False})


async def _read_body(receive: Receive) -> bytes | None:
    """The whole body, or None if it is too large."""
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _HungUp
        parts.append(message.get("body", b""))
        size_bytes += len(parts[-1])
        if size_bytes > BODY_LIMIT_BYTES:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


async def _hang_up(receive: Receive) -> None:
    """Returns when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
