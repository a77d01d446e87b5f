"""What is left of the present gang, as its controller can tell; and the end of it.

Ray says that an actor is dead as soon as it has told its process to exit. That is too early: a process that hangs in
a driver call, or is stopped, keeps its GPU. So the processes themselves are looked at (pid and start time): those of
the controller's node by the controller, those of others by the agent of their node. What stays is killed once more
here; on another node the arbiter has its agent do that, by the slot lock.

Not guaranteed: that a process on a node which Ray calls dead is gone; its slot lock goes on proving it to the agent
that comes back there.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.util import remove_placement_group

from ebbtide.client.messages import Lease
from ebbtide.system.process import is_alive, started_ticks
from ebbtide_train.controller.remote_processes import lives_there
from ebbtide_train.worker.worker_metadata import WorkerMetadata

PATIENCE_S = 5.0  # Ray's own between telling workers to shut down and killing them
ELSEWHERE_S = 30.0  # how long a process that nobody can see any more counts as alive


@dataclass(frozen=True, slots=True)
class Member:
    """One worker process."""

    actor: Any
    node: str
    pid: int
    started: int | None  # in clock ticks; None: it has not said yet, and is on another node
    printed: tuple[str, ...] = ()


class Gang:
    """The gang that was started last; the control loop notes it, other threads may kill it or ask for it."""

    def __init__(self, *, lives_elsewhere: Callable[[str, int, int], bool | None] = lives_there) -> None:
        """``lives_elsewhere``: of a node, pid and start time; None: nobody there can say."""
        self.lease: Lease | None = None
        self._lives_elsewhere = lives_elsewhere
        self._lock = threading.Lock()
        self._placement_group: Any = None
        self._members: tuple[Member, ...] = ()
        self._looked_since_s: float | None = None

    def starts(self, lease: Lease) -> None:
        """A gang is about to be started under ``lease``."""
        with self._lock:
            self.lease, self._placement_group, self._members, self._looked_since_s = lease, None, (), None

    def placed(self, placement_group: Any) -> None:
        """Its placement group was made: from now on it can be killed."""
        with self._lock:
            self._placement_group = placement_group

    def joined(self, workers: Sequence[Any]) -> None:
        """Its workers are there (Ray Train's ``Worker`` objects), in the order of ranks."""
        here = _here()
        members = tuple(
            Member(
                w.actor,
                w.metadata.node_id,
                w.metadata.pid,
                started_ticks(w.metadata.pid) if w.metadata.node_id == here else None,
            )
            for w in workers
        )
        with self._lock:
            self._members = members

    def introduced(self, said: Sequence[WorkerMetadata]) -> None:
        """The workers have said who they are, in the same order."""
        with self._lock:
            self._members = tuple(
                replace(member, started=one.started, printed=one.printed)
                for member, one in zip(self._members, said, strict=True)
            )

    def members(self) -> tuple[Member, ...]:
        """Its workers, as far as they are known."""
        with self._lock:
            return self._members

    def kill(self) -> None:
        """End every process of it; idempotent, from any thread."""
        with self._lock:
            members, group = self._members, self._placement_group
        for member in members:
            ray.kill(member.actor)
        if group is not None:
            remove_placement_group(group)  # also ends workers that have not answered yet, and a start that waits

    def gone(self) -> bool:
        """Whether no process of it is left. Kills again what stays too long on this node. May take seconds."""
        with self._lock:
            members = self._members
            now_s = time.monotonic()
            self._looked_since_s = self._looked_since_s or now_s
            waited_s = now_s - self._looked_since_s
        here = _here()
        left = [m for m in members if m.node == here and m.started is not None and is_alive(m.pid, m.started)]
        for member in left if waited_s > PATIENCE_S else ():
            with suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL)
        return not left and not any(self._elsewhere(m, waited_s) for m in members if m.node != here)

    def _elsewhere(self, member: Member, waited_s: float) -> bool:
        if member.started is None:
            return False  # it died before it said anything, and so before it could touch its slot
        lives = self._lives_elsewhere(member.node, member.pid, member.started)
        return waited_s < ELSEWHERE_S if lives is None else lives


def _here() -> str:
    return str(ray.get_runtime_context().get_node_id())
