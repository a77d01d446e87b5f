"""One request from its admission to its last byte, as an ASGI response.

It is a response, not a route function, so that all of it runs in one place: the wait for a seat, the wait for the first
byte, and the stream. No header goes out before the first bytes of an answer are here; until then every failure can
still be a proper status.

A client that hangs up interrupts it wherever it is; so does the gateway when it must stop.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ebbtide.telemetry.metric_family import UNKNOWN
from ebbtide_serve.gateway.admission.held_requests import Hold
from ebbtide_serve.gateway.admission.keys import BYTES_PER_TOKEN, Admission
from ebbtide_serve.gateway.clock import Clock
from ebbtide_serve.gateway.errors import (
    Refusal,
    SeatDead,
    SeatLost,
    SeatUnreachable,
    StreamBroken,
    error_event,
    unavailable,
)
from ebbtide_serve.gateway.http.sse import total_tokens
from ebbtide_serve.gateway.proxy import REQUEST_ID_HEADER, Reply, Upstream
from ebbtide_serve.gateway.telemetry.metrics import HUNG_UP, Account, Meter
from ebbtide_serve.gateway.telemetry.traffic_counters import TrafficCounters

# How long a seat is left alone: one that refused may be draining or starting, one that died will leave the table soon.
SHUN_REFUSED_S = 0.25
SHUN_LOST_S = 1.0
SHUN_DEAD_S = 60.0  # until it has surely left the table: its successor has another address
TRIES = 2  # of a request that a dying replica may have begun: once more elsewhere (promise 3), or it may kill them all
# A replica's 401 and 403 are about our token, its 3xx about nothing that a client should follow.
NOT_FOR_CLIENTS = (401, 403)


@dataclass(frozen=True)
class GatewayRequest:
    """What is to be done."""

    endpoint: str
    path: str
    body: bytes
    request_id: str
    key: str = UNKNOWN  # the name of the key that asks
    stream: bool = False


@dataclass(frozen=True)
class ExchangePorts:
    """What an exchange works with; shared by all."""

    hold: Hold
    upstream: Upstream
    counters: TrafficCounters
    meter: Meter
    clock: Clock
    request_timeout_s: float


class Exchange(Response):
    """Serves one errand. Awaited once, by the server."""

    def __init__(
        self, errand: GatewayRequest, means: ExchangePorts, admission: Admission, running: "set[Exchange]"
    ) -> None:
        super().__init__()
        self._running = running
        self._errand = errand
        self._means = means
        self._admission = admission
        self._task: asyncio.Task[object] | None = None
        self._interrupted: Literal["", "client", "stopping"] = ""
        self._begun = False
        self._over = False
        self._completed = False
        self._arrived_s = means.clock.monotonic_s()
        self._lacked_s = 0.0
        self._account = Account(errand.key, errand.endpoint, len(errand.body), self._arrived_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hold, send, pass the answer on; counts itself, whatever happens."""
        self._means.counters.arrived(self._errand.endpoint)
        self._running.add(self)
        self._task = asyncio.current_task()
        watch = asyncio.create_task(self._watch(receive))
        try:
            failure = await self._outcome(send)
        finally:
            self._over = True
            watch.cancel()
            stay_s = self._means.clock.monotonic_s() - self._arrived_s - self._lacked_s
            self._means.counters.ended(self._errand.endpoint, completed=self._completed, stay_s=stay_s)
            self._admission.close(self._tokens_used())  # guard: every request closes its admission
            self._running.discard(self)
            self._book()
        if failure is not None:
            await self._tell(failure, scope, receive, send)

    def stop(self) -> None:
        """The gateway stops and cannot wait for this exchange any longer."""
        self._interrupt("stopping")

    async def _outcome(self, send: Send) -> Refusal | StreamBroken | None:
        """Serve; what is left to tell the client, or None."""
        try:
            await self._serve(send)
        except (Refusal, StreamBroken) as failure:
            return self._noted(failure)
        except asyncio.CancelledError:
            if not self._interrupted or self._task is None:
                raise
            self._task.uncancel()
            if self._interrupted == "client":
                self._account.status = HUNG_UP
                return None
            if self._begun:
                return self._noted(StreamBroken("the gateway stops"))
            return self._noted(unavailable("The gateway is stopping.", code="stopping"))
        return None

    def _noted(self, failure: Refusal | StreamBroken) -> Refusal | StreamBroken:
        if isinstance(failure, Refusal):
            self._account.status = failure.status
        else:
            self._account.broken = True
        return failure

    def _book(self) -> None:
        self._account.lacked_s = self._lacked_s
        now_s = self._means.clock.monotonic_s()
        answer = self._account.answer(now_s, estimate=len(self._errand.body) // BYTES_PER_TOKEN)
        self._means.meter.booked(self._account, now_s, answer)
        if answer is not None and answer.tpot_s is not None:
            self._means.counters.paced(self._errand.endpoint, answer.tpot_s)
        if answer is not None and answer.counted and self._account.stream is None:
            took_s = self._account.first_s - self._arrived_s - self._lacked_s
            self._means.counters.whole(self._errand.endpoint, took_s, answer.generated)

    async def _tell(self, failure: Refusal | StreamBroken, scope: Scope, receive: Receive, send: Send) -> None:
        if isinstance(failure, StreamBroken):  # guard: a begun stream that breaks ends with an error event
            event = error_event(f"The stream broke: {failure}.", code="replica_lost")
            await send({"type": "http.response.body", "body": event, "more_body": False})
        else:
            response = failure.response()
            response.headers[REQUEST_ID_HEADER] = self._errand.request_id
            response.headers.update({**self._admission.headers(), **failure.headers})
            await response(scope, receive, send)

    async def _serve(self, send: Send) -> None:
        try:
            async with asyncio.timeout(self._means.request_timeout_s):  # guard: a request has a deadline
                await self._until_answered(send)
        except TimeoutError:
            raise self._too_slow() from None

    async def _until_answered(self, send: Send) -> None:
        errand, means = self._errand, self._means
        lost = 0
        again = False
        while True:
            seated = await means.hold.seat(errand.endpoint, len(errand.body), key=errand.key, again=again)
            self._lacked_s += seated.lacked_s
            try:
                reply = await means.upstream.send(
                    seated.seat, errand.path, errand.body, errand.request_id, stream=errand.stream
                )
                try:
                    return await self._pass_on(reply, send)
                finally:
                    reply.close()  # guard: a client that hangs up in the middle of an answer ends its generation
            except SeatUnreachable:
                # guard: a replica that refused is left alone for a while
                means.hold.shun(errand.endpoint, seated.seat, SHUN_REFUSED_S)
            except SeatLost as error:  # guard: a request whose replica is lost before it answers goes to another once
                # guard: a replica that says its engine is dead is never asked again
                for_s = SHUN_DEAD_S if isinstance(error, SeatDead) else SHUN_LOST_S
                means.hold.shun(errand.endpoint, seated.seat, for_s)  # guard: a lost replica is left alone for a while
                lost += 1
                self._account.retries += lost < TRIES
                if lost == TRIES:  # guard: the second loss of a replica ends a request
                    message = f"Two replicas of {errand.endpoint!r} were lost with this request ({error})."
                    raise Refusal(502, message, kind="server_error", code="replica_lost") from error
            finally:
                means.hold.release(errand.endpoint, seated.seat, errand.key)  # guard: a place at a seat comes back
            again = True

    def _too_slow(self) -> Refusal | StreamBroken:
        message = f"no end of the answer within {self._means.request_timeout_s:g} s"
        if self._begun:
            return StreamBroken(message)
        return Refusal(504, f"There was {message}.", kind="server_error", code="request_timeout")

    async def _pass_on(self, reply: Reply, send: Send) -> None:
        if (
            not 200 <= reply.status < 600
            or 300 <= reply.status < 400  # guard: the redirects of a replica are not passed on
            or reply.status in NOT_FOR_CLIENTS  # guard: the 401 and 403 of a replica are not told to clients
        ):
            message = f"A replica answered {reply.status}, which a gateway should never see."
            raise Refusal(502, message, kind="server_error", code="replica_refused")
        now_s = self._means.clock.monotonic_s()
        if reply.status == 200 and reply.events is not None:
            self._means.counters.first_byte(self._errand.endpoint, now_s - self._arrived_s - self._lacked_s)
        self._begun = True
        self._account.status, self._account.stream = reply.status, reply.events
        self._account.first_s = now_s if reply.status == 200 else 0.0
        await send(_start(reply, self._errand.request_id, self._admission.headers()))
        if reply.events is None:
            self._account.piece(reply.first)
            await self._last(reply.first, send)
        else:
            await self._piece(reply.first, send)
            async for data in reply.rest():
                await self._piece(data, send)
            await self._last(b"", send)
        failed = reply.status >= 500 or (reply.events is not None and reply.events.ended_in_error)
        self._completed = not failed

    async def _piece(self, data: bytes, send: Send) -> None:
        self._account.piece(data)
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _last(self, data: bytes, send: Send) -> None:
        self._over = True  # what `receive` says from here on is not a hang-up
        await send({"type": "http.response.body", "body": data, "more_body": False})

    def _tokens_used(self) -> int:
        """What the request cost its key: what the replica says, else one token an event and the prompt's estimate."""
        if self._account.status != 200:
            return 0  # refused, or never answered
        if self._admission.counts_tokens:
            said = total_tokens(self._account.before_last + self._account.last)
            if said is not None:
                return said
        stream = self._account.stream
        return self._admission.prompt_estimate + (stream.events if stream else 0)

    async def _watch(self, receive: Receive) -> None:
        while True:
            message: Mapping[str, object] = await receive()
            if message["type"] == "http.disconnect":
                return self._interrupt("client")

    def _interrupt(self, why: Literal["client", "stopping"]) -> None:
        if self._task is not None and not self._over and not self._interrupted:
            self._interrupted = why
            self._task.cancel()  # guard: a client that hangs up ends its request


def _start(reply: Reply, request_id: str, left: dict[str, str]) -> dict[str, object]:
    headers = {**reply.headers, REQUEST_ID_HEADER: request_id, **left}
    if reply.events is None:
        headers["content-length"] = str(len(reply.first))
    else:
        headers["cache-control"] = "no-cache"
    return {
        "type": "http.response.start",
        "status": reply.status,
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
    }
