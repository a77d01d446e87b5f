"""Where a pool keeps what belongs to one node: the same path on each of its nodes."""

import os
import tempfile
from pathlib import Path

HELPER_SOCKET = "helper.sock"  # beside the slot locks' folder


def runtime_dir(pool: str, uid: int | None = None) -> Path:
    """The node-local folder of ``pool``: short, since Ray's socket names must stay under 108 bytes.

    Args:
        pool: its name.
        uid: of the user that the pool runs as; default: ours.
    """
    return Path(tempfile.gettempdir()) / f"ebbtide-{os.getuid() if uid is None else uid}" / pool


def helper_socket(pool: str, uid: int | None = None) -> Path:
    """Where the node's helper of ``pool``, which runs as user ``uid`` (default: ours), listens."""
    return runtime_dir(pool, uid) / HELPER_SOCKET
