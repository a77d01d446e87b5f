"""The Serve deployment class around ``ReplicaServer``: what only Ray can tell, and nothing else.

Serve starts it when a seat is opened, kills it when it is unhealthy, and lets it end itself (an async ``__del__``,
which Serve awaits) when the seat is closed. Requests never pass through Serve: the gateway talks to the replica's own
port.
"""

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import ray
from ray import serve

from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.messages import Lease, PoolRuntime, ReplicaOrders, ReplicaReport
from ebbtide.client.seat_actuator import VLLM_ENGINE
from ebbtide.client.slot_share import slot_share_from_environment
from ebbtide.system.modes import Place, took
from ebbtide.system.process import started_ticks
from ebbtide_serve.engine.factory import make_engine
from ebbtide_serve.engine.port import Engine, EngineSettings
from ebbtide_serve.errors import NotGranted
from ebbtide_serve.process.lease_devices import all_of, in_device_order, visible
from ebbtide_serve.process.lease_env import (
    ACTOR_VARIABLE,
    LEASE_VARIABLE,
    EngineLease,
    vllm_environment,
    vllm_sockets,
)
from ebbtide_serve.process.parent_watch import watch_children_from_birth
from ebbtide_serve.replica.preparation import LoadOptions, Preparation, Wish
from ebbtide_serve.replica.replica_server import ReplicaIdentity, ReplicaServer

_log = logging.getLogger(__name__)

# Long enough for an arbiter that restarts (1.5-2.3 s, docs/origins.md) and for one that is slow to see who landed.
LEASE_TIMEOUT_S = 30.0
LEASE_RETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """What the actuator passes besides the model; plain data, since Serve stores it."""

    token: str
    host: str
    drain_s: float
    cache_dir: str
    engine: str
    fenced: bool = False  # Ray gives it no GPU: its lease alone says which, and it may be told to park
    load: Mapping[str, Any] = field(default_factory=dict)  # see `LoadOptions`


class _LinkReports:
    """``ArbiterLink`` as the port that ReplicaServer wants."""

    def __init__(self, link: ArbiterLink) -> None:
        self._link = link

    async def report_replica(self, report: ReplicaReport) -> ReplicaOrders | None:
        """None: nobody answered."""
        return cast(ReplicaOrders | None, await self._link.acall("report_replica", report))


class Replica:
    """One replica at one seat; its actor may start children, which die with it."""

    async def __init__(  # type: ignore[misc] # Serve awaits it
        self, endpoint: str, seat: str, model: str, engine_args: Mapping[str, Any], settings: ReplicaSettings
    ) -> None:
        link = ArbiterLink()
        identity = ReplicaIdentity(
            seat=seat,
            replica=serve.get_replica_context().replica_id.unique_id,
            node=ray.get_runtime_context().get_node_id(),
            pid=os.getpid(),
        )
        gpu_ids = tuple(int(gpu) for gpu in ray.get_gpu_ids())
        host = ray.util.get_node_ip_address() if settings.host == "node" else settings.host
        self._drain_s = settings.drain_s
        self._server = ReplicaServer(identity, _LinkReports(link), token=settings.token, host=host)
        lease, shared_dir = await _granted(link, identity, None if settings.fenced else gpu_ids)
        if settings.fenced:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible(lease)  # before anything of CUDA is imported
            took(Place.VISIBLE, f"replica: {visible(lease)}")
        environment = _prepare_environment(lease, Path(settings.cache_dir))
        gpus = len(lease.lease.slots)
        args = {"tensor_parallel_size": gpus, **engine_args} if gpus > 1 else dict(engine_args)
        self._preparation: Preparation | None = None
        self._settling: asyncio.Task[None] | None = None
        if settings.engine == VLLM_ENGINE:  # what another engine makes of its model is its own business
            wish = Wish(
                name=endpoint,
                model=model,
                args=args,
                ranks=max(gpus, 1),
                options=LoadOptions(**settings.load),
                shared_dir=shared_dir,
                cache_dir=Path(settings.cache_dir),
            )
            pid, started = _this_process()
            self._preparation = Preparation(wish, pid=pid, started=started, environment=environment)
        prepared = self._preparation

        async def load() -> Engine:
            told = EngineSettings(endpoint, model, args) if prepared is None else prepared.settings()
            return await make_engine(settings.engine, replace(told, sleeps=settings.fenced))

        if prepared is None:
            await self._server.start(lease, load)
            return
        try:
            await self._server.start(lease, load, prepared.prepare)
        except NotGranted:
            raise
        except Exception:
            prepared.failed()
            raise
        self._settling = asyncio.create_task(self._settle(prepared))

    async def _settle(self, prepared: Preparation) -> None:
        """What can wait until it serves."""
        engine = self._server.engine
        try:
            if engine is not None:
                await prepared.settle(engine)
        except Exception:  # noqa: BLE001 - outermost: what serves goes on, whatever is wrong with the next one's start
            _log.exception("what the next start of %s could use is not kept", prepared.name)

    async def check_health(self) -> None:
        """Serve asks every second; raising makes it replace this replica."""
        await self._server.check_health()

    async def __del__(self) -> None:
        """Serve awaits it before it kills the actor, for the deployment's graceful shutdown time."""
        server = getattr(self, "_server", None)  # absent when __init__ was refused
        if server is not None:
            await server.stop(self._drain_s)
        settling: asyncio.Task[None] | None = getattr(self, "_settling", None)
        if settling is not None:
            settling.cancel()
        prepared: Preparation | None = getattr(self, "_preparation", None)
        if prepared is not None:
            await asyncio.to_thread(prepared.close)


