"""What goes wrong in the store's fault matrix, where, and what each operation must come to."""

from collections.abc import Iterator, Mapping, Sequence
from errno import EACCES, EAGAIN, EDQUOT, EINTR, EINVAL, EIO, ENOENT, ENOSPC, EROFS, ESTALE
from types import MappingProxyType

from tests.platform.storage.shim.faults import NOT_THERE, RIGHT, Fault, Row

COLUMNS = ("publish", "import", "save", "move ref", "load", "resume")
MAKERS, READERS, NAMERS = ("publish", "import", "save"), ("load", "resume"), ("publish", "import", "move ref")
# A call that hangs does so for much longer than the transfer may take, and than a busy machine needs to notice. Small
# calls have no deadline (docs/storage.md): one that is only slow is waited for.
DEADLINE_S, HANG_MS, SLOW_MS = 1.0, 10_000, 300
ALWAYS = 0
FULL = (("ENOSPC", ENOSPC), ("EDQUOT", EDQUOT))
SMALL_CALLS = ("open", "write", "sync", "close")

# What rows are about, and where that lies. A row's name begins with it, after "new" if it is in the making.
PLACES = {
    "weights": ("store/*.safetensors",),
    "index": ("store/*.idx",),
    "manifest": ("store/*/manifest.json",),
    "COMMIT": ("store/*/COMMIT",),
    "small file": ("store/*/config.json", "store/*/state.json"),
    "work": ("store/incoming/*", "store/train/*/.tmp-step-2*"),
    "object": ("store/objects/*", "store/train/*/step-2"),
    "objects": ("store/objects", "store/train/*/e1"),
    "ref": ("store/refs/*",),
    "new ref": ("store/refs/*.tmp",),
    "lease": ("store/leases/*",),
    "source": ("source/*.safetensors",),
}


def at(place: str, op: str, action: str, number: int = 0, *, nth: int = 1, times: int = 1) -> list[Fault]:
    """One fault, wherever such a thing lies."""
    return [Fault(op, action, number, nth, times, where) for where in PLACES[place]]


def fails(place: str, op: str, code: int, *, nth: int = 1, times: int = 1) -> list[Fault]:
    """A call that fails."""
    return at(place, op, "errno", code, nth=nth, times=times)


def row(
    columns: Sequence[str],
    name: str,
    expected: str,
    faults: Sequence[Fault],
    *,
    deadline_s: float = 60,
    but: Mapping[str, str] = MappingProxyType({}),
) -> Row:
    """A row about some columns; ``but``: of those that differ."""
    cells = dict.fromkeys(COLUMNS, NOT_THERE) | dict.fromkeys(columns, expected) | dict(but)
    name = f"new {name}" if columns is MAKERS or columns is NAMERS else name
    return Row(name, tuple(faults), cells, deadline_s)


def opens(columns: Sequence[str], place: str) -> Iterator[Row]:
    """Opening a large file."""
    yield row(columns, f"{place}: open: EINTR", RIGHT, fails(place, "open", EINTR, times=2))
    yield row(columns, f"{place}: open: ESTALE once", RIGHT, fails(place, "open", ESTALE))
    yield row(columns, f"{place}: open: EIO once", RIGHT, fails(place, "open", EIO))
    for name, code in (("ESTALE", ESTALE), ("EIO", EIO), ("EACCES", EACCES)):
        faults = fails(place, "open", code, times=ALWAYS)
        yield row(columns, f"{place}: open: {name} always", f"TransferFailed {name}", faults)
    yield row(columns, f"{place}: O_DIRECT refused at open", RIGHT, fails(place, "open.direct", EINVAL, times=ALWAYS))


