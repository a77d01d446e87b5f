"""One process's way to the store: its transports, its memory, and its turn among all that moves bytes on the node.

Made once per process and kept: memory that was touched before is what makes reads fast (``storage.memory``).
"""

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ebbtide.storage.device.device_transport import DeviceTransport
from ebbtide.storage.device.transport_choice import device_transport
from ebbtide.storage.memory.arena_pool import Arenas
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide_serve.loading.start_record import LOGGER
from ebbtide_serve.process.pool_store import open_pool_store

_log = logging.getLogger(LOGGER)

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
            opened = open_pool_store(root, warn=_log.warning, buffers=_HOST_BUFFERS, threads=_HOST_BUFFERS)
            _made[key] = ProcessStore(
                opened.store,
                opened.background,
                Arenas(),
                lambda device: device_transport(root, device, traffic=opened.traffic),
            )
        return _made[key]
