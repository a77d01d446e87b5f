"""Room for a checkpoint: asked for before the first byte of it is written, best before the step.

A reservation is a small file in the work directory that says how much it will need; it ends with that directory. Who
reserves writes its own first and counts all of them then, those of other runs beside this one too: two that come at
once may both be refused, but are never both let in beyond what is there.

Not guaranteed: room against what is written elsewhere on the filesystem, or by runs that may not be looked at. Each
file is allocated before it is written, so that shows as `NoRoom` at the file's beginning.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from ebbtide.storage.checkpoints.run_directory.run_paths import RunPaths
from ebbtide.storage.checkpoints.run_directory.run_survey import epochs, temporaries
from ebbtide.storage.errors import StorageError
from ebbtide.storage.files.durable_files import Disk, read_small, telling
from ebbtide.storage.maintenance.garbage_collection import tree_bytes
from ebbtide.storage.maintenance.space_reservation import Reservation, lack_bytes, what_to_change
from ebbtide.storage.objects.store_limits import GIB, Budget

_logger = logging.getLogger(__name__)

RESERVATION = ".reserved"  # in a work directory; no file of a checkpoint is called so
# What comes on top of the tensors: headers, hashes (48 bytes per MiB) and the index (some 200 bytes per tensor).
SPARE_SHARE, SPARE_BYTES = 0.01, 1 << 20
# A reservation of another run that is older belongs to a gang that died: a checkpoint is written within minutes.
FORGET_S = 6 * 3600.0


def needed_bytes(tensor_bytes: int) -> int:
    """What a checkpoint of so many bytes of tensors takes, rounded up."""
    return tensor_bytes + int(tensor_bytes * SPARE_SHARE) + SPARE_BYTES


def reserve(work: Path, disk: Disk, size_bytes: int) -> float:
    """Write a reservation into a work directory; the time that the filesystem gave it, in seconds."""
    disk.write(work / RESERVATION, b"%d\n" % size_bytes)
    with telling("look at", work):
        return (work / RESERVATION).stat().st_mtime


def measure(paths: RunPaths, now_s: float) -> Reservation:
    """What there is for a run; what other runs have reserved counts as used.

    Args:
        paths: of the run.
        now_s: by the filesystem's clock.

    Raises:
        TransferFailed: it cannot be told.
    """
    with telling("look at", paths.directory):
        state = os.statvfs(paths.directory)
        mine = [(tree_bytes(path, but=RESERVATION), _reserved_bytes(path, now_s)) for _, path in temporaries(paths)]
        written = sum(size for size, _ in mine)
        stored = sum(tree_bytes(paths.epoch(number), but=RESERVATION) for number in epochs(paths)) - written
        promised = sum(_promised_bytes(other, now_s) for other in _others(paths))
    free = max(0, state.f_bavail * state.f_frsize - promised)
    return Reservation(free, max(0, stored), written, sum(map(max, mine)))


def describe_lack(room: Reservation, budget: Budget, paths: RunPaths, size_bytes: int) -> str:
    """Why there is no room; empty if there is."""
    lack = lack_bytes(room, budget)
    if not lack:
        return ""
    limit = "no budget" if budget.max_bytes is None else f"a budget of {_gib(budget.max_bytes)}"
    change = what_to_change(room, budget, "checkpoints_max_per_job")
    remedy = f", or {change} in the pool's file: ebbtide up" if change else ""
    return (
        f"no room for a checkpoint of {_gib(size_bytes)} in {paths.directory}: {_gib(lack)} are missing "
        f"({_gib(room.free_bytes)} free, {_gib(budget.keep_free_bytes)} of it kept for others; this run has "
        f"{_gib(room.stored_bytes)} stored, and {limit}); free some space, or keep fewer checkpoints "
        f"(keep_checkpoints of the job){remedy}"
    )


def _reserved_bytes(work: Path, now_s: float) -> int:
    path = work / RESERVATION
    try:
        if now_s - path.stat().st_mtime > FORGET_S:
            return 0
        return max(0, int(read_small(path, 32)))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return 0


def _promised_bytes(other: RunPaths, now_s: float) -> int:
    """What another run will still write; nothing, if it may not be looked at: it is somebody else's."""
    try:
        with telling("look at", other.directory):
            return sum(
                max(0, _reserved_bytes(path, now_s) - tree_bytes(path, but=RESERVATION))
                for _, path in temporaries(other)
            )
    except StorageError as error:  # guard: a neighbour that may not be listed stops no save
        _logger.warning("what run %s has reserved is not known, and not counted: %s", other.run, error)
        return 0


def _others(paths: RunPaths) -> Iterator[RunPaths]:
    for name in os.listdir(paths.directory.parent):
        if name != paths.directory.name:  # guard: what other runs have reserved is not there
            yield RunPaths(paths.directory.parent / name, name)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.3g} GiB"
