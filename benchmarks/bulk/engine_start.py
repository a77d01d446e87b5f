"""One start of a real engine (CPU build of vLLM) as a replica makes it, without Ray: ``engine_start.py '<json>'``.

Prints one JSON object when the engine has answered its first request: the moment, the CPU time of its processes, the
stages, what of caches was there when the engine was made, how each rank got its weights, and what its process had the
disk read. Then it publishes what the next start can use, if asked to, and ends.
"""

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from ebbtide.agent.slot_locks.slot_lock import lock_file, read_holder
from ebbtide.client.messages import Lease, SlotRef
from ebbtide.client.seat_actuator import VLLM_ENGINE
from ebbtide.system.process import started_ticks
from ebbtide_serve.engine.factory import make_engine
from ebbtide_serve.engine.start_report import TellsOfItsStart
from ebbtide_serve.process.lease_env import ACTOR_VARIABLE, LEASE_VARIABLE, EngineLease, vllm_environment
from ebbtide_serve.replica.preparation import CACHES, LoadOptions, Preparation, Wish

NAME = "bench"


async def main() -> None:
    """See the module."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("ebbtide_serve").setLevel(logging.INFO)  # says what is published, and why not
    told: dict[str, Any] = json.loads(sys.argv[1])
    pid = os.getpid()
    started = started_ticks(pid)
    assert started is not None, "this process lives"
    ranks = int(told["ranks"])
    node, cache = Path(told["node_dir"]), Path(told["node_dir"]) / "cache"
    slots = tuple(SlotRef("n", index) for index in range(ranks))
    for_vllm = vllm_environment(cache, on_gpu=False)
    os.environ.update(for_vllm)
    os.environ[LEASE_VARIABLE] = EngineLease(Lease("bench/0", 1, slots), node / "slots", None).to_json()
    os.environ[ACTOR_VARIABLE] = f"{pid}:{started}"
    args = dict(told["args"]) | ({"tensor_parallel_size": ranks} if ranks > 1 else {})
    wish = Wish(
        name=NAME,
        model=told["model"],
        args=args,
        ranks=ranks,
        options=LoadOptions(**told["load"]),
        shared_dir=Path(told["shared_dir"]),
        cache_dir=cache,
    )
    preparation = Preparation(wish, pid=pid, started=started, environment=for_vllm)
    stages_s: dict[str, float] = {}
    last_s = time.time()

    def done(stage: str) -> None:
        nonlocal last_s
        stages_s[stage], last_s = round(time.time() - last_s, 3), time.time()

    await preparation.prepare(done)
    restored_bytes = sum(path.stat().st_size for path in (cache / CACHES).rglob("*") if path.is_file())
    engine = await make_engine(VLLM_ENGINE, preparation.settings())
    done("import")
    await engine.start()  # its last act is a request by each route
    first_token_s, cpu_s = time.time(), _cpu_s()
    disk_bytes = disk_bytes_by_rank(node / "slots", slots)
    found: dict[str, Any] = {"first_token_at_s": first_token_s, "stages_s": stages_s, "loads": []}
    found |= {"restored_bytes": restored_bytes, "cpu_s": cpu_s, "disk_bytes_by_rank": disk_bytes}
    if isinstance(engine, TellsOfItsStart):
        report = engine.start_report()
        found |= {"stages_s": stages_s | dict(report.stages_s), "loads": [asdict(one) for one in report.loads]}
    print(json.dumps(found), flush=True)
    if told["settle"]:
        await preparation.settle(engine)
    await engine.stop(timeout_s=5.0)
    await asyncio.to_thread(preparation.close)


def disk_bytes_by_rank(lock_dir: Path, slots: Sequence[SlotRef], proc: Path = Path("/proc")) -> list[int]:
    """By proc(5), ``/proc/PID/io``, ``read_bytes``, of the process that holds each slot's lock, which is the rank's.

    All that was fetched from the storage layer for it: by direct reads, by buffered ones, and by pages of mapped files
    that were not in memory. So it tells of loaders that tell nothing themselves. Empty if one of them cannot be read.
    """
    found = []
    for slot in slots:
        holder = read_holder(lock_file(lock_dir, slot))
        try:
            lines = (proc / str(holder.pid) / "io").read_text().splitlines() if holder else []
        except OSError:
            return []
        told = [int(line.split()[1]) for line in lines if line.startswith("read_bytes:")]
        if not told:
            return []
        found += told
    return found


def _cpu_s() -> float:
    """Of this process, those that it has started, and those that these have started and waited for (compilers)."""
    this, found = psutil.Process(), 0.0
    for one in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has just ended, and is counted with its parent
            found += sum(one.cpu_times()[:4])
    return found


if __name__ == "__main__":
    asyncio.run(main())
    os._exit(0)
