"""The gateway's routes, and the object behind them.

Five routes and /openapi.json, and nothing else: an engine's admin paths cannot be reached, because paths are never
passed on as they came. Everything else gets an OpenAI-shaped 404 or 405.
"""

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from ebbtide.client.messages import GatewayOrders, GatewayReport, KeyGrant, Traffic
from ebbtide.telemetry.metric_family import UNKNOWN
from ebbtide_serve.gateway.admission.held_requests import Hold, HoldLimits
from ebbtide_serve.gateway.admission.keys import KeyRing, check_endpoint, check_scope
from ebbtide_serve.gateway.admission.routing_table import Routes
from ebbtide_serve.gateway.clock import Clock, SystemClock
from ebbtide_serve.gateway.errors import ClientGone, Refusal, model_not_found, unavailable
from ebbtide_serve.gateway.exchange import Exchange, ExchangePorts, GatewayRequest
from ebbtide_serve.gateway.http.body import read_body
from ebbtide_serve.gateway.http.openapi import ALWAYS, GENERATION, LISTING, publish, request_body
from ebbtide_serve.gateway.http.protocol import (
    Body,
    ChatRequest,
    CompletionRequest,
    Health,
    ModelCard,
    ModelList,
    echo,
    parse,
)
from ebbtide_serve.gateway.link import ArbiterPort, report_forever
from ebbtide_serve.gateway.proxy import REQUEST_ID_HEADER, Upstream
from ebbtide_serve.gateway.settings import SCOPE_ADMIN, SCOPE_GENERATE, SCOPE_MODELS, GatewaySettings
from ebbtide_serve.gateway.telemetry.metrics import HUNG_UP, Meter
from ebbtide_serve.gateway.telemetry.traffic_counters import TrafficCounters

PATHS: dict[type[BaseModel], str] = {ChatRequest: "/v1/chat/completions", CompletionRequest: "/v1/completions"}
# The port opens a moment later, so that nobody who asks at once is told 503; an arbiter that is away must not keep the
# gateway from saying so.
FIRST_ORDERS_S = 1.0
_REQUEST_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)