def moves(columns: Sequence[str], place: str, op: str) -> Iterator[Row]:
    """Reading or writing a large file."""
    yield row(columns, f"{place}: {op}: short, whole pages", RIGHT, at(place, op, "short", times=ALWAYS))
    yield row(columns, f"{place}: {op}: short, odd", RIGHT, at(place, op, "odd", times=ALWAYS))
    yield row(columns, f"{place}: {op}: EINTR", RIGHT, fails(place, op, EINTR, times=3))
    yield row(columns, f"{place}: {op}: EAGAIN", RIGHT, fails(place, op, EAGAIN, times=3))
    yield row(columns, f"{place}: {op}: EIO once", RIGHT, fails(place, op, EIO))
    for name, code in (("ESTALE", ESTALE), ("EIO", EIO)):
        faults = fails(place, op, code, times=ALWAYS)
        yield row(columns, f"{place}: {op}: {name} always", f"TransferFailed {name}", faults)
    refused = fails(place, f"{op}.direct", EINVAL, times=ALWAYS)
    yield row(columns, f"{place}: O_DIRECT refused at {op}", RIGHT, refused)


def large_files_made() -> Iterator[Row]:
    """Weights, in the making."""
    yield from opens(MAKERS, "weights")
    yield from moves(MAKERS, "weights", "write")
    again = {"import": RIGHT}  # attempts that failed for what may pass are made again
    for op, code in (("open", EROFS), ("allocate", EIO), ("close", EIO)):
        yield row(
            MAKERS,
            f"weights: {op}: {'EROFS' if code == EROFS else 'EIO'}",
            f"TransferFailed {'EROFS' if code == EROFS else 'EIO'}",
            fails("weights", op, code),
            but=again,
        )
    yield row(MAKERS, "weights: write: moves nothing", "TransferFailed EIO", at("weights", "write", "zero"), but=again)
    yield row(MAKERS, "weights: sync: EIO once, all lost", RIGHT, at("weights", "sync", "lose", EIO))
    lost = at("weights", "sync", "lose", EIO, times=ALWAYS)
    yield row(MAKERS, "weights: sync: EIO always", "TransferFailed EIO", lost)
    yield row(MAKERS, "weights: sync: EINTR", RIGHT, fails("weights", "sync", EINTR))
    for op in ("open", "allocate", "write", "sync", "close"):
        for name, code in FULL:
            yield row(MAKERS, f"weights: {op}: {name}", f"NoRoom {name}", fails("weights", op, code, times=ALWAYS))
    for op in ("open", "allocate", "write", "sync", "close"):
        hang = at("weights", op, "hang", HANG_MS)
        name = f"weights: {op}: hangs"
        yield row(MAKERS, name, "TransferTimeout ETIMEDOUT", hang, deadline_s=DEADLINE_S, but=again)


def small_files_made(place: str, columns: Sequence[str] = MAKERS, *, ops: Sequence[str] = SMALL_CALLS) -> Iterator[Row]:
    """Small files, in the making. Nothing is asked for again here: attempts of the whole are, where somebody does."""
    again = {"import": RIGHT} if columns is MAKERS else {}
    where = "new ref" if place == "ref" else place
    for op in ops:
        once = at(where, op, "lose" if op == "sync" else "errno", EIO)
        yield row(columns, f"{place}: {op}: EIO once", "TransferFailed EIO", once, but=again)
        for name, code in FULL:
            yield row(columns, f"{place}: {op}: {name}", f"NoRoom {name}", fails(where, op, code, times=ALWAYS))
    yield row(columns, f"{place}: write: short, odd", RIGHT, at(where, "write", "odd", times=ALWAYS))
    yield row(columns, f"{place}: write: moves nothing", "TransferFailed EIO", at(where, "write", "zero"), but=again)


def interruptions() -> Iterator[Row]:
    """Of small files in the making, and calls that only take their time."""
    again = {"import": RIGHT}
    for op in SMALL_CALLS:
        yield row(MAKERS, f"manifest: {op}: EINTR", RIGHT, fails("manifest", op, EINTR, times=2))
        yield row(MAKERS, f"manifest: {op}: slow", RIGHT, at("manifest", op, "hang", SLOW_MS))
    yield row(MAKERS, "manifest: open: ESTALE", "TransferFailed ESTALE", fails("manifest", "open", ESTALE), but=again)
    yield row(MAKERS, "manifest: write: EAGAIN", "TransferFailed EAGAIN", fails("manifest", "write", EAGAIN), but=again)


