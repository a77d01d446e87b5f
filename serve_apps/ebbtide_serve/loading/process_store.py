"""One process's way to the store: its transport, its memory, and its turn among all that moves bytes on the node.

Made once per process and kept: memory that was touched before is what makes reads fast (``storage.memory``). Where
there is a GPU the buffers are pinned, so that copies to it are direct and asynchronous.
"""

import os
import threading
from dataclasses import dataclass
from pathlib import Path

import torch

from ebbtide.storage.arenas import Arenas
from ebbtide.storage.buffers import BufferPool, process_pool
from ebbtide.storage.errors import NotPublished, Refused
from ebbtide.storage.object_store import ObjectStore
from ebbtide.storage.paths import StorePaths
from ebbtide.storage.posix import PosixTransport
from ebbtide.storage.rate_book import Budget
from ebbtide.storage.rates import NodeShelf, Rates
from ebbtide.storage.transport import Transport

_BOOKS = Path("/dev/shm")  # node-local, in memory, gone with the boot: what a book must be


@dataclass(frozen=True, slots=True)
class ProcessStore:
    """What a rank needs to read and write objects.

    Attributes:
        arenas: lend host memory for windows of tensors.
        rates: shared with all processes of this user on the node, for the store's filesystem.
    """

    store: ObjectStore
    arenas: Arenas
    rates: Rates


_made: dict[int, tuple[Transport, Arenas]] = {}  # by process id: a forked child makes its own
_making = threading.Lock()


def process_store(root: Path, *, on_gpu: bool) -> ProcessStore:
    """The store at ``root``, which must exist.

    Args:
        on_gpu: pin the buffers; decided by the first call in a process.

    Raises:
        NotPublished: there is no store.
        Refused: it is of a newer version.
    """
    if not StorePaths(root).marker.exists():
        raise NotPublished(f"{root} is no store: there is no {StorePaths(root).marker}")
    with _making:
        if os.getpid() not in _made:
            _made[os.getpid()] = (PosixTransport(_pool(on_gpu=on_gpu)), Arenas())
        transport, arenas = _made[os.getpid()]
    return ProcessStore(ObjectStore.at(root, transport), arenas, Rates(Budget(None), shelf=NodeShelf(book_of(root))))


def book_of(root: Path) -> Path:
    """Where this user's processes on this node share the bandwidth of the filesystem that ``root`` lies on."""
    device = os.stat(root).st_dev
    return _BOOKS / f"ebbtide-{os.getuid()}" / f"rates-{os.major(device)}-{os.minor(device)}.json"


def _pool(*, on_gpu: bool) -> BufferPool:
    try:
        return process_pool(register=_pin if on_gpu else None)
    except Refused:  # somebody in this process made one already; it need not be pinned to be right
        return process_pool()


def _pin(address: int, size_bytes: int) -> None:
    """Register memory with the driver; where it refuses, copies take a detour and stay right."""
    torch.cuda.cudart().cudaHostRegister(address, size_bytes, 0)  # type: ignore[no-untyped-call]
