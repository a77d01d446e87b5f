"""The pool's store as every process of a replica opens it: its buffers, its leases, its turn among the node's traffic.

Imports neither torch nor vLLM.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ebbtide.storage.bandwidth.node_traffic import node_traffic
from ebbtide.storage.bandwidth.rate_scheduler import TrafficClass
from ebbtide.storage.bandwidth.traffic import Traffic
from ebbtide.storage.errors import NotPublished
from ebbtide.storage.files.shared_files import Bounded
from ebbtide.storage.leases.best_effort_leases import BestEffortLeases
from ebbtide.storage.leases.object_leases import SharedLeases
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.store_limits import limits_of
from ebbtide.storage.objects.store_paths import StorePaths
from ebbtide.storage.posix.posix_transport import PosixTransport

STORE_ANSWERS_S = 10.0  # as long as a lease may take (``lease_file.Pace``): a store that is silent for longer is down


@dataclass(frozen=True, slots=True)
class PoolStore:
    """An open store.

    Attributes:
        store: for what users wait for.
        background: the same for what no user waits for; the node's other traffic comes first.
        traffic: the turn of ``store`` among the node's traffic.
    """

    store: ObjectStore
    background: ObjectStore
    traffic: Traffic


def open_pool_store(
    root: Path,
    *,
    warn: Callable[[str], object],
    buffers: int,
    threads: int | None = None,
    who: str = "",
    make: bool = False,
) -> PoolStore:
    """Open the store at ``root``, which lies in the pool's shared directory.

    Args:
        root: of the store.
        warn: told of leases that could not be had.
        buffers: of its transports.
        threads: of each transfer; None: as many as are worth it.
        who: holds its leases, for people; empty: this process.
        make: make it if there is none.

    Raises:
        NotPublished: there is none.
        Refused: it is of a newer version.
        TransferTimeout: it does not answer.
    """

    def opened() -> PoolStore:
        paths = StorePaths(root)
        if not make and not paths.marker.exists():
            raise NotPublished(f"{root} is no store: there is no {paths.marker}")
        pool, limits = BufferPool(buffers), limits_of(root.parent)
        # A start waits for it, an import too.
        load, later = (
            node_traffic(root, kind, limits.bytes_per_s) for kind in (TrafficClass.SERVE_LOAD, TrafficClass.PREFETCH)
        )
        leases = BestEffortLeases(SharedLeases(paths.leases, who=who), warn)
        transport = PosixTransport(pool, threads=threads, traffic=load)
        store = ObjectStore.at(root, transport, leases=leases, budget=limits.models)
        behind = PosixTransport(pool, threads=threads, traffic=later)
        return PoolStore(store, ObjectStore(replace(store.ports, transport=behind)), load)

    return Bounded()("open", root, STORE_ANSWERS_S, opened)
