"""A sign of life that needs no arbiter to be read: two small files, one beside the slot locks, one on the shared
directory.

They tell `status` since when the arbiter has been down, and `up` that a pool is in use by a cluster that it cannot
reach. Each file has a thread of its own: a shared directory that hangs must not keep the other one from being
written, nor the arbiter from working. Nothing is decided by them but whether to refuse a second pool.
"""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ebbtide.system.process import boot_id, started_ticks

EVERY_S = 1.0
SHARED_EVERY_S = 5.0
FRESH_S = 20.0  # four beats on the shared directory: clocks of two nodes differ by less

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The arbiter's last sign of life. ``at_s``: seconds since 1970, by the clock of its host."""

    pool: str
    epoch: int
    host: str
    boot: str
    pid: int
    started: int
    at_s: float


def beat_file(folder: Path) -> Path:
    """Where the sign of life lies in a folder."""
    return folder / "arbiter.json"


def read_beat(folder: Path) -> Heartbeat | None:
    """The last sign of life there; None: none, or it cannot be read."""
    try:
        return Heartbeat(**json.loads(beat_file(folder).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def start_beating(pool: str, epoch: Callable[[], int], *, node_dir: Path, shared_dir: Path) -> None:
    """Write both files from now on, until this process ends."""
    me = Heartbeat(pool, 0, socket.gethostname(), boot_id(), os.getpid(), started_ticks(os.getpid()) or 0, 0.0)
    for folder, every_s in ((node_dir, EVERY_S), (shared_dir, SHARED_EVERY_S)):
        threading.Thread(target=_beat, args=(folder, every_s, me, epoch), name="heartbeat", daemon=True).start()


def _beat(folder: Path, every_s: float, me: Heartbeat, epoch: Callable[[], int]) -> None:
    told = False
    draft = beat_file(folder).with_suffix(f".{me.pid}")
    while True:
        try:
            draft.write_text(json.dumps({**asdict(me), "epoch": epoch(), "at_s": time.time()}))
            os.replace(draft, beat_file(folder))
            told = False
        except OSError as error:
            if not told:
                log.warning("no sign of life can be left in %s: %s", folder, error)
            told = True
        time.sleep(every_s)