class Gateway:
    """Everything that one gateway holds. Lives in one event loop."""

    def __init__(self, settings: GatewaySettings, link: ArbiterPort, clock: Clock) -> None:
        self.settings = settings
        self.name = uuid.uuid4().hex[:12]
        self.url = f"{settings.scheme}://{settings.host}:{settings.port}"
        self.stopping = False
        self.exchanges: set[Exchange] = set()
        self._link = link
        self._clock = clock
        self._started_s = clock.epoch_s()
        self._reports = 0
        self._heard = asyncio.Event()
        self._keys = KeyRing(clock, may_be_open=settings.is_loopback)
        self._key_names: tuple[str, ...] = ()
        self._routes = Routes(clock, settings.max_inflight_per_seat)
        self._hold = Hold(self._routes, _hold_limits(settings), clock)
        self._hold.serve_only(settings.endpoints)
        self._counters = TrafficCounters(clock)
        self._upstream = Upstream(settings.internal_token, settings.connect_timeout_s, settings.replica_silence_s)
        self.meter = Meter(self._present, lambda: self.stopping)
        self._know()
        self._means = ExchangePorts(
            self._hold, self._upstream, self._counters, self.meter, clock, settings.request_timeout_s
        )

    @contextlib.asynccontextmanager
    async def running(self, _app: FastAPI) -> AsyncIterator[None]:
        """Report to the arbiter until the app shuts down; begins when orders have come, or are not coming."""
        reporting = asyncio.create_task(report_forever(self._link, self.report, self.obey))
        with contextlib.suppress(TimeoutError):  # guard: the port opens in time though no orders come
            await asyncio.wait_for(self._heard.wait(), FIRST_ORDERS_S)  # guard: the port opens when orders have come
        try:
            yield
        finally:
            reporting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reporting

    def obey(self, orders: GatewayOrders) -> None:
        """Obey the arbiter; what it does not speak of stays as it is."""
        self.meter.arbiter_answered(self._clock.epoch_s())
        if orders.keys is not None:
            self._keys.replace(orders.keys_version, orders.keys)  # guard: new orders replace the keys
            self._key_names = tuple(dict.fromkeys(key.name for key in orders.keys))
            self._know()
        if orders.share is not None:
            self._keys.share(orders.share)
        if orders.routes is not None:
            self._hold.adopt(orders.routes)
        self._heard.set()

    def change(self, settings: GatewaySettings) -> None:
        """Obey other endpoints and limits from now on.

        Running requests go on as they began; those that are held for an endpoint that is gone get a 404.
        """
        self.settings = settings
        self._hold.limits = _hold_limits(settings)  # guard: a running gateway obeys new bounds on held requests
        self._hold.serve_only(settings.endpoints)
        # guard: a running gateway obeys a new bound on requests at a seat
        self._routes.max_inflight_per_seat = settings.max_inflight_per_seat
        self._upstream.connect_timeout_s = settings.connect_timeout_s
        self._upstream.silence_s = settings.replica_silence_s
        self._means = replace(self._means, request_timeout_s=settings.request_timeout_s)
        self._know()

    def _know(self) -> None:
        """Tell the meter which names may become labels."""
        self.meter.know(self._key_names, self.settings.endpoints)

    def _present(self) -> Iterator[tuple[str, Traffic, int]]:
        for name in self.settings.endpoints:
            yield name, self._counters.traffic(name, self._hold, self._routes), self._routes.seats(name)

    def scrape(self, request: Request) -> Response:
        """The metrics, for Prometheus. With keys it needs one with the scope admin."""
        key = self._keys.authenticate(request.headers.get("authorization"))
        check_scope(key, SCOPE_ADMIN)  # guard: the metrics need the scope of operators
        body, content_type = self.meter.metrics.text(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    def report(self) -> GatewayReport:
        """The present state, for the arbiter."""
        self._reports += 1
        return GatewayReport(
            gateway=self.name,
            node=self.settings.node,
            started_s=self._started_s,
            url=self.url,
            routes_seen=self._routes.version,
            keys_seen=self._keys.version,
            seq=self._reports,
            leaving=self.stopping,
            traffic={name: self._counters.traffic(name, self._hold, self._routes) for name in self.settings.endpoints},
        )

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new; give running requests ``timeout_s`` to end, then end them with an error."""
        self.stopping = True
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while self.exchanges and loop.time() < deadline_s:  # guard: a stopping gateway lets running requests end
            await asyncio.sleep(0.02)
        for exchange in list(self.exchanges):
            exchange.stop()  # guard: a stopping gateway ends the rest with an error

    def models(self, request: Request) -> ModelList:
        """The endpoints that the caller's key may use."""
        key = self._keys.authenticate(request.headers.get("authorization"))
        request.state.key = _name(key)
        check_scope(key, SCOPE_MODELS)  # guard: the list of models needs its scope
        self.meter.refused(_name(key), UNKNOWN, 200)
        allowed = [
            name
            for name in self.settings.endpoints
            # guard: the list shows a key only its own endpoints
            if key is None or key.endpoints is None or name in key.endpoints
        ]
        return ModelList(data=[ModelCard(id=name, created=int(self._started_s)) for name in allowed])

    async def generate(self, request: Request, kind: type[Body]) -> Response:
        """Check a request; the answer is an exchange that the server then awaits."""
        if self.stopping:  # guard: a stopping gateway takes nothing new
            raise unavailable("The gateway is stopping.", code="stopping")
        key = self._keys.authenticate(request.headers.get("authorization"))
        request.state.key = _name(key)
        check_scope(key, SCOPE_GENERATE)  # guard: generation needs its scope
        raw = await read_body(
            request.receive,
            request.headers,
            max_bytes=self.settings.max_body_bytes,
            timeout_s=self.settings.body_timeout_s,
        )
        # guard: a stopping gateway refuses what came while it began to stop
        if self.stopping:
            raise unavailable("The gateway is stopping.", code="stopping")
        body = parse(kind, raw)
        # HTTP/1.0 has no chunks, so no end could be told.
        if body.stream and request.scope["http_version"] == "1.0":  # guard: there is no stream over HTTP/1.0
            headers = {"upgrade": "HTTP/1.1", "connection": "upgrade, close"}
            raise Refusal(426, "A stream needs HTTP/1.1.", code="http_version", headers=headers)
        if body.model not in self.settings.endpoints:  # guard: a model that is not served is a 404
            raise model_not_found(echo(body.model))
        request.state.model = body.model
        check_endpoint(key, body.model)  # guard: a key reaches only its own endpoints
        admission = self._keys.admit(key, body_bytes=len(raw), max_tokens=body.tokens_wanted())
        request_id = _request_id(request.headers.get(REQUEST_ID_HEADER))
        # The path is a constant of ours: not a byte of the request's own path is passed on.
        errand = GatewayRequest(body.model, PATHS[kind], raw, request_id, _name(key), bool(body.stream))
        return Exchange(errand, self._means, admission, self.exchanges)


def build_app(settings: GatewaySettings, link: ArbiterPort, clock: Clock | None = None) -> FastAPI:
    """The gateway as an ASGI app; ``app.state.gateway`` is the :class:`Gateway`."""
    gateway = Gateway(settings, link, clock or SystemClock())
    app = FastAPI(
        title="ebbtide gateway",
        docs_url=None,  # guard: there is no /docs
        redoc_url=None,
        redirect_slashes=False,  # guard: paths that are nearly right are not redirected
        lifespan=gateway.running,
    )
    app.state.gateway = gateway

    @app.get("/health", responses=ALWAYS)
    async def health() -> Health:
        """Whether this gateway takes requests. Says nothing about replicas: requests are held for those."""
        if gateway.stopping:
            raise unavailable("The gateway is stopping.", code="stopping")
        return Health(status="ok")

    @app.get("/metrics", include_in_schema=False)
    async def metrics(request: Request) -> Response:
        """What this gateway counts, in Prometheus' text format."""
        return gateway.scrape(request)

    @app.get("/v1/models", responses=LISTING)
    async def models(request: Request) -> ModelList:
        """The endpoints."""
        return gateway.models(request)

    @app.post("/v1/chat/completions", responses=GENERATION, openapi_extra=request_body(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        return await gateway.generate(request, ChatRequest)

    @app.post("/v1/completions", responses=GENERATION, openapi_extra=request_body(CompletionRequest))
    async def completions(request: Request) -> Response:
        """Continue a text."""
        return await gateway.generate(request, CompletionRequest)

    _shape_errors(app)
    publish(app)
    return app


def _shape_errors(app: FastAPI) -> None:
    @app.exception_handler(Refusal)
    async def refused(request: Request, refusal: Refusal) -> JSONResponse:
        _count_refusal(app, request, refusal.status)
        return refusal.response()

    @app.exception_handler(ClientGone)
    async def gone(request: Request, _error: ClientGone) -> Response:
        _count_refusal(app, request, HUNG_UP)
        return Response(status_code=HUNG_UP)  # nobody reads it

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> JSONResponse:
        _count_refusal(app, request, error.status_code)
        message = f"{echo(request.method)} {echo(request.url.path)}: {error.detail}."
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        return Refusal(error.status_code, message, code=code, headers=error.headers or {}).response()


def _request_id(given: str | None) -> str:
    """The client's own id if it is a plain short word, else a new one."""
    if (
        given is not None
        # guard: a request id is a short plain word
        and _REQUEST_ID.fullmatch(given)
    ):
        return given
    return f"req-{uuid.uuid4().hex}"


def _hold_limits(settings: GatewaySettings) -> HoldLimits:
    return HoldLimits(
        settings.hold_max_requests, settings.hold_max_bytes, settings.hold_max_age_s, settings.retry_after_s
    )


def _name(key: KeyGrant | None) -> str:
    return UNKNOWN if key is None else key.name


def _count_refusal(app: FastAPI, request: Request, status: int) -> None:
    meter: Meter = app.state.gateway.meter
    meter.refused(getattr(request.state, "key", UNKNOWN), getattr(request.state, "model", UNKNOWN), status)
