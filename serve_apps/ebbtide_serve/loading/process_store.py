"""One process's way to the store: its transports, its memory, and its turn among all that moves bytes on the node.

Made once per process and kept: memory that was touched before is what makes reads fast (``storage.memory``).
"""

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ebbtide.storage.arenas import Arenas
from ebbtide.storage.buffers import BufferPool
from ebbtide.storage.choose import device_transport
from ebbtide.storage.device import DeviceTransport
from ebbtide.storage.errors import NotPublished
from ebbtide.storage.late_lease import LateLeases
from ebbtide.storage.leases import SharedLeases
from ebbtide.storage.limits import limits_of
from ebbtide.storage.node_traffic import node_traffic
from ebbtide.storage.object_store import ObjectStore
from ebbtide.storage.paths import StorePaths
from ebbtide.storage.posix import PosixTransport
from ebbtide.storage.rate_book import TrafficClass
from ebbtide.storage.shared_files import Bounded
from ebbtide_serve.loading.record import LOGGER

_log = logging.getLogger(LOGGER)

ANSWERS_S = 10.0  # as long as a lease may take (``lease.Pace``): a store that is silent for longer is down
# For headers, and for what is written in the background; weights go by the transport to the device.
_HOST_BUFFERS = 2


@dataclass(frozen=True)
class ProcessStore:
    """What a rank needs to read and write objects.

    Attributes:
        store: for what users wait for.
        background: the same for what nobody waits for; the node's other traffic comes first.
        arenas: lend host memory for windows of tensors.
        make_transport: to a device, for files of the store.
    """

    store: ObjectStore
    background: ObjectStore
    arenas: Arenas
    make_transport: Callable[[torch.device], DeviceTransport]
    _transports: dict[torch.device, DeviceTransport] = field(default_factory=dict)

    def to_device(self, device: torch.device) -> DeviceTransport:
        """The transport to a device; the first call for a GPU may take seconds, since it tries cuFile."""
        if device not in self._transports:
            self._transports[device] = self.make_transport(device)
        return self._transports[device]


_made: dict[tuple[int, Path], ProcessStore] = {}  # by process id too: a forked child makes its own
_making = threading.Lock()


def process_store(root: Path) -> ProcessStore:
    """The store at ``root``, which must exist.

    Raises:
        NotPublished: there is no store.
        Refused: it is of a newer version.
        TransferTimeout: it does not answer.
    """
    with _making:
        key = (os.getpid(), root)
        if key not in _made:
            _made[key] = Bounded()("open", root, ANSWERS_S, lambda: _made_at(root))
        return _made[key]


def _made_at(root: Path) -> ProcessStore:
    if not StorePaths(root).marker.exists():
        raise NotPublished(f"{root} is no store: there is no {StorePaths(root).marker}")
    pool = BufferPool(_HOST_BUFFERS)
    rate = limits_of(root.parent).bytes_per_s  # a pool's store lies in its shared directory
    load, prefetch = (node_traffic(root, kind, rate) for kind in (TrafficClass.SERVE_LOAD, TrafficClass.PREFETCH))
    leases = LateLeases(SharedLeases(StorePaths(root).leases), _log.warning)
    store = ObjectStore.at(root, PosixTransport(pool, threads=_HOST_BUFFERS, traffic=load), leases=leases)
    later = PosixTransport(pool, threads=_HOST_BUFFERS, traffic=prefetch)
    background = ObjectStore(replace(store.ports, transport=later))
    return ProcessStore(store, background, Arenas(), lambda device: device_transport(root, device, traffic=load))
