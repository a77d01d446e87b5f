"""Room for what is to be written: asked for before the first byte, since a full filesystem hurts everybody on it.

A reservation is a small file in the work directory that says how much it will need. Whoever reserves writes its own
first and counts all of them then: two that come at once may both be refused, but never both be let in beyond the
budget. It ends with its work directory, whether that is published, dropped, or collected after a kill.

Not guaranteed: room against writers outside the store. The transport allocates each file before it writes it, so these
show as `NoRoom` at that point, and not as a torn file.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ebbtide.storage.errors import NoRoom
from ebbtide.storage.files.durable_files import is_real_directory, read_small, telling
from ebbtide.storage.maintenance.garbage_collection import survey, tree_bytes, written_bytes
from ebbtide.storage.maintenance.garbage_plan import Fate, Grace, Verdict, plan
from ebbtide.storage.names import Attempt
from ebbtide.storage.objects.store_entries import object_directories, set_aside, work_directories
from ebbtide.storage.objects.store_limits import Budget
from ebbtide.storage.objects.store_ports import StorePorts

RESERVATION = ".reserved"  # in a work directory; no name that `names` lets through


@dataclass(frozen=True, slots=True)
class Reservation:
    """What there is.

    Attributes:
        free_bytes: on the filesystem, for us.
        stored_bytes: in the store, work directories not counted.
        written_bytes: in work directories, as far as the filesystem has found places for it.
        reserved_bytes: by work directories, what is written of it included.
    """

    free_bytes: int
    stored_bytes: int
    written_bytes: int
    reserved_bytes: int


def lack_bytes(room: Reservation, budget: Budget) -> int:
    """How many bytes are missing for all reservations; 0 if there is room for them."""
    to_come = max(0, room.reserved_bytes - room.written_bytes)
    # guard: what is free for others stays free
    on_filesystem = to_come + budget.keep_free_bytes - room.free_bytes if to_come else 0
    return max(0, on_filesystem, _over_budget(room, budget))  # guard: the budget of the store is kept


def what_to_change(room: Reservation, budget: Budget, maximum: str) -> str:
    """In words: what in the pool's file, put into force anew, would give room; empty where nothing there would.

    Args:
        maximum: the key that bounds what is stored.
    """
    if _over_budget(room, budget) > 0:
        return f"raise pool.storage.{maximum}"
    is_kept = not lack_bytes(room, Budget(budget.max_bytes, keep_free_bytes=0))
    return "lower pool.storage.keep_free" if is_kept else ""


def _over_budget(room: Reservation, budget: Budget) -> int:
    taken = room.stored_bytes + max(room.reserved_bytes, room.written_bytes)
    return 0 if budget.max_bytes is None else taken - budget.max_bytes


def measure(ports: StorePorts) -> Reservation:
    """What there is now.

    Raises:
        TransferFailed: it cannot be told.
    """
    paths = ports.paths
    with telling("look at", paths.root):
        state = os.statvfs(paths.root)
        ours = (*object_directories(paths), *set_aside(paths.trash), *set_aside(paths.quarantine))
        stored = sum(map(tree_bytes, ours))
        written = reserved = 0
        for work in work_directories(paths):
            # A file may have its length long before its bytes, where nothing can be allocated ahead. A filesystem that
            # tells its blocks late, or compresses, makes us ask for too much room, and never for too little.
            there, told = written_bytes(work, but=RESERVATION), _reserved(work)
            # Whoever reserved knows which holes will be filled: those in what is fetched to mend a file never are.
            wanted = (
                tree_bytes(work, but=RESERVATION)
                if told is None  # guard: holes that stay are not to come; without a reservation a file's length counts
                else max(told, there)  # guard: who wrote more than it reserved counts with what it wrote
            )
            reserved += wanted
            written += min(wanted, there)
    return Reservation(state.f_bavail * state.f_frsize, stored, written, reserved)


def reserve(ports: StorePorts, attempt: Attempt, size_bytes: int, *, grace: Grace | None = None) -> None:
    """Set room aside for a work directory, in the store's budget; a second time replaces the first.

    Args:
        ports: of the store.
        attempt: whose work directory, which must be there.
        size_bytes: of all that will be in it.
        grace: of the collector, for telling what it would free.

    Raises:
        NoRoom: says how much is missing and what could be collected; nothing is reserved then.
    """
    path = ports.paths.work(attempt) / RESERVATION
    ports.disk.write(path, b"%d\n" % size_bytes)
    room, budget = measure(ports), ports.budget
    if lack := lack_bytes(room, budget):
        ports.disk.remove(path)  # guard: who is refused has reserved nothing
        verdicts = plan(survey(ports, judge=False), grace or Grace())
        limit = "no budget" if budget.max_bytes is None else f"budget {_shown(budget.max_bytes)}"
        change = what_to_change(room, budget, "models_max")
        raise NoRoom(
            f"no room for {_shown(size_bytes)} in {ports.paths.root}: {_shown(lack)} are missing "
            f"({_shown(room.free_bytes)} free, {_shown(budget.keep_free_bytes)} of it kept for others; "
            f"{_shown(room.stored_bytes)} stored, {limit}). {what_to_collect(verdicts, lack)}"
            + (f" -> {change} in the pool's file: ebbtide up" if change else "")
        )


def what_to_collect(verdicts: Iterable[Verdict], lack: int) -> str:
    """In words: what the collector would free of what is missing, and what else could go."""
    known = list(verdicts)
    free = [one for one in known if one.fate in (Fate.TRASH, Fate.REMOVE)]
    kept = sorted((one for one in known if one.fate is Fate.KEEP), key=lambda one: -one.size_bytes)
    total = sum(one.size_bytes for one in free)
    told = f"Collecting garbage would free {_shown(total)}"
    if total < lack and kept:
        largest = "; ".join(f"{one.path.name} ({_shown(one.size_bytes)}: {one.why})" for one in kept[:3])
        return f"{told}, which is not enough. The largest that it keeps: {largest}"
    return f"{told}."


def _reserved(work: Path) -> int | None:
    """What was reserved; None: nothing that makes sense."""
    path = work / RESERVATION
    if not is_real_directory(work) or not path.is_file():
        return None
    try:
        told = int(read_small(path, 32))
    except (FileNotFoundError, ValueError):
        return None
    return told if told >= 0 else None  # guard: a reservation below zero counts for nothing


def _shown(size_bytes: int) -> str:
    """Bytes for people, in decimal units as disks are sold."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} bytes"
