"""Who may die: the pid of every kind of process of a running pool, found from outside.

From the outside means: by Ray's process titles, by the locks of the slots, by the command lines; the arbiter's status
is asked only for what nothing else tells (which process is rank 1). So most are found while the arbiter is dead, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from ebbtide.agent.process import kill_exactly
from ebbtide.agent.slot_lock import read_holder
from tests.integration.kills.cluster import Process, process
from tests.integration.kills.pool import JOB, Pool


class Role(Enum):
    """The processes that issue 3 names, and no others."""

    ARBITER = "arbiter"
    REPLICA = "replica actor"
    ENGINE = "engine process"
    WORKER = "training worker"
    GATEWAY = "gateway"
    DRIVER = "job driver"
    TRAIN_CONTROLLER = "Train controller"
    SERVE_CONTROLLER = "Serve controller"
    AGENT = "node agent"
    RAYLET = "raylet"
    GCS_REDIS = "GCS with Redis"
    GCS_MEMORY = "GCS without Redis"


@dataclass(frozen=True, slots=True)
class Victim:
    """The process that is to die."""

    role: Role
    process: Process

    def kill(self) -> bool:
        """kill -9; False if it was gone already."""
        return kill_exactly(self.process.pid, self.process.started)


def find(role: Role, pool: Pool) -> Victim | None:
    """The process that plays ``role`` now; None: there is none at this moment."""
    found = _WAYS[role](pool)
    return None if found is None else Victim(role, found)


def _titled(title: str) -> Callable[[Pool], Process | None]:
    def look(pool: Pool) -> Process | None:
        return next(iter(pool.cluster.titled(title)), None)

    return look


def _replica(pool: Pool) -> Process | None:
    # Serve's title has the application's name, and a seat's application is called after its seat.
    return next(iter(pool.cluster.titled("ServeReplica:seat-")), None)


def _engine(pool: Pool) -> Process | None:
    for path in sorted(pool.lock_dir.glob("*.lock")):
        holder = read_holder(path)
        if holder is not None and holder.workload not in ("", JOB):
            return process(holder.pid)
    return None


def _worker(pool: Pool) -> Process | None:
    """Rank 1, or the only rank there is."""
    pids = pool.job().get("pids") or {}
    pid = pids.get("1") or pids.get("0")
    return process(int(pid)) if pid else None


def _driver(pool: Pool) -> Process | None:
    ours = [one for one in pool.cluster.processes() if "ebbtide_train.run" in one.command]
    return ours[-1] if ours else None


def _raylet(pool: Pool) -> Process | None:
    """Of the machine with the replica, or of one on which the job runs: the one that hurts."""
    machine = pool.busiest_machine()
    return pool.cluster.machines.get(machine) if machine else None


def _gcs(pool: Pool) -> Process | None:
    return pool.cluster.gcs()


_WAYS: Mapping[Role, Callable[[Pool], Process | None]] = {
    Role.ARBITER: _titled("Arbiter"),
    Role.REPLICA: _replica,
    Role.ENGINE: _engine,
    Role.WORKER: _worker,
    Role.GATEWAY: _titled("ServeReplica:ebbtide-gateway"),
    Role.DRIVER: _driver,
    Role.TRAIN_CONTROLLER: _titled("GangController"),
    Role.SERVE_CONTROLLER: _titled("ServeController"),
    Role.AGENT: _titled("NodeAgent"),
    Role.RAYLET: _raylet,
    Role.GCS_REDIS: _gcs,
    Role.GCS_MEMORY: _gcs,
}
