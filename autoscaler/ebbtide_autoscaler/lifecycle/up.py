"""Bringing a pool up: a cluster, the arbiter, the configuration. Or making a running one agree with a changed file.

Everything that can be refused is looked at before anything is started or changed. After that, whoever kills `up` at
any line can run it again: the record of the cluster is written as soon as the cluster runs, and the rest is
level-triggered.
"""

import errno
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.cluster_join import join, require_listener
from ebbtide.client.cluster_record import ClusterRecord, NoPool, forget_cluster, home, load_cluster, save_cluster
from ebbtide.client.messages import PoolRuntime
from ebbtide.config.checks.secret_digest import secret_sha256
from ebbtide.config.pool_file import PoolFile
from ebbtide.config.sections.key_section import Secret
from ebbtide.config.sections.pool_section import PoolMode
from ebbtide.pool.rules.drain import UNNEEDED
from ebbtide.system.interrupts import undisturbed
from ebbtide.system.port_holder import port_holder
from ebbtide.system.runtime_dir import tmpdir_passed_over
from ebbtide_autoscaler.cluster import local_cluster
from ebbtide_autoscaler.cluster.node_size import NodeSize, logical_slots_line, machine_faults, node_size
from ebbtide_autoscaler.cluster.this_machine import read_machine
from ebbtide_autoscaler.lifecycle.cluster_recovery import LAST_BREATH_S, end_left_behind, jobs_go_on, what_comes_back
from ebbtide_autoscaler.lifecycle.down import down
from ebbtide_autoscaler.lifecycle.launch import start_arbiter
from ebbtide_autoscaler.lifecycle.ownership import (
    Taken,
    check_cluster,
    check_directory,
    claim_cluster,
    cluster_claim,
    mark_directory,
    release_directory,
)
from ebbtide_autoscaler.lifecycle.pool_presence import PoolPresence

READY_S = 120.0  # from the arbiter's start to all slots fenced and the gateway listening: 5-15 s on 2 cores
APPLY_S = 60.0  # the arbiter gives up by itself after 30 s and says why

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


def in_force() -> dict[str, Any] | None:
    """The file in force on the cluster that this process has joined; None before the first `up`."""
    text = ArbiterLink().call("config", timeout_s=10.0)
    return json.loads(text) if text else None


def up(config: PoolFile, config_file: Path, standing: PoolPresence, *, say: Say) -> ClusterRecord:
    """Start what is missing and put ``config`` into force.

    Raises:
        UpRefused, Taken: nothing was changed.
        UpFailed, RayStartFailed, ClusterUnreachable, OSError: it did not come up. Whatever this call started is ended,
            also when it is interrupted.
        ValueError: the arbiter refused the file; nothing was changed.
    """
    shared = Path(str(config.pool.shared_dir))
    if standing.state == "silent":
        raise UpFailed(f"{standing.why}; what runs goes on. See `ebbtide logs arbiter`, then try again")
    if standing.record is not None and Path(standing.record.shared_dir).resolve() != shared.resolve():
        raise Taken(
            f"the pool {config.pool.name} is on record with the shared directory {standing.record.shared_dir}, the "
            f"file names {shared}: `ebbtide down` first, or name another pool"
        )
    check_directory(config, known_id=_known_id(config, standing))
    record = standing.record if standing.state in ("up", "vacant") else None
    fresh = record is None
    with _undone_on_failure() as undo:
        if record is None:
            if config.pool.ray_address is None:
                undo.callback(_end_what_began, config, standing, say)
            record = _new_cluster(config, config_file, standing, say)
        join(record)
        is_first = check_cluster(config, record.address) is None
        _fits(config, say)
        shared.mkdir(mode=0o700, parents=True, exist_ok=True)
        claim = claim_cluster(config, record.address, record.pids)
        record = replace(record, claim=claim.id, config_file=str(config_file))
        if fresh and is_first and config.pool.ray_address is not None:
            undo.callback(down, record, say=say)
        save_cluster(record)
        if fresh:
            undo.callback(_release, shared, claim.id)
        mark_directory(claim)
        if standing.state == "vacant":
            say(f"{standing.why}: starting one, which takes up what the ledger says")
        _configure(config, say)
        _wait_ready(config, say)
    return record


@contextmanager
def _undone_on_failure() -> Iterator[ExitStack]:
    """What is put on the stack is called when the block fails or is interrupted, in reverse order and undisturbed."""
    undo = ExitStack()
    try:
        yield undo
    except BaseException:
        with undisturbed():
            undo.close()
        raise


def _end_what_began(config: PoolFile, standing: PoolPresence, say: Say) -> None:
    """End what this `up` started, however far it came; what ran in the pool's folder before was ended, or refused it.

    A record of the cluster that was lost before stays: its directory is still this pool's.
    """
    pool = config.pool.name
    if local_cluster.owner(pool) != _ourselves(config):  # guard: a refused `up` ends no other's cluster
        return
    ray.shutdown()
    ended = local_cluster.end_strangers(pool)
    with suppress(NoPool, OSError):  # it was not written, or could not be
        if standing.record is None or load_cluster(pool).temp_dir != standing.record.temp_dir:
            forget_cluster(pool)
    if ended:
        with suppress(OSError):  # the terminal may be what went away
            say(f"`up` did not come to its end: ended the {ended} processes that it had started")


