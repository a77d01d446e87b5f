"""Serving's hands: the arbiter's wishes about seats and the gateway, carried out by Ray Serve.

A seat is an application of its own with one deployment of at most one replica (docs/decisions/002-seats.md). It is
deployed when it is first opened, right after the arbiter has taken exactly its fences away; later starts and stops
only move the deployment's target between 1 and 0. ``serve.run`` is never used on a seat that has a replica, since it
would replace it. A replica is bound to the node of its grant by a label (docs/decisions/006-bound-replicas.md); for
another node the seat's application is deployed anew while it has no replica.

What is remembered here saves work and is never believed: each call compares with what Serve says, so that a restart
of Serve, or of its controller, costs one repeated call and no more.

Not guaranteed: that a closed seat is empty when ``close_seat`` returns; ``living`` and the slot lock say.
"""

import asyncio
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.api import RunTarget
from ray.serve.schema import ApplicationStatus

from ebbtide.client.bounded_calls import BoundedCalls
from ebbtide.client.seat_actuator import SeatPlan
from ebbtide.pool.ids import EndpointName, SeatId, seat_id
from ebbtide_serve.errors import SeatRefused
from ebbtide_serve.gateway.deployment import GatewayDeployment
from ebbtide_serve.replica.deployment import Replica, ReplicaSettings
from ebbtide_serve.serve_internals import kill_replica, replica_actors, set_replicas, with_version

GATEWAY_APP = "ebbtide-gateway"
SPREAD_APP = f"{GATEWAY_APP}-per-node"  # of gateways that share a port, one on each node
GATEWAY_APPS = (GATEWAY_APP, SPREAD_APP)  # by its name each arbiter sees of which kind those are that run
SEAT_PREFIX = "seat-"
DEPLOYMENT = "replica"
NODE_LABEL = "ray.io/node-id"
HEALTH_PERIOD_S = 1.0
HEALTH_TIMEOUT_S = 30.0  # an engine that starves on a loaded machine is slow, not dead
PLACE = ("host", "port", "per_node", "tls_cert", "tls_key")  # what a running gateway cannot change
GATEWAY_DRAIN_S = 30.0  # GatewaySettings.drain_s: begun streams may end
STOP_MARGIN_S = 15.0  # beyond the drain: engine stop (3 s), slot lock gone (5 s), and some
SERVE_S = 60.0  # a first start of Serve takes 3-14 s on 2 cores (docs/origins.md), everything else milliseconds
LIST_S = 5.0


class ServeActuator:
    """See ``ebbtide.client.seat_actuator.SeatActuator``. One instance per arbiter."""

    def __init__(self) -> None:
        self._deployed: dict[SeatId, SeatPlan] = {}  # what each seat's application was last deployed with
        self._lock = asyncio.Lock()  # Serve's client is not made for concurrent deployments
        self._calls = BoundedCalls("serve")
        self._gateway_json = ""
        self._leaving: set[str] = set()  # gateways deleted by us, of which Serve has not yet said that they are gone

    async def start_gateway(self, settings_json: str) -> None:
        """Have the gateway run with these settings (``GatewaySettings`` as JSON, with its ``internal_token``, and
        ``replicas``: on how many nodes, 1 if it is not given).

        It has a port of its own; Serve's proxies stay off. A running gateway takes changed settings without a restart.

        Raises:
            SeatRefused: those before have not left yet; ask again.
        """
        async with self._lock:
            await self._calls("serve", SERVE_S, self._start_gateway, settings_json)

    async def open_seat(self, seat: SeatPlan) -> None:
        """Want one replica at this seat.

        Raises:
            SeatRefused: Serve did not accept it, or an earlier replica on another node has not left yet.
        """
        async with self._lock:
            await self._calls("serve", SERVE_S, self._open, seat)

    async def close_seat(self, seat_id: SeatId) -> None:
        """Want no replica at this seat; one that runs drains first.

        Raises:
            SeatRefused: Serve did not accept it.
        """
        async with self._lock:
            await self._calls("serve", SERVE_S, set_replicas, application_of(seat_id), DEPLOYMENT, 0)

    async def living(self) -> Mapping[SeatId, tuple[str, ...]]:
        """The replica actors that exist, for each seat with any."""
        actors = await self._calls("living", LIST_S, replica_actors)
        return {seat_of(app): tuple(names) for app, names in actors.items() if app.startswith(SEAT_PREFIX)}

    async def kill(self, actor_name: str) -> None:
        """Kill one of those actors at once."""
        await self._calls(("kill", actor_name), LIST_S, kill_replica, actor_name)

    async def stop(self) -> None:
        """End every seat and the gateway; other applications on the cluster stay."""
        async with self._lock:
            self._deployed.clear()
            self._gateway_json = ""
            await self._calls("serve", SERVE_S, _delete_ours)

    def _start_gateway(self, settings_json: str) -> None:
        app = gateway_app(settings_json)
        if settings_json == self._gateway_json and {app} == replica_actors().keys() & set(GATEWAY_APPS):
            return
        _start_serve()
        self._gateway_json = ""  # until it is done: what was there before may be leaving, and looks as if it were there
        self._make_way(app)
        _deploy_gateway(app, settings_json)
        self._gateway_json = settings_json

    def _make_way(self, app: str) -> None:
        """Have gateways of the other kind leave, and refuse until no gateway is leaving.

        Gateways that share a port and one that does not cannot be there together. Serve would take an application that
        is being deleted for one to be updated: it lets the old replicas live until new ones are up, which wait for the
        port of the old ones (seen: ten tries, then DEPLOY_FAILED for good).

        After a deletion Serve's status says RUNNING until its controller's next turn (seen: still after 0.08 s); so
        what we have deleted ourselves is gone only when the status does not name it.

        Raises:
            SeatRefused: they have not left yet.
        """
        found = serve.status().applications
        self._leaving = (self._leaving | set(GATEWAY_APPS) - {app}) & found.keys()
        deleting = {one for one in GATEWAY_APPS if one in found and found[one].status is ApplicationStatus.DELETING}
        for one in self._leaving - deleting:  # again if need be: Serve does not say that it has heard it
            serve.delete(one, _blocking=False)
        if self._leaving | deleting:
            raise SeatRefused(
                f"the gateway before has not left yet (it ends its streams, at most {GATEWAY_DRAIN_S:g} s)"
            )

    def _open(self, seat: SeatPlan) -> None:
        _start_serve()
        app = application_of(seat.seat)
        deployed = self._deployed.get(seat.seat)
        # A living replica must not be replaced; an arbiter that has restarted does not know what it deployed.
        lives = bool(replica_actors().get(app))
        if lives and deployed is not None and (deployed.node, deployed.fenced) != (seat.node, seat.fenced):
            set_replicas(app, DEPLOYMENT, 0)
            raise SeatRefused(f"{seat.seat}: its replica on node {deployed.node} has not left yet; ask again")
        as_before = deployed == seat and _is_well(app)
        if not ((lives or as_before) and set_replicas(app, DEPLOYMENT, 1)):
            target = RunTarget(_application(seat), name=app, route_prefix=None, external_scaler_enabled=True)
            serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
            self._deployed[seat.seat] = seat