async def _granted(
    link: ArbiterLink, who: ReplicaIdentity, gpu_ids: tuple[int, ...] | None
) -> tuple[EngineLease, Path]:
    """The lease for exactly these GPUs (None: for whichever of this node it names), and the pool's shared directory.

    Raises:
        NotGranted: none within ``LEASE_TIMEOUT_S``, or one for other GPUs.
    """
    deadline_s = time.monotonic() + LEASE_TIMEOUT_S
    while True:
        runtime = cast(PoolRuntime | None, await link.acall("hello"))
        lease = cast(Lease | None, await link.acall("seat_lease", who.seat, who.replica, who.node, gpu_ids or ()))
        if runtime is not None and lease is not None:
            log_dir = Path(runtime.shared_dir) / "occupancy"
            granted = EngineLease(lease, Path(runtime.lock_dir), log_dir, runtime.ledger)
            here = all_of(granted, who.node) if gpu_ids is None else gpu_ids
            return in_device_order(granted, who.node, here), Path(runtime.shared_dir)
        if time.monotonic() >= deadline_s:
            raise NotGranted(f"no lease for {who.seat} on {who.node}:{gpu_ids} within {LEASE_TIMEOUT_S:.0f} s")
        await asyncio.sleep(LEASE_RETRY_S)


def _this_process() -> tuple[int, int]:
    """Its pid and start time."""
    pid = os.getpid()
    started = started_ticks(pid)
    assert started is not None, "this process lives"
    return pid, started


def _prepare_environment(lease: EngineLease, cache_dir: Path) -> dict[str, str]:
    """Set, once and before vLLM is imported, what the engine's processes inherit; what of it is for vLLM."""
    pid, started = _this_process()
    # Ray hides all GPUs that are not ours; a pool of logical GPUs has no CUDA device at all.
    on_gpu = Path("/dev/nvidiactl").exists()
    share = slot_share_from_environment(os.environ)
    for_vllm = vllm_environment(cache_dir, on_gpu=on_gpu, threads=None if share is None else share.threads)
    os.environ.update({**for_vllm, **vllm_sockets(lease.lock_dir.parent)})
    os.environ[LEASE_VARIABLE] = lease.to_json()
    os.environ[ACTOR_VARIABLE] = f"{pid}:{started}"
    watch_children_from_birth(pid, started)
    return for_vllm
