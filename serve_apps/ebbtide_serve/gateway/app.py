"""The gateway's routes, and the object behind them.

Four routes and /openapi.json, and nothing else: an engine's admin paths cannot be reached, because paths are never
passed on as they came. Everything else gets an OpenAI-shaped 404 or 405.
"""

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from ebbtide.client.messages import GatewayReport, RoutingTable
from ebbtide_serve.gateway.body import read_body
from ebbtide_serve.gateway.clock import Clock, SystemClock
from ebbtide_serve.gateway.counters import Counters
from ebbtide_serve.gateway.errors import ClientGone, Refusal, unavailable
from ebbtide_serve.gateway.exchange import Errand, Exchange, Means
from ebbtide_serve.gateway.hold import Hold, HoldLimits
from ebbtide_serve.gateway.keys import KeyRing, check_endpoint, check_scope
from ebbtide_serve.gateway.link import ArbiterPort, report_forever
from ebbtide_serve.gateway.openapi import ERRORS, publish, request_body
from ebbtide_serve.gateway.protocol import (
    Body,
    ChatRequest,
    CompletionRequest,
    Health,
    ModelCard,
    ModelList,
    echo,
    parse,
)
from ebbtide_serve.gateway.proxy import REQUEST_ID_HEADER, Upstream
from ebbtide_serve.gateway.routes import Routes
from ebbtide_serve.gateway.settings import SCOPE_GENERATE, SCOPE_MODELS, GatewaySettings

_REQUEST_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)


class Gateway:
    """Everything that one gateway holds. Lives in one event loop."""

    def __init__(self, settings: GatewaySettings, link: ArbiterPort, clock: Clock) -> None:
        self.settings = settings
        self.name = uuid.uuid4().hex[:12]
        self.url = f"http://{settings.host}:{settings.port}"
        self.stopping = False
        self.exchanges: set[Exchange] = set()
        self._link = link
        self._clock = clock
        self._started_s = clock.epoch_s()
        self._keys = KeyRing(settings.keys, clock)
        self._routes = Routes(clock, settings.max_inflight_per_seat)
        limits = HoldLimits(
            settings.hold_max_requests,
            settings.hold_max_bytes,
            settings.hold_max_age_s,
            settings.retry_after_s,
        )
        self._hold = Hold(self._routes, limits, clock)
        self._counters = Counters(clock)
        self._upstream = Upstream(settings.internal_token, settings.connect_timeout_s)
        self._means = Means(self._hold, self._upstream, self._counters, clock, settings.request_timeout_s)

    @contextlib.asynccontextmanager
    async def running(self, _app: FastAPI) -> AsyncIterator[None]:
        """Report to the arbiter and be able to reach replicas, until the app shuts down."""
        await self._upstream.start()
        reporting = asyncio.create_task(report_forever(self._link, self.report, self.adopt))
        try:
            yield
        finally:
            reporting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reporting
            await self._upstream.stop()

    def adopt(self, table: RoutingTable) -> None:
        """Obey a routing table."""
        self._hold.adopt(table)

    def replace_keys(self, settings: GatewaySettings) -> None:
        """Obey the keys and endpoints of ``settings`` from now on; running requests go on."""
        self.settings = settings
        self._keys.replace(settings.keys)

    def report(self) -> GatewayReport:
        """The present state, for the arbiter."""
        return GatewayReport(
            gateway=self.name,
            node=self.settings.node,
            started_s=self._started_s,
            url=self.url,
            routes_seen=self._routes.version,
            traffic={name: self._counters.traffic(name, self._hold, self._routes) for name in self.settings.endpoints},
        )

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new; give running requests ``timeout_s`` to end, then end them with an error."""
        self.stopping = True
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while self.exchanges and loop.time() < deadline_s:
            await asyncio.sleep(0.02)
        for exchange in list(self.exchanges):
            exchange.stop()

    def models(self, request: Request) -> ModelList:
        """The endpoints that the caller's key may use."""
        key = self._keys.authenticate(request.headers.get("authorization"))
        check_scope(key, SCOPE_MODELS)
        allowed = [
            name for name in self.settings.endpoints if key is None or key.endpoints is None or name in key.endpoints
        ]
        return ModelList(data=[ModelCard(id=name, created=int(self._started_s)) for name in allowed])

    async def generate(self, request: Request, kind: type[Body]) -> Response:
        """Check a request; the answer is an exchange that the server then awaits."""
        if self.stopping:
            raise unavailable("The gateway is stopping.", code="stopping")
        key = self._keys.authenticate(request.headers.get("authorization"))
        check_scope(key, SCOPE_GENERATE)
        raw = await read_body(
            request.receive,
            request.headers,
            max_bytes=self.settings.max_body_bytes,
            timeout_s=self.settings.body_timeout_s,
        )
        if self.stopping:  # it began to while the body came
            raise unavailable("The gateway is stopping.", code="stopping")
        body = parse(kind, raw)
        if body.model not in self.settings.endpoints:
            message = f"The model {echo(body.model)!r} does not exist. GET /v1/models lists those that do."
            raise Refusal(404, message, code="model_not_found", param="model")
        check_endpoint(key, body.model)
        admission = self._keys.admit(key, body_bytes=len(raw), max_tokens=body.tokens_wanted())
        request_id = _request_id(request.headers.get(REQUEST_ID_HEADER))
        exchange = Exchange(
            Errand(body.model, request.url.path, raw, request_id), self._means, admission, self.exchanges
        )
        return exchange


def build_app(settings: GatewaySettings, link: ArbiterPort, clock: Clock | None = None) -> FastAPI:
    """The gateway as an ASGI app; ``app.state.gateway`` is the :class:`Gateway`."""
    gateway = Gateway(settings, link, clock or SystemClock())
    app = FastAPI(
        title="ebbtide gateway",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=gateway.running,
    )
    app.state.gateway = gateway

    @app.get("/health", responses={503: {"model": Health}})
    async def health() -> Health:
        """Whether this gateway takes requests. Says nothing about replicas: requests are held for those."""
        if gateway.stopping:
            raise unavailable("The gateway is stopping.", code="stopping")
        return Health(status="ok")

    @app.get("/v1/models", responses=ERRORS)
    async def models(request: Request) -> ModelList:
        """The endpoints."""
        return gateway.models(request)

    @app.post("/v1/chat/completions", responses=ERRORS, openapi_extra=request_body(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        return await gateway.generate(request, ChatRequest)

    @app.post("/v1/completions", responses=ERRORS, openapi_extra=request_body(CompletionRequest))
    async def completions(request: Request) -> Response:
        """Continue a text."""
        return await gateway.generate(request, CompletionRequest)

    _shape_errors(app)
    publish(app)
    return app


def _shape_errors(app: FastAPI) -> None:
    @app.exception_handler(Refusal)
    async def refused(_request: Request, refusal: Refusal) -> JSONResponse:
        return refusal.response()

    @app.exception_handler(ClientGone)
    async def gone(_request: Request, _error: ClientGone) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{echo(request.method)} {echo(request.url.path)}: {error.detail}."
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        return Refusal(error.status_code, message, code=code, headers=error.headers or {}).response()


def _request_id(given: str | None) -> str:
    """The client's own id if it is a plain short word, else a new one."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return f"req-{uuid.uuid4().hex}"
