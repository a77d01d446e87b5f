"""Worker processes whose lease nobody remembers, and their end.

A GCS that dies after it has asked a raylet for an actor's worker, and before that worker has registered, leaves the
lease behind: the raylet grants it to an asker that is no more, and a worker process waits for its first task for ever,
with a logical GPU on the raylet's books (Ray 2.60; seen in a run of kills, and again with a GCS that was killed 0.8 s
after an actor had been asked for). Such a process shows nothing of the GPU, since it has been given nothing to run. It
can only be told by what it is not: it belongs to no actor, runs nothing, and never has.

Ray keeps other processes like that, started ahead of need and without a lease. To end one of those as well costs its
start, no work: so it is done only where a GPU is missing that nobody accounts for.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from ebbtide.system.process import kill_exactly, started_ticks

FORGOTTEN_S = 10.0  # after its start; a worker registers within 1-3 s and gets its first task within milliseconds
WORKER = 0  # Ray's ``WorkerType.WORKER``

log = logging.getLogger(__name__)


def end_forgotten(
    workers: Sequence[Any],
    *,
    now_ticks: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"),
    started: Callable[[int], int | None] = started_ticks,
    kill: Callable[[int, int], bool] = kill_exactly,
) -> list[int]:
    """End those of this node's workers that have never been used since they started ``FORGOTTEN_S`` seconds ago.

    Args:
        workers: what the raylet says of its workers now.
        now_ticks: clock ticks since boot, as ``started`` counts them.
        started: a process's start time by pid.
        kill: sends a SIGKILL to the process with this pid and start time, and says whether it could.

    Returns:
        The pids of the processes that got one.
    """
    oldest = now_ticks() - FORGOTTEN_S * os.sysconf("SC_CLK_TCK")
    ended = []
    for pid in sorted(worker.pid for worker in workers if never_used(worker)):
        since = started(pid)
        if since is not None and since <= oldest and kill(pid, since):
            log.warning("ended pid %d: a worker that nobody has used since it started", pid)
            ended.append(pid)
    return ended


def never_used(worker: Any) -> bool:
    """Whether a worker belongs to no actor, has nothing of its node, runs nothing and never has."""
    no_actor = not worker.actor_id.strip(b"\xff\x00")
    idle = not (worker.num_running_tasks or worker.num_executed_tasks or worker.used_resources)
    return worker.worker_type == WORKER and no_actor and idle
