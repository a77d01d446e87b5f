"""The only importer of ``ray.serve._private``: what Serve can do and has no public call for (Ray 2.60).

Public alternatives: the REST call ``.../scale`` needs the dashboard and its token, and there is none at all for
killing one replica. The signatures are asserted by ``tests/integration/test_ray_contract.py``.
All functions block; call them from a thread.
"""

import contextlib
from typing import Any

import ray
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

from ebbtide_serve.errors import SeatRefused

CALL_TIMEOUT_S = 10.0  # the controller answers in 4-33 ms and a killed one is back in 1.5 s (docs/origins.md)


def set_replicas(app: str, deployment: str, number: int) -> bool:
    """Set the target of a deployment under the external scaler; False if there is no such application, or no Serve.

    Raises:
        SeatRefused: Serve does not let us scale it, or its controller does not answer.
    """
    try:
        controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    except ValueError:  # Ray's word for "no such actor"
        return False
    try:
        target = DeploymentID(name=deployment, app_name=app)
        ray.get(controller.update_deployment_replicas.remote(target, number), timeout=CALL_TIMEOUT_S)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ValueError) and "not found" in str(error.cause):
            return False
        raise SeatRefused(f"Serve refuses {number} replicas for {app}: {error.cause}") from error
    except ray.exceptions.RayError as error:
        raise SeatRefused(f"Serve's controller does not answer ({error}); is Serve running?") from error
    return True


def replica_actors() -> dict[str, list[str]]:
    """The names of all replica actors that exist, by application: pending, starting and stopping ones too."""
    found: dict[str, list[str]] = {}
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == SERVE_NAMESPACE and ReplicaID.is_full_id_str(actor["name"]):
            replica = ReplicaID.from_full_id_str(actor["name"])
            found.setdefault(replica.deployment_id.app_name, []).append(actor["name"])
    return found


def kill_replica(actor_name: str) -> None:
    """Kill a replica's actor at once; nothing happens if it is gone."""
    with contextlib.suppress(ValueError):  # Ray's word for "no such actor"
        ray.kill(ray.get_actor(actor_name, namespace=SERVE_NAMESPACE), no_restart=True)


def with_version(deployment: Any, version: str) -> Any:
    """The deployment under a code version of our choice: deployed again with the same one, a changed ``user_config``
    reaches the running replica by ``reconfigure``. Without it Serve draws a random version and replaces the replica.
    """
    return deployment.options(version=version, _internal=True)