def _release(shared: Path, claim_id: str) -> None:
    """Else the next `up` would take this one, which is being ended, for a pool that runs."""
    with suppress(OSError, ValueError):  # it was not written, or could not be
        release_directory(shared, claim_id)


def _known_id(config: PoolFile, standing: PoolPresence) -> str:
    """The id of the claim of the cluster that this `up` is about, if there is one already."""
    if standing.record is not None and standing.record.claim:
        return standing.record.claim
    if standing.record is None and config.pool.ray_address is not None:
        join(_joined_record(config, ""))  # a pool that another user brought up: its cluster says so itself
    if ray.is_initialized():
        claim = cluster_claim()
        return claim.id if claim is not None else ""
    return ""


def _configure(config: PoolFile, say: Say) -> None:
    pool, lock_dir = config.pool.name, local_cluster.runtime_dir(config.pool.name) / "slots"
    hello = _hello(start_arbiter(pool, str(config.pool.shared_dir), str(lock_dir)))
    link = ArbiterLink()
    if hello.pool != config.pool.name:
        raise Taken(f"this cluster runs the pool {hello.pool}, the file names {config.pool.name}")
    say(f"arbiter: epoch {hello.arbiter_epoch}")
    done = link.call("apply_config", config.model_dump_json(by_alias=True), timeout_s=APPLY_S)
    if done is None:
        raise UpFailed(
            "the arbiter died or fell silent while it took the file: either the old or the new one is in force, "
            "whole; run `ebbtide up` again"
        )
    if done["gateway"]:
        say(f"gateway: {done['gateway']}")


def _hello(arbiter: Any) -> PoolRuntime:
    """The arbiter's first answer.

    Raises:
        UpFailed: it cannot start, or has not answered in time; the message has its own last words.
    """
    deadline_s = time.monotonic() + APPLY_S
    why = "it has not answered"
    while time.monotonic() < deadline_s:
        try:
            found: PoolRuntime = ray.get(arbiter.hello.remote(), timeout=5.0)
            return found
        except GetTimeoutError:
            continue
        except RayActorError as error:
            why = str(error).strip()
            if "creation task" in why:  # Ray does not start it again: the same would happen
                raise UpFailed(f"the arbiter cannot start: {why.splitlines()[-1]}") from None
        time.sleep(0.2)
    raise UpFailed(f"no arbiter has answered within {APPLY_S:g} s: {why.splitlines()[-1]}")


def _fits(config: PoolFile, say: Say) -> None:
    """Each replica needs all its GPUs on one node. Of what else is promised too much is told: nodes may yet come."""
    there = [int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]]
    # Ray's autoscaler starts such, when needed.
    started, nodes = (config.pool.node_gpus or 0, config.pool.nodes_max) if config.pool.nodes_max else (0, 0)
    largest = max((*there, started))
    if not largest:
        raise UpRefused(
            "the cluster has no GPUs; nodes without any count as as many logical ones as `ray start --num-gpus` names"
        )
    for endpoint in config.endpoints:
        if endpoint.gpus_per_replica > largest:
            raise UpRefused(
                f"endpoint {endpoint.name} wants {endpoint.gpus_per_replica} GPUs per replica; "
                f"the largest node of the cluster has {largest}"
            )
    most = max(sum(there), started * nodes)
    for one in config.beyond(most) if config.pool.slots == "all" else ():
        say(f"warning: with the {most} GPUs of the cluster as it is: {one}")


def _port_is_free(host: str, port: int, *, patience_s: float) -> None:
    deadline_s = time.monotonic() + patience_s
    while True:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                return
            except OSError as error:
                if time.monotonic() >= deadline_s:
                    raise UpRefused(_no_port(host, port, error)) from error
        time.sleep(0.05)


def _no_port(host: str, port: int, error: OSError) -> str:
    holder = port_holder(port) if error.errno == errno.EADDRINUSE else ""
    by = f" by {holder}: end it, or" if holder else ";"
    return f"the gateway cannot listen on {host}:{port}: {error.strerror}{by} choose another gateway.port"


def _new_cluster(config: PoolFile, config_file: Path, standing: PoolPresence, say: Say) -> ClusterRecord:
    """A cluster for the pool: joined, or started on this machine; after the loss of the one before, too."""
    pool, lost = config.pool, standing.record
    if lost is not None:
        say(f"the pool's Ray cluster is lost: {standing.why}")
        ended = end_left_behind(lost)
        if ended:
            say(f"ended {ended} processes that it left behind")
    elif pool.ray_address is None:
        _remains(config, say)
    if pool.ray_address is not None:
        require_listener(pool.ray_address)
        say(f"joining the Ray cluster at {pool.ray_address}")
        record = _joined_record(config, str(config_file))
    else:
        # A gateway of the lost cluster may be dying by itself: then nothing tells whose it is, but it has the port.
        patience_s = LAST_BREATH_S if lost is not None else 0.0
        _port_is_free(config.gateway.host, config.gateway.port, patience_s=patience_s)
        record = _start_here(config, config_file, say)
    shared = Path(str(pool.shared_dir))
    for line in jobs_go_on(shared) if lost is None else what_comes_back(shared):
        say(f"from the ledger: {line}")
    return record