def _start_serve() -> None:
    """Start Serve, or connect to the one that runs now: it may be another than a moment ago."""
    serve.start(proxy_location="Disabled")


def application_of(seat: SeatId) -> str:
    """The Serve application of a seat: ``seat-<endpoint>-<number>``."""
    endpoint, _, number = seat.rpartition("/")
    if not endpoint or not number.isdigit() or "#" in endpoint:
        raise ValueError(f"{seat!r} is no seat: expected <endpoint>/<number>, without '#'")
    return f"{SEAT_PREFIX}{endpoint}-{number}"


def seat_of(app: str) -> SeatId:
    """The seat of an application named by :func:`application_of`."""
    endpoint, _, number = app.removeprefix(SEAT_PREFIX).rpartition("-")
    return seat_id(EndpointName(endpoint), int(number))


def _application(seat: SeatPlan) -> Any:
    settings = ReplicaSettings(
        token=seat.token,
        host=seat.host,
        drain_s=seat.drain_s,
        cache_dir=seat.cache_dir,
        engine=seat.engine,
        fenced=seat.fenced,
        load=dict(seat.load),
    )
    # One actor with all its GPUs is on one node by nature; a placement group would only add a step.
    actor: dict[str, Any] = {"num_cpus": seat.cpus, "num_gpus": 0 if seat.fenced else seat.slots}
    if seat.node:
        actor["label_selector"] = {NODE_LABEL: seat.node}
    deployment = serve.deployment(
        name=DEPLOYMENT,
        num_replicas=1,
        ray_actor_options=actor,
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=seat.drain_s + STOP_MARGIN_S,
    )(Replica)
    return deployment.bind(seat.endpoint, seat.seat, seat.model, dict(seat.engine_args), settings)


def _is_well(app: str) -> bool:
    """False if Serve has given the application up: then a new target is ignored, and only deploying anew helps."""
    found = serve.status().applications.get(app)
    return found is not None and found.status is ApplicationStatus.RUNNING


def gateway_app(settings_json: str) -> str:
    """The Serve application of gateways with these settings: one on each node, or one alone with a port to itself."""
    return SPREAD_APP if json.loads(settings_json).get("per_node") else GATEWAY_APP


def _deploy_gateway(app: str, settings_json: str) -> None:
    settings = json.loads(settings_json)
    token = settings.pop("internal_token")  # apart from the settings, which Serve shows to whoever reads its status
    deployment = serve.deployment(
        name="gateway",
        num_replicas=int(settings.pop("replicas", 1)),
        max_replicas_per_node=1,  # given always: a change of it would replace running gateways
        user_config=settings,
        ray_actor_options={"num_cpus": 0},
        health_check_period_s=HEALTH_PERIOD_S,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=GATEWAY_DRAIN_S + STOP_MARGIN_S,
    )(GatewayDeployment)
    # Changed keys or endpoints reach the running gateway; another address or token needs another gateway.
    place = json.dumps([token, *(settings.get(name) for name in PLACE)])
    deployment = with_version(deployment, hashlib.sha256(place.encode()).hexdigest())
    target = RunTarget(deployment.bind(token), name=app, route_prefix=None)
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


def _delete_ours() -> None:
    for app in list(serve.status().applications):
        if app in GATEWAY_APPS or app.startswith(SEAT_PREFIX):
            serve.delete(app, _blocking=False)
