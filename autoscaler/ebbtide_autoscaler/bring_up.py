"""Bringing a pool up: a cluster, the arbiter, the configuration; and taking it down again."""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from ebbtide.agent.node_agent import agent_name
from ebbtide.client.cluster import ClusterRecord, NoPool, forget_cluster, load_cluster, save_cluster
from ebbtide.client.join import ClusterUnreachable, join, require_listener
from ebbtide.client.link import ARBITER_NAME, NAMESPACE, ArbiterLink
from ebbtide.config.access import Secret
from ebbtide.config.digest import secret_sha256
from ebbtide.config.root import PoolFile
from ebbtide_autoscaler import local_ray
from ebbtide_autoscaler.launch import start_arbiter

READY_S = 120.0  # from the arbiter's start to all slots fenced and the gateway listening: 5-15 s on 2 cores

Say = Callable[[str], None]


class UpFailed(RuntimeError):
    """The pool did not come up; the message says how far it got."""


class UpRefused(ValueError):
    """The file asks for what is not there: a free port, large enough nodes. Nothing was changed."""


def with_digests(config: PoolFile, environ: Mapping[str, str]) -> PoolFile:
    """The configuration with every secret replaced by its SHA-256, so that it can be journaled."""
    keys = tuple(
        key.model_copy(update={"secret": Secret.model_construct(sha256=secret_sha256(key.secret, environ=environ))})
        for key in config.keys
    )
    return config.model_copy(update={"keys": keys})


def as_json(config: PoolFile) -> dict[str, Any]:
    """The file as plain JSON types."""
    found: dict[str, Any] = json.loads(config.model_dump_json(by_alias=True))
    return found


def running(pool: str) -> ClusterRecord | None:
    """The record of the pool, if its arbiter can be reached; this process has then joined its cluster."""
    try:
        record = load_cluster(pool)
        join(record)
    except (NoPool, ClusterUnreachable):
        return None
    return record if ArbiterLink().call("hello", timeout_s=10.0) is not None else None


def in_force() -> dict[str, Any] | None:
    """The file in force on the cluster that this process has joined; None before the first `up`."""
    text = ArbiterLink().call("config", timeout_s=10.0)
    return json.loads(text) if text else None


def up(config: PoolFile, config_file: Path, *, say: Say) -> ClusterRecord:
    """Start what is missing and put ``config`` into force.

    Raises:
        UpRefused, UpFailed, RayStartFailed, ClusterUnreachable: it did not come up; what this call started is stopped.
    """
    pool = config.pool.name
    shared = Path(str(config.pool.shared_dir))
    shared.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = running(pool)
    fresh = record is None
    if record is None:
        _port_is_free(config.gateway.host, config.gateway.port)
        record = _cluster(config, config_file, say)
    try:
        join(record)
        _replicas_fit(config)
        lock_dir = str(local_ray.runtime_dir(pool) / "slots")
        arbiter = start_arbiter(pool, str(shared), lock_dir)
        say(f"arbiter: epoch {ray.get(arbiter.hello.remote(), timeout=60).arbiter_epoch}")
        ray.get(arbiter.apply_config.remote(config.model_dump_json(by_alias=True)), timeout=150)
        _wait_ready(config, say)
    except BaseException:
        if fresh and record.pids:
            ray.shutdown()
            local_ray.stop(record)
        raise
    save_cluster(record)
    return record


def _replicas_fit(config: PoolFile) -> None:
    """Each replica needs all its GPUs on one node."""
    largest = max((int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]), default=0)
    if not largest:
        raise UpRefused("the cluster has no GPUs; on a machine without any, name a number of logical ones: pool.slots")
    for endpoint in config.endpoints:
        if endpoint.gpus_per_replica > largest:
            raise UpRefused(
                f"endpoint {endpoint.name} wants {endpoint.gpus_per_replica} GPUs per replica; "
                f"the largest node of the cluster has {largest}"
            )


def _port_is_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UpRefused(
                f"the gateway cannot listen on {host}:{port}: {error.strerror}; choose another port"
            ) from error


def _cluster(config: PoolFile, config_file: Path, say: Say) -> ClusterRecord:
    pool = config.pool
    gateway_url = f"http://{config.gateway.host}:{config.gateway.port}"
    if pool.ray_address is not None:
        require_listener(pool.ray_address)
        env = {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH")}
        say(f"joining the Ray cluster at {pool.ray_address}")
        return ClusterRecord(pool.name, pool.ray_address, "", gateway_url, str(pool.shared_dir), str(config_file), env)
    say("starting a Ray cluster on this machine")
    slots = None if pool.slots == "all" else int(pool.slots)
    local = local_ray.start(pool.name, slots=slots, num_cpus=pool.num_cpus)
    say(f"Ray: {local.address}, dashboard {local.dashboard_url}")
    return ClusterRecord(
        pool=pool.name,
        address=local.address,
        dashboard_url=local.dashboard_url,
        gateway_url=gateway_url,
        shared_dir=str(pool.shared_dir),
        config_file=str(config_file),
        env={**local.env, "RAY_ADDRESS": local.address, "RAY_API_SERVER_ADDRESS": local.dashboard_url},
        temp_dir=local.temp_dir,
        pids=local.pids,
    )


def _wait_ready(config: PoolFile, say: Say) -> None:
    """Until every slot is accounted for and the gateway listens."""
    link = ArbiterLink()
    deadline_s = time.monotonic() + READY_S
    said = ""
    while time.monotonic() < deadline_s:
        status = link.call("status") or {}
        slots = [slot["state"] for slot in status.get("slots", [])]
        heard = [gateway for gateway in status.get("gateways", []) if gateway["heard_s_ago"] < 3]
        now = f"slots: {', '.join(slots) or 'none yet'}; gateway: {'up' if heard else 'starting'}"
        if now != said:
            say(now)
            said = now
        if slots and "unfenced" not in slots and heard:
            return
        time.sleep(0.1)
    frozen = (link.call("status") or {}).get("arbiter", {}).get("frozen", "")
    raise UpFailed(f"the pool was not ready within {READY_S:g} s ({said}{'; ' + frozen if frozen else ''})")


def down(record: ClusterRecord, *, say: Say) -> None:
    """Take the pool down; a cluster that `up` started is stopped too."""
    try:
        join(record)
        _leave(say)
    except (ClusterUnreachable, RayError) as error:
        say(f"not left in order, the cluster is stopped all the same: {error}")
    ray.shutdown()
    if record.pids:
        killed = local_ray.stop(record)
        say(f"Ray cluster stopped{f' ({killed} processes had to be killed)' if killed else ''}")
    forget_cluster(record.pool)


def _leave(say: Say) -> None:
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    link = ArbiterLink()
    if link.call("hello", timeout_s=5.0) is not None:
        link.call("stop", timeout_s=60.0)
        say("seats and gateway removed, fences dropped")
    for name in (ARBITER_NAME, *(agent_name(node) for node in nodes)):
        try:
            ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
        except ValueError:
            continue  # not there
