"""Stores in odd states: held, half written, collected."""

import os
import threading
from pathlib import Path
from typing import Any

from ebbtide.storage.errors import TransferFailed
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.files.file_operations import Operation
from ebbtide.storage.files.shared_files import perform
from ebbtide.storage.leases.lease_file import Pace
from ebbtide.storage.leases.lease_holder import REAL, System
from ebbtide.storage.leases.object_leases import SharedLeases
from ebbtide.storage.maintenance.garbage_collection import collect, filesystem_now_s, survey
from ebbtide.storage.maintenance.garbage_plan import Fate, Grace, plan
from ebbtide.storage.names import COMMIT, ObjectId
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.posix.page_cache import resident_share
from ebbtide.storage.posix.posix_transport import PosixTransport
from tests.platform.storage.failing_calls import CountedCalls
from tests.platform.storage.stores import (
    NO_GRACE,
    POOL,
)

PATIENT = Pace(beat_s=0.02, stale_after_s=60.0, answer_s=30.0)  # nobody dies by a slow machine


HASTY = Pace(beat_s=0.05, stale_after_s=6.0, answer_s=1.5)  # whoever shall lose does so soon


def names(directory: Path) -> set[str]:
    return set(os.listdir(directory))


class Broken:
    """A directory that can be made to fail, hang, or be slow."""

    def __init__(self) -> None:
        self.error = 0
        self.let_go = threading.Event()
        self.let_go.set()
        self.hung = threading.Event()

    def __call__(self, operation: Operation) -> Any:
        if not self.let_go.is_set():
            self.hung.set()
            self.let_go.wait(600.0)
        if self.error:
            raise TransferFailed("write", operation.path, errno=self.error)
        return perform(operation)

    @property
    def system(self) -> System:
        return System(perform=self)


def one_round(store: ObjectStore, grace: Grace = NO_GRACE) -> dict[str, Fate]:
    """What happened to what, by the first characters of its name."""
    result = collect(store.ports, plan(survey(store.ports), grace), grace)
    assert not result.failed
    return {verdict.path.name[:8]: verdict.fate for verdict in result.done}


def evicts(folder: Path) -> bool:
    """Whether a file can be had out of the page cache there, and be read with O_DIRECT (not so on tmpfs)."""
    path = folder / "probe"
    path.write_bytes(bytes(1 << 20))
    try:
        fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    except OSError:
        return False
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    share = resident_share(fd, 0, 1 << 20)
    os.close(fd)
    return share is not None and share < 0.5


def lost_by_a_power_cut(calls: CountedCalls, before: int) -> set[Path]:
    """What was created, written or moved by the events before number ``before`` and is not surely on the disk."""
    unsure: set[tuple[str, Path]] = set()  # content of a file, or a name in its directory
    for what, path, target in calls.events[:before]:
        if what == "write":
            unsure.add(("content", path))
        elif what == "create":
            unsure.add(("name", path))
        elif what == "remove":
            unsure -= {("content", path), ("name", path)}
        elif what == "rename":
            assert target is not None
            inside = {(kind, one) for kind, one in unsure if one == path or path in one.parents}
            unsure -= inside
            unsure |= {(kind, target / one.relative_to(path)) for kind, one in inside} | {("name", target)}
        elif what == "fsync":
            unsure -= {("content", path)} | {("name", one) for kind, one in unsure if one.parent == path}
    return {path for _, path in unsure}


def make_old(store: ObjectStore, *objects: ObjectId, age_s: float = 7200.0) -> None:
    long_ago = filesystem_now_s(store.ports) - age_s
    for one in objects:
        os.utime(store.paths.object(one) / COMMIT, (long_ago, long_ago))


PACE = Pace(beat_s=0.1, stale_after_s=6, answer_s=20)  # quick, and yet no busy machine makes a living one look dead


def shared_store(root: Path, system: System = REAL) -> ObjectStore:
    leases = SharedLeases(root / "leases", pace=PACE, system=system)
    return ObjectStore.at(root, PosixTransport(POOL), leases=leases, disk=Disk())
