"""A replica without Ray in a process of its own: ``python replica_process.py '<json>'``, for tests that kill it.

Prints its reports to stdout, one JSON object a line. Not a test itself.
"""

import asyncio
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ebbtide.client.messages import Lease, ReplicaOrders, ReplicaReport, SlotRef
from ebbtide.system.process import started_ticks
from ebbtide_serve.engine.factory import make_engine
from ebbtide_serve.engine.port import Engine, EngineSettings
from ebbtide_serve.process.lease_env import ACTOR_VARIABLE, LEASE_VARIABLE, EngineLease, vllm_environment
from ebbtide_serve.process.parent_watch import watch_children_from_birth
from ebbtide_serve.replica.preparation import LoadOptions, Preparation, Wish
from ebbtide_serve.replica.replica_server import ReplicaIdentity, ReplicaServer


class PrintedReports:
    """An arbiter that only listens."""

    async def report_replica(self, report: ReplicaReport) -> ReplicaOrders | None:
        """Print it; give no orders."""
        print(json.dumps(asdict(report) | {"phase": report.phase.value}), flush=True)
        return None


async def main() -> None:
    """Serve until killed."""
    told = json.loads(sys.argv[1])
    pid = os.getpid()
    started = started_ticks(pid)
    assert started is not None
    slots = tuple(SlotRef("n", 1 + rank) for rank in range(told.get("ranks", 1)))
    lease = EngineLease(Lease("m/0", 7, slots), Path(told["lock_dir"]), None)
    for_vllm = vllm_environment(Path(told["cache_dir"]), on_gpu=False)
    os.environ.update(for_vllm)
    os.environ[LEASE_VARIABLE] = lease.to_json()
    os.environ[ACTOR_VARIABLE] = f"{pid}:{started}"
    if told["watch_at_birth"]:
        watch_children_from_birth(pid, started)

    settings = EngineSettings("tiny", told["model_dir"], told["args"])
    prepared = _preparation(told, for_vllm, pid, started) if "shared_dir" in told else None

    async def load() -> Engine:
        return await make_engine(told["engine"], settings if prepared is None else prepared.settings())

    server = ReplicaServer(ReplicaIdentity("m/0", "r1", "n", pid), PrintedReports(), token="secret", host="127.0.0.1")
    await server.start(lease, load, None if prepared is None else prepared.prepare)
    if prepared is not None and server.engine is not None:
        await prepared.settle(server.engine)
    await asyncio.sleep(3600)


def _preparation(told: dict[str, Any], environment: dict[str, str], pid: int, started: int) -> Preparation:
    """As the Serve deployment makes it."""
    ranks = told.get("ranks", 1)
    wish = Wish(
        name="tiny",
        model=told["model_dir"],
        args=({"tensor_parallel_size": ranks} if ranks > 1 else {}) | told["args"],
        ranks=ranks,
        options=LoadOptions(**told.get("load", {})),
        shared_dir=Path(told["shared_dir"]),
        cache_dir=Path(told["cache_dir"]),
    )
    return Preparation(wish, pid=pid, started=started, environment=environment)


if __name__ == "__main__":
    asyncio.run(main())