def steps_made() -> Iterator[Row]:
    """Directories and names."""
    again = {"import": RIGHT}
    for place, op in (("work", "mkdir"), ("object", "rename"), ("objects", "sync")):
        yield row(MAKERS, f"{place}: {op}: EIO", "TransferFailed EIO", fails(place, op, EIO), but=again)
        yield row(MAKERS, f"{place}: {op}: ESTALE", "TransferFailed ESTALE", fails(place, op, ESTALE), but=again)
        yield row(MAKERS, f"{place}: {op}: slow", RIGHT, at(place, op, "hang", SLOW_MS))
        for name, code in FULL:
            yield row(MAKERS, f"{place}: {op}: {name}", f"NoRoom {name}", fails(place, op, code, times=ALWAYS))
    # Nobody knows then whether something older stands in a file's place.
    yield row(MAKERS, "work: unlink: EIO", "TransferFailed EIO", fails("work", "unlink", EIO, times=ALWAYS))
    yield row(NAMERS, "ref: rename: EIO", "TransferFailed EIO", fails("new ref", "rename", EIO, times=ALWAYS))
    yield row(NAMERS, "ref: rename: ESTALE", "TransferFailed ESTALE", fails("new ref", "rename", ESTALE))
    for name, code in FULL:
        yield row(NAMERS, f"ref: rename: {name}", f"NoRoom {name}", fails("new ref", "rename", code))


def leases_held() -> Iterator[Row]:
    """Files that say who is at work."""
    columns = ("publish", "load")
    yield row(columns, "lease: open: EIO", "TransferFailed EIO", fails("lease", "open", EIO))
    yield row(columns, "lease: open: ESTALE once", RIGHT, fails("lease", "open", ESTALE))
    yield row(columns, "lease: write: EIO", "TransferFailed EIO", fails("lease", "write", EIO))
    yield row(columns, "lease: write: short, odd", "TransferFailed EIO", at("lease", "write", "odd"))
    yield row(columns, "lease: close: EIO", "TransferFailed EIO", fails("lease", "close", EIO))
    yield row(columns, "lease: unlink: EIO", RIGHT, fails("lease", "unlink", EIO, times=ALWAYS))
    for op in ("open", "write", "close"):
        for name, code in FULL:
            yield row(columns, f"lease: {op}: {name}", f"NoRoom {name}", fails("lease", op, code))


def large_files_read() -> Iterator[Row]:
    """Weights, read and checked."""
    yield from opens(READERS, "weights")
    yield from moves(READERS, "weights", "read")
    truncated = "FileTruncated ENODATA"
    yield row(READERS, "weights: read: 0 bytes before the end", truncated, at("weights", "read", "zero", nth=2))
    yield row(READERS, "weights: read: truncated after open, odd", truncated, at("weights", "read", "cut", 20_001))
    yield row(READERS, "weights: read: truncated after open, aligned", truncated, at("weights", "read", "cut", 16_384))
    yield row(READERS, "weights: close: EIO", RIGHT, fails("weights", "close", EIO, times=ALWAYS))
    for op in ("open", "read", "close"):
        hang = at("weights", op, "hang", HANG_MS)
        yield row(READERS, f"weights: {op}: hangs", "TransferTimeout ETIMEDOUT", hang, deadline_s=DEADLINE_S)


