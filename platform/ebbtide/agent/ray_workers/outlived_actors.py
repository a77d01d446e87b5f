"""Worker processes that have outlived their actor, with its logical GPU on the raylet's books, and their end.

A GCS that dies while an actor's constructor runs, and comes back, finishes the actor without knowing its lease. Whoever
kills that actor later is told that it is dead, and its process gets no word of it: "Not sending KillLocalActorRequest
because Actor has not been assigned a lease" (Ray 2.60; seen with a replica in a run of kills, and every time with a
constructor of 5 s during which the GCS was killed). It lives on, idle, and nobody can have its GPU.

No actor comes back from the dead, so to end its process costs nobody anything. A GCS that has lost its memory knows no
such actor, dead or alive: then nothing is ended.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from ray._private.state import state as cluster

from ebbtide.agent.ray_workers.logical_gpus import is_gpu
from ebbtide.system.process import kill_exactly, started_ticks

OUTLIVED_S = 10.0  # after its actor's death; one that is told of it ends within 1-2 s

log = logging.getLogger(__name__)


def end_outlived(
    workers: Sequence[Any],
    *,
    died_s: Callable[[str], float | None],
    now_s: Callable[[], float] = time.time,
    started: Callable[[int], int | None] = started_ticks,
    kill: Callable[[int, int], bool] = kill_exactly,
) -> list[int]:
    """End those of this node's workers that have a GPU for an actor that died ``OUTLIVED_S`` seconds ago or earlier.

    Args:
        workers: what the raylet says of its workers now.
        died_s: when the actor of this id (hex) died, in seconds since 1970; None: it lives, or nobody knows it.
        now_s: seconds since 1970.
        started: a process's start time by pid.
        kill: sends a SIGKILL to the process with this pid and start time, and says whether it could.

    Returns:
        The pids of the processes that got one.
    """
    ended = []
    for worker in workers:
        since = started(worker.pid)
        if since is None or not has_gpu(worker) or not worker.actor_id.strip(b"\xff\x00"):
            continue
        at_s = died_s(worker.actor_id.hex())
        if (
            at_s is not None
            and now_s() - at_s >= OUTLIVED_S  # guard: a dead actor's process gets the time to end by itself
            and kill(worker.pid, since)
        ):
            log.warning(
                "ended pid %d: its actor is dead for %.0f s, and it still had a GPU", worker.pid, now_s() - at_s
            )
            ended.append(worker.pid)
    return ended


def has_gpu(worker: Any) -> bool:
    """Whether a logical GPU is on the raylet's books for this worker, in a placement group or not."""
    return any(is_gpu(name) for name in worker.used_resources)


def actor_died_s(actor_id: str) -> float | None:
    """When this actor died for good, by the GCS; None: it lives, is to be started again, or is not known."""
    entry = cluster.actor_table(actor_id)
    if (
        entry.get("State") != "DEAD"  # guard: a worker with a GPU is ended only if its actor is dead for good
        or not entry.get("EndTime")
    ):
        return None
    return float(entry["EndTime"]) / 1000.0
