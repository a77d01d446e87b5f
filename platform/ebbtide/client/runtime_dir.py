"""Where a pool keeps what belongs to one node: the same path on each of its nodes."""

import os
import tempfile
from pathlib import Path

HELPER_SOCKET = "helper.sock"  # beside the slot locks' folder


def runtime_dir(pool: str) -> Path:
    """The node-local folder of ``pool``: short, since Ray's socket names must stay under 108 bytes."""
    return Path(tempfile.gettempdir()) / f"ebbtide-{os.getuid()}" / pool


def helper_socket(pool: str) -> Path:
    """Where the node's helper of ``pool`` listens."""
    return runtime_dir(pool) / HELPER_SOCKET
