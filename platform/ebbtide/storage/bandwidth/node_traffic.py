"""One book of bandwidth for all processes of this user on this node that use one filesystem, and the way into it.

Not guaranteed: that filesystems are told apart which the kernel shows as one device, or seen as one which are mounted
twice; anything among containers that do not share ``/dev/shm``; and a budget among processes that were told different
ones, such as those that began before it was changed.
"""

import os
import threading
from pathlib import Path

from ebbtide.storage.bandwidth.rate_limiter import NodeShelf, Rates
from ebbtide.storage.bandwidth.rate_scheduler import Budget, TrafficClass
from ebbtide.storage.bandwidth.traffic import Traffic

_BOOKS = Path("/dev/shm")  # node-local, in memory, gone with the boot: what a book must be

# By process id too: a forked child makes its own.
_made: dict[tuple[int, Path, TrafficClass, int | None], Traffic] = {}
_making = threading.Lock()


def node_traffic(root: Path, kind: TrafficClass, bytes_per_s: int | None = None) -> Traffic:
    """A class's way to the filesystem that ``root`` lies on: the same one whenever this process asks.

    Args:
        root: need not exist yet; then the directory that it will be made in counts.
        kind: what the bytes are moved for.
        bytes_per_s: what the node may move of it, all together (`store_limits`); None: whatever it gives.
    """
    book = book_of(root)
    with _making:
        key = os.getpid(), book, kind, bytes_per_s
        if key not in _made:
            _made[key] = Traffic(Rates(Budget(bytes_per_s), shelf=NodeShelf(book)), kind)
        return _made[key]


def book_of(root: Path) -> Path:
    """Where that book lies."""
    there = root.absolute()
    while True:
        try:
            device = os.stat(there).st_dev
        except OSError:
            if there == there.parent:
                raise
            there = there.parent
        else:
            return _BOOKS / f"ebbtide-{os.getuid()}" / f"rates-{os.major(device)}-{os.minor(device)}.json"


def _forget_the_parents_lock() -> None:
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_forget_the_parents_lock)
