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
import time
from collections.abc import Callable, Sequence
from typing import Any

from ebbtide.agent.process import kill_exactly, started_ticks

FORGOTTEN_S = 10.0  # a process that was leased gets its first task within milliseconds
GAP_S = 10.0  # between two looks: what was not watched in the meantime may have worked
WORKER = 0  # Ray's ``WorkerType.WORKER``

log = logging.getLogger(__name__)


class ForgottenLeases:
    """Remembers since when each worker process of this node has been without use."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        started: Callable[[int], int | None] = started_ticks,
        kill: Callable[[int, int], bool] = kill_exactly,
    ) -> None:
        self._clock, self._started, self._kill = clock, started, kill
        self._since_s: dict[tuple[int, int], float] = {}  # by pid and start time
        self._looked_s = float("-inf")

    def end(self, workers: Sequence[Any]) -> list[int]:
        """End those that were never used, in all looks of the last ``FORGOTTEN_S`` seconds; to be called again.

        Args:
            workers: what the raylet says of its workers now.

        Returns:
            The pids of the processes that got a SIGKILL.
        """
        now_s = self._clock()
        known = self._since_s if now_s - self._looked_s <= GAP_S else {}
        self._looked_s = now_s
        unused = [(worker.pid, self._started(worker.pid)) for worker in workers if never_used(worker)]
        self._since_s = {
            (pid, started): known.get((pid, started), now_s) for pid, started in unused if started is not None
        }
        ended = []
        for (pid, started), since_s in self._since_s.items():
            if now_s - since_s >= FORGOTTEN_S and self._kill(pid, started):
                log.warning("ended pid %d: a worker that nobody has used for %.0f s", pid, now_s - since_s)
                ended.append(pid)
        return ended


def never_used(worker: Any) -> bool:
    """Whether a worker belongs to no actor, has nothing of its node, runs nothing and never has."""
    no_actor = not worker.actor_id.strip(b"\xff\x00")
    idle = not (worker.num_running_tasks or worker.num_executed_tasks or worker.used_resources)
    return worker.worker_type == WORKER and no_actor and idle
