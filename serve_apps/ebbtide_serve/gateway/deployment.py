"""The gateway as a Ray Serve deployment: Serve places it, restarts it when it dies, and tells it of changes.

Its HTTP server is its own; no request comes through Serve. Deploy it so, and Serve calls ``reconfigure`` with the user
config at the start and at every change::

    serve.deployment(GatewayDeployment).options(user_config=settings_to_json(settings)).bind(settings.internal_token)

Not guaranteed: an address can change only by a new deployment; ``reconfigure`` with another one is refused.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import ray

from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.messages import GatewayOrders, GatewayReport
from ebbtide_serve.gateway.server import GatewayServer
from ebbtide_serve.gateway.settings import settings_from_json

REPORT_TIMEOUT_S = 1.0  # a tick takes milliseconds; a report that is late is replaced by the next


class RayArbiterPort:
    """Reports through Ray, in a thread: looking up a dead actor blocks, and streams must not stop for it."""

    def __init__(self) -> None:
        self._link = ArbiterLink()

    async def report_gateway(self, report: GatewayReport) -> GatewayOrders | None:
        """See ``ArbiterPort``."""
        answer = await asyncio.to_thread(self._link.call, "report_gateway", report, timeout_s=REPORT_TIMEOUT_S)
        return answer if isinstance(answer, GatewayOrders) else None


class GatewayDeployment:
    """What Serve constructs. Serve it with ``serve.deployment(GatewayDeployment)``, one replica, no GPUs."""

    def __init__(self, internal_token: str) -> None:
        self._internal_token = internal_token
        self._server: GatewayServer | None = None

    async def reconfigure(self, raw: Mapping[str, Any]) -> None:
        """Start with these settings, or change endpoints and limits of a running gateway without touching a stream.

        Raises:
            ValueError: the settings contradict themselves, or change what cannot be changed while running.
            OSError: the address is taken.
        """
        settings = settings_from_json({**raw, "node": raw.get("node") or _node_id()}, self._internal_token)
        if self._server is None:
            server = GatewayServer(settings, RayArbiterPort())
            await server.start()
            self._server = server
        else:
            self._server.change(settings)

    async def check_health(self) -> None:
        """Serve calls this each few seconds and restarts the gateway when it raises."""
        if self._server is not None and not self._server.alive:
            raise RuntimeError("the gateway's HTTP server is not serving")

    async def address(self) -> str:
        """Where clients reach it."""
        return "" if self._server is None else self._server.gateway.url

    async def __del__(self) -> None:
        """Serve awaits this when it stops the replica: running streams end first, within bounds."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop()


def _node_id() -> str:
    return str(ray.get_runtime_context().get_node_id())
