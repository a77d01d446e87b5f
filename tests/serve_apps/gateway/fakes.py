"""Fake replicas and a fake arbiter, in the test's own process: real sockets, no engine."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from aiohttp import web

from ebbtide.client.messages import GatewayOrders, GatewayReport, KeyGrant, LimitShare, RoutingTable, SeatRoute, Traffic
from ebbtide_serve.gateway.server import GatewayServer
from ebbtide_serve.gateway.settings import GatewaySettings

TOKEN = "internal-token"
MODEL = "tiny"


@dataclass
class FakeReplica:
    """Speaks the OpenAI routes. ``behaviour`` is read when a request comes."""

    seat: str
    # ok | die_first | die_mid | refuse | engine_failed | bad_request | crash | unauthorized | no_done | silent
    behaviour: str = "ok"
    tokens: int = 3
    token_every_s: float = 0.0
    seen: list[web.Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    seen_at_s: list[float] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    aborted: int = 0
    port: int = 0
    _runner: web.AppRunner | None = None

    @property
    def route(self) -> SeatRoute:
        return SeatRoute(self.seat, f"{self.seat}-r{self.port}", f"http://127.0.0.1:{self.port}")

    async def start(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.seen.append(request)
        self.bodies.append(raw)
        self.seen_at_s.append(time.monotonic())
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._answer(request, json.loads(raw))
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.running -= 1

    async def _answer(self, request: web.Request, body: dict[str, object]) -> web.StreamResponse:
        how = self.behaviour
        if how == "die_first":
            _abort(request)
        if how == "silent":
            await asyncio.sleep(60)
        if how == "refuse":
            return web.json_response({"error": {"code": "replica_draining"}}, status=503)
        if how == "engine_failed":
            return web.json_response({"error": {"code": "engine_failed"}}, status=503)
        if how in ("bad_request", "crash", "unauthorized"):
            status = {"bad_request": 400, "crash": 500, "unauthorized": 401}[how]
            error = {"message": "prompt too long", "type": "BadRequestError", "param": "messages", "code": 7}
            return web.json_response({"error": error}, status=status, headers={"x-secret": "1"})
        if body.get("stream"):
            return await self._stream(request, chat="messages" in body)
        await asyncio.sleep(self.token_every_s * self.tokens)
        return web.json_response(_whole("messages" in body, self.tokens))

    async def _stream(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for number in range(self.tokens):
            await asyncio.sleep(self.token_every_s)
            event = _event(chat, f"t{number} ")
            if self.behaviour == "die_mid" and number == 1:
                await response.write(event[: len(event) // 2])  # half an event, and then nothing
                await asyncio.sleep(0.02)
                _abort(request)
            await response.write(event)
        if self.behaviour != "no_done":
            await response.write(b"data: [DONE]\n\n")
        return response


def _abort(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()
    raise asyncio.CancelledError


def _event(chat: bool, text: str) -> bytes:
    choice: dict[str, object] = {"index": 0, "finish_reason": None}
    choice |= {"delta": {"role": "assistant", "content": text}} if chat else {"text": text}
    kind = "chat.completion.chunk" if chat else "text_completion"
    event = {"id": "x", "object": kind, "created": 1, "model": MODEL, "choices": [choice]}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def _whole(chat: bool, tokens: int) -> dict[str, object]:
    text = "".join(f"t{number} " for number in range(tokens))
    choice: dict[str, object] = {"index": 0, "finish_reason": "stop"}
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    usage = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
    kind = "chat.completion" if chat else "text_completion"
    return {"id": "x", "object": kind, "created": 1, "model": MODEL, "choices": [choice], "usage": usage}


@dataclass
class FakeArbiter:
    """Answers reports with ``table`` and ``keys``; ``away`` answers nothing; ``broken`` raises."""

    table: RoutingTable = field(default_factory=RoutingTable)
    keys: tuple[KeyGrant, ...] = ()
    keys_version: int = 1
    gateways: int = 1  # that share the limits
    away: bool = False
    broken: bool = False
    reports: list[GatewayReport] = field(default_factory=list)
    calls: int = 0
    _places: dict[str, int] = field(default_factory=dict)

    async def report_gateway(self, report: GatewayReport) -> GatewayOrders | None:
        self.calls += 1
        if self.broken:
            raise RuntimeError("a bug in the link")
        if self.away:
            return None
        self.reports.append(report)
        keys = None if report.keys_seen == self.keys_version else self.keys
        place = self._places.setdefault(report.gateway, len(self._places)) % self.gateways
        share = LimitShare(place, self.gateways)
        return GatewayOrders(routes=self.table, keys_version=self.keys_version, keys=keys, share=share)

    def set_keys(self, *keys: KeyGrant) -> None:
        """Other keys are in force."""
        self.keys, self.keys_version = keys, self.keys_version + 1

    def route(self, *replicas: FakeReplica, model: str = MODEL) -> None:
        """Send requests of ``model`` to ``replicas`` only."""
        seats = tuple(replica.route for replica in replicas)
        self.table = RoutingTable(self.table.version + 1, {**self.table.endpoints, model: seats})


@dataclass
class Scene:
    """A running gateway with its arbiter and replicas."""

    server: GatewayServer
    arbiter: FakeArbiter
    replicas: list[FakeReplica]

    @property
    def url(self) -> str:
        return self.server.gateway.url

    @property
    def traffic(self) -> Traffic:
        return self.server.gateway.report().traffic[MODEL]

    async def replica(self, behaviour: str = "ok", **fields: float) -> FakeReplica:
        replica = FakeReplica(f"{MODEL}/{len(self.replicas)}", behaviour)
        for name, value in fields.items():
            setattr(replica, name, value)
        await replica.start()
        self.replicas.append(replica)
        return replica

    async def route(self, *replicas: FakeReplica) -> None:
        """Change the table and wait until the gateway says that it obeys."""
        self.arbiter.route(*replicas)
        version = self.arbiter.table.version
        await until(lambda: bool(self.arbiter.reports) and self.arbiter.reports[-1].routes_seen >= version)


async def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait for a condition; a deadline instead of luck."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        await asyncio.sleep(0.005)


def settings(**changes: object) -> GatewaySettings:
    """Of a gateway on a free loopback port."""
    fields: dict[str, object] = {"endpoints": (MODEL, "other"), "internal_token": TOKEN, "port": 0, "drain_s": 1.0}
    return GatewaySettings(**(fields | changes))  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def running_gateway(*, keys: tuple[KeyGrant, ...] = (), **changes: object) -> AsyncIterator[Scene]:
    """A gateway with these keys and settings, and nothing in its routing table."""
    arbiter = FakeArbiter(keys=keys)
    server = GatewayServer(settings(**changes), arbiter)
    await server.start()
    scene = Scene(server, arbiter, [])
    try:
        yield scene
    finally:
        await server.stop(0.0)
        for replica in scene.replicas:
            await replica.stop()


def chat(**changes: object) -> dict[str, object]:
    """The body of a chat request."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]} | changes