def _remains(config: PoolFile, say: Say) -> None:
    """Processes in this pool's runtime directory although no pool is on record: an `up` that was killed, or another's.

    Raises:
        Taken: they belong to a pool of the same name that was brought up with another EBBTIDE_HOME.
    """
    if not local_cluster.strangers(config.pool.name):
        return
    owner = local_cluster.owner(config.pool.name)
    if owner != _ourselves(config):
        raise Taken(
            f"a pool named {config.pool.name} runs on this machine already, brought up with another EBBTIDE_HOME or "
            f"shared directory ({owner or 'unknown'}): name this one differently"
        )
    ended = local_cluster.end_strangers(config.pool.name)
    say(f"ended {ended} Ray processes of an `ebbtide up` that did not come to its end")


def _ourselves(config: PoolFile) -> str:
    return f"{home().resolve()} {Path(str(config.pool.shared_dir)).resolve()}"


def _gateway_url(config: PoolFile) -> str:
    scheme = "https" if config.gateway.tls else "http"
    return f"{scheme}://{config.gateway.host}:{config.gateway.port}"


def _joined_record(config: PoolFile, config_file: str) -> ClusterRecord:
    env = {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH")}
    pool = config.pool
    return ClusterRecord(
        pool.name, str(pool.ray_address), "", _gateway_url(config), str(pool.shared_dir), config_file, env
    )


def look_at_machine(config: PoolFile) -> str:
    """Whether a cluster for ``config`` can be started on this machine, for `plan`; a line about its slots, or "".

    Raises:
        UpRefused: `up` would refuse it, with the same words.
    """
    _port_is_free(config.gateway.host, config.gateway.port, patience_s=0.0)
    return logical_slots_line(config, _size_here(config))


def _size_here(config: PoolFile) -> NodeSize:
    """How this machine is counted.

    Raises:
        UpRefused: the file always needs more than it has.
    """
    machine = read_machine()
    size = node_size(config, machine)
    faults = machine_faults(config, machine, size)
    if faults:
        raise UpRefused("; ".join(faults))
    return size


def _start_here(config: PoolFile, config_file: Path, say: Say) -> ClusterRecord:
    pool = config.pool
    size = _size_here(config)
    line = logical_slots_line(config, size)
    if line:
        say(line)
    if why := tmpdir_passed_over():
        say(why)
    say("starting a Ray cluster on this machine")
    local_cluster.own(pool.name, _ourselves(config))
    local = local_cluster.start(pool.name, size)
    say(f"Ray: {local.address}, dashboard {local.dashboard_url}")
    return ClusterRecord(
        pool=pool.name,
        address=local.address,
        dashboard_url=local.dashboard_url,
        gateway_url=_gateway_url(config),
        shared_dir=str(pool.shared_dir),
        config_file=str(config_file),
        env={**local.env, "RAY_ADDRESS": local.address, "RAY_API_SERVER_ADDRESS": local.dashboard_url},
        temp_dir=local.temp_dir,
        pids=local.pids,
    )


def _wait_ready(config: PoolFile, say: Say) -> None:
    """Until every slot is accounted for and the gateway listens; a pool that observes takes no slots."""
    link = ArbiterLink()
    deadline_s = time.monotonic() + READY_S
    said = ""
    while time.monotonic() < deadline_s:
        status = link.call("status") or {}
        now, is_ready = _readiness(config, status)
        if now != said:
            say(now)
            said = now
        if is_ready:
            return
        time.sleep(0.1)
    status = link.call("status") or {}
    troubles = [status.get("arbiter", {}).get("frozen", ""), *(one["why"] for one in status.get("notices", []))]
    raise UpFailed(f"the pool was not ready within {READY_S:g} s ({'; '.join([said, *filter(None, troubles)])})")


def _readiness(config: PoolFile, status: Mapping[str, Any]) -> tuple[str, bool]:
    """How far the pool is, in words, and whether that is far enough."""
    going = {one["node"] for one in status.get("nodes", []) if (one["draining"] or "").startswith(UNNEEDED)}
    slots = [slot["state"] for slot in status.get("slots", []) if slot["node"] not in going]
    # One that leaves is heard until its last stream ends, but refuses whoever connects.
    heard = any(one["heard_ago_s"] < 3 and not one.get("leaving") for one in status.get("gateways", []))
    # Where nodes are started on demand the first one may take minutes.
    has_slots = bool(slots or config.pool.nodes_max) and (
        "unfenced" not in slots or config.pool.mode is PoolMode.OBSERVE
    )
    return f"slots: {', '.join(slots) or 'none yet'}; gateway: {'up' if heard else 'starting'}", heard and has_slots
