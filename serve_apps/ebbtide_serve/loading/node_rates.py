"""One book of bandwidth for all processes of this user on this node that use one filesystem."""

import os
from pathlib import Path

from ebbtide.storage.rate_book import Budget
from ebbtide.storage.rates import NodeShelf, Rates

_BOOKS = Path("/dev/shm")  # node-local, in memory, gone with the boot: what a book must be


def node_rates(root: Path) -> Rates:
    """For the filesystem that ``root`` lies on."""
    return Rates(Budget(None), shelf=NodeShelf(book_of(root)))


def book_of(root: Path) -> Path:
    """Where that book lies."""
    device = os.stat(root).st_dev
    return _BOOKS / f"ebbtide-{os.getuid()}" / f"rates-{os.major(device)}-{os.minor(device)}.json"
