"""Room on the pool's shared directory for what is spilled, asked with a deadline: its filesystem may hang."""

from pathlib import Path

from ebbtide.diagnostics.host.deadline import NoAnswer, within
from ebbtide.diagnostics.probe.fact import Fact, hindering
from ebbtide.diagnostics.probe.memory_facts import Room, free_bytes
from ebbtide.snapshot.tiers import Means
from ebbtide.snapshot.tiers.formatting import gigabytes

LOOK_S = 5.0  # a filesystem answers in milliseconds, or it hangs

_BLOCKED = hindering(Means.STORAGE)


def disk_fact(directory: str, *, room: Room = free_bytes, look_s: float = LOOK_S) -> tuple[int | None, Fact]:
    """Free bytes (None: not known) of the shared directory, "" where none is named, and the fact behind it."""
    where = f"statvfs of {directory}"
    if not directory:
        what, remedy = "no shared directory is named", "give the file a pool.shared_dir, or bring the pool up"
        return None, Fact("disk.free", what, "pool.shared_dir", None, _BLOCKED, remedy)
    try:
        left = within(look_s, lambda: room(_nearest(Path(directory))))
    except (NoAnswer, OSError) as error:
        what = f"the shared directory {directory} does not answer: {getattr(error, 'strerror', None) or error}"
        return None, Fact("disk.free", what, where, None, _BLOCKED, "look at it with `ebbtide doctor`")
    return left, Fact("disk.free", f"the shared directory has room for {gigabytes(left)}", where, left)


def _nearest(directory: Path) -> Path:
    """The directory, or, while nobody has made it, the one above it that is there: `up` makes it."""
    return next(one for one in (directory, *directory.absolute().parents) if one.exists())
