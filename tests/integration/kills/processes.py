"""Who may die: the pid of every kind of process of a running pool, found from outside.

From the outside means: by Ray's process titles, by the locks of the slots, by the command lines; the arbiter's status
is asked only for what nothing else tells (which process is rank 1). So most are found while the arbiter is dead, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from ebbtide.agent.slot_locks.slot_lock import read_holder
from ebbtide.system.process import kill_exactly
from tests.integration.kills.cluster import Process, process
from tests.integration.kills.pool import JOB, Pool, seats_of


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
        found = pool.cluster.titled(title)
        return max(found, key=lambda one: one.started) if found else None  # the newest, where there are several

    return look


def _moving_seat(pool: Pool) -> str:
    """The seat that a move is about, or else any that has a replica; "" if nobody can say."""
    status = pool.look()
    seats = sorted(seats_of(status), key=lambda seat: seat["state"] == "ready") if status else []
    return next((str(seat["seat"]) for seat in seats if seat["state"] != "cold"), "")


def _replica(pool: Pool) -> Process | None:
    # Serve's title has the application's name, and a seat's application is called after its seat.
    replicas = pool.cluster.titled("ServeReplica:seat-")
    app = "seat-" + _moving_seat(pool).replace("/", "-")
    return next((one for one in replicas if app in one.title), replicas[0] if replicas else None)


def _engine(pool: Pool) -> Process | None:
    held = [read_holder(path) for path in sorted(pool.lock_dir.glob("*.lock"))]
    engines = [holder for holder in held if holder is not None and holder.workload not in ("", JOB)]
    seat = _moving_seat(pool)
    chosen = next((holder for holder in engines if holder.workload == seat), engines[0] if engines else None)
    return process(chosen.pid) if chosen is not None else None


def _worker(pool: Pool) -> Process | None:
    """Rank 1, or the only rank there is; any worker while the arbiter has not heard of ranks yet."""
    pids = pool.job(pool.look() or {"jobs": []}).get("pids") or {}
    pid = pids.get("1") or pids.get("0")
    known = process(int(pid)) if pid else None
    return known or next(iter(pool.cluster.titled("RayTrainWorker")), None)


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
