"""What the file of a flight's attempt tells the others: who is at it, how far, and how it ended. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from ebbtide.storage.coordination.flight_states import Seen, Standing
from ebbtide.storage.errors import NoRoom, NotPublished, Refused, StorageError
from ebbtide.storage.leases.liveness import Sighting

# What each of the others would meet too; of these the waiters are told, and do not try in turn.
TOLD: Mapping[str, type[StorageError]] = {kind.__name__: kind for kind in (Refused, NoRoom, NotPublished)}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a leader has come, by its last beat."""

    who: str
    attempt: int
    phase: str
    done_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        share = f" {100 * self.done_bytes // self.total_bytes} %" if self.total_bytes else ""
        return f"attempt {self.attempt} by {self.who}: {self.phase or 'begun'}{share}"


def as_seen(sighting: Sighting, *, dead: bool) -> Seen:
    """What a look at an attempt's file tells."""
    number, record = sighting.file.number, sighting.record
    if record is None:
        standing = Standing.DEAD if dead else Standing.LIVING
        return Seen(number, standing, what=f"attempt {number} has begun, by somebody who has not said who")
    if not record.released:
        standing = Standing.DEAD if dead else Standing.LIVING
        return Seen(number, standing, what=str(progress_of(sighting)))
    note, by = record.note, f"attempt {number} by {record.who}"
    outcome, error = note.get("outcome"), note.get("error")
    if outcome == "done":
        return Seen(number, Standing.DONE, what=f"{by} has finished")
    if outcome == "refused" and note.get("kind") in TOLD:
        return Seen(number, Standing.REFUSED, what=f"{error} (found by {by})")
    if outcome in ("refused", "failed"):
        failures = note.get("failures")
        count = failures if isinstance(failures, int) else 1
        return Seen(number, Standing.FAILED, count, f"{by} failed: {error}")
    return Seen(number, Standing.LEFT, what=f"{by} left it")


def progress_of(sighting: Sighting) -> Progress | None:
    """How far its leader is; None if it says nothing, or is no longer at it."""
    record = sighting.record
    if record is None or record.released:
        return None
    done, total = record.note.get("done_bytes"), record.note.get("total_bytes")
    return Progress(
        record.who,
        sighting.file.number,
        str(record.note.get("phase", "")),
        done if isinstance(done, int) else 0,
        total if isinstance(total, int) else 0,
    )