def small_files_read(
    place: str, columns: Sequence[str] = READERS, *, emptied: str = "Corrupt without errno"
) -> Iterator[Row]:
    """Small files, read and checked."""
    emptied = "Corrupt without errno"
    for op in ("open", "read") if place in ("manifest", "ref") else ("read",):
        yield row(columns, f"{place}: {op}: EINTR", RIGHT, fails(place, op, EINTR, times=3))
        yield row(columns, f"{place}: {op}: EIO always", "TransferFailed EIO", fails(place, op, EIO, times=ALWAYS))
        yield row(columns, f"{place}: {op}: ESTALE once", RIGHT, fails(place, op, ESTALE))
        if place == "manifest":
            stale = fails(place, op, ESTALE, times=ALWAYS)
            yield row(columns, f"{place}: {op}: ESTALE always", "TransferFailed ESTALE", stale)
            yield row(columns, f"{place}: {op}: slow", RIGHT, at(place, op, "hang", SLOW_MS))
    yield row(columns, f"{place}: close: EIO", RIGHT, fails(place, "close", EIO, times=ALWAYS))
    yield row(columns, f"{place}: open: ENOENT once", RIGHT, fails(place, "open", ENOENT))
    yield row(columns, f"{place}: read: short, odd", RIGHT, at(place, "read", "odd", times=ALWAYS))
    yield row(columns, f"{place}: read: 0 bytes before the end", emptied, at(place, "read", "zero", times=ALWAYS))
    yield row(columns, f"{place}: read: truncated after open", emptied, at(place, "read", "cut", 3))


def source_read() -> Iterator[Row]:
    """What an import reads; the first calls look through the source, before anything is copied."""
    only = ("import",)
    for op, late in (("open", 3), ("read", 4)):
        yield row(only, f"source: {op}: EINTR", RIGHT, fails("source", op, EINTR, times=3))
        yield row(only, f"source: {op}: EIO once, late", RIGHT, fails("source", op, EIO, nth=late))
        for name, code in (("EIO", EIO), ("ESTALE", ESTALE)):
            faults = fails("source", op, code, times=ALWAYS)
            yield row(only, f"source: {op}: {name} always", f"TransferFailed {name}", faults)
            faults = fails("source", op, code, nth=late, times=ALWAYS)
            yield row(only, f"source: {op}: {name} always, late", f"TransferFailed {name}", faults)
        hang = at("source", op, "hang", HANG_MS)
        yield row(only, f"source: {op}: hangs", "TransferTimeout ETIMEDOUT", hang, deadline_s=DEADLINE_S)
        hang = at("source", op, "hang", HANG_MS, nth=late)
        yield row(only, f"source: {op}: hangs, late", RIGHT, hang, deadline_s=DEADLINE_S)
    yield row(only, "source: read: short, odd", RIGHT, at("source", "read", "odd", times=ALWAYS))
    changed = "SourceChanged without errno"
    yield row(only, "source: read: 0 bytes before the end", changed, at("source", "read", "zero", nth=4))
    yield row(only, "source: read: truncated after open", changed, at("source", "read", "cut", 100_001, nth=4))
    yield row(only, "source: close: EIO", RIGHT, fails("source", "close", EIO, times=ALWAYS))


def small_files_by_transport() -> Iterator[Row]:
    """Configuration, and the index of a checkpoint's tensors: read as weights are."""
    place = "small file"
    for op in ("open", "read"):
        yield row(READERS, f"{place}: {op}: EIO once", RIGHT, fails(place, op, EIO))
        yield row(READERS, f"{place}: {op}: EIO always", "TransferFailed EIO", fails(place, op, EIO, times=ALWAYS))
    yield row(READERS, f"{place}: read: short, odd", RIGHT, at(place, "read", "odd", times=ALWAYS))
    yield row(READERS, f"{place}: read: truncated after open", "FileTruncated ENODATA", at(place, "read", "cut", 3))


ROWS = [
    row(COLUMNS, "no fault", RIGHT, ()),
    *large_files_made(),
    # The others are written by the same code: one kind with all calls, the others with those that move the bytes.
    *small_files_made("manifest"),
    *(one for place in ("index", "COMMIT", "small file") for one in small_files_made(place, ops=("sync",))),
    *interruptions(),
    *small_files_made("ref", NAMERS),
    *steps_made(),
    *leases_held(),
    *large_files_read(),
    *(one for place in ("index", "manifest", "COMMIT") for one in small_files_read(place)),
    *small_files_read("ref", ("load",)),
    *small_files_by_transport(),
    *source_read(),
]
