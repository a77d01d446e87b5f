"""What is left of the present gang, as its controller can tell; and the end of it.

Ray says that an actor is dead as soon as it has told its process to exit. That is too early: a process that hangs in
a driver call keeps its GPU. So processes on the controller's own node are looked at themselves (pid and start time)
and killed once more if they stay; those of other nodes are known to the arbiter by their slot locks.
"""

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.util import remove_placement_group

from ebbtide.agent.process import is_alive, started_ticks
from ebbtide.client.messages import Lease

PATIENCE_S = 5.0  # Ray's own between telling workers to shut down and killing them


@dataclass(frozen=True, slots=True)
class Member:
    """One worker process."""

    actor: Any
    pid: int
    started: int | None  # in clock ticks; None: on another node


class Gang:
    """The gang that was started last; the control loop notes it, the link's thread may kill it."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self._lock = threading.Lock()
        self._placement_group: Any = None
        self._members: tuple[Member, ...] = ()
        self._killed_s: float | None = None

    def starts(self, lease: Lease) -> None:
        """A gang is about to be started under ``lease``."""
        with self._lock:
            self.lease, self._placement_group, self._members, self._killed_s = lease, None, (), None

    def placed(self, placement_group: Any) -> None:
        """Its placement group was made: from now on it can be killed."""
        with self._lock:
            self._placement_group = placement_group

    def joined(self, workers: Sequence[Any]) -> None:
        """Its workers are there (Ray Train's ``Worker`` objects)."""
        here = ray.get_runtime_context().get_node_id()
        members = tuple(
            Member(w.actor, w.metadata.pid, started_ticks(w.metadata.pid) if w.metadata.node_id == here else None)
            for w in workers
        )
        with self._lock:
            self._members = members

    def kill(self) -> None:
        """End every process of it; idempotent, from any thread."""
        with self._lock:
            members, group = self._members, self._placement_group
        for member in members:
            ray.kill(member.actor)
        if group is not None:
            remove_placement_group(group)  # also ends workers that have not answered yet, and a start that waits

    def gone(self) -> bool:
        """Whether no process of it is left, as far as this node can see. Kills again what stays too long."""
        with self._lock:
            left = [m for m in self._members if m.started is not None and is_alive(m.pid, m.started)]
            now_s = time.monotonic()
            self._killed_s = self._killed_s or now_s
            overdue = now_s - self._killed_s > PATIENCE_S
        for member in left if overdue else ():
            with suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL)
        return not left
