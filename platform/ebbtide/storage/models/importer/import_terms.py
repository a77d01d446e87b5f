"""What one asks of an import, and what came of it."""

from dataclasses import dataclass
from enum import Enum

from ebbtide.storage.leases.lease_file import Pace
from ebbtide.storage.leases.lease_holder import DEFAULT_PACE
from ebbtide.storage.models.importer.shard_writer import STRETCH_BYTES
from ebbtide.storage.names import ObjectId
from ebbtide.storage.transport.transport import CHUNK_BYTES


class How(Enum):
    """How a model came to be in the store."""

    COPIED = "copied"  # by this process
    SAME = "same"  # copied by this process, and then found to be there already, from another source
    SHARED = "shared"  # copied by another process while this one waited
    KNOWN = "known"  # imported before; nothing was copied


@dataclass(frozen=True, slots=True)
class Imported:
    """What came of an import.

    Attributes:
        object: the model.
        how: how it came.
        ref: its name and tag, as one text; empty if none was asked for.
        moved_ref: whether that is new, or pointed to something else before.
        size_bytes, num_tensors: of the model.
        copied_bytes, saved_bytes: of its weights: fetched from the source by this process; found on disk, from an
            earlier attempt.
        seconds: that copying took; all in all, where nothing was copied.
        notes: what the user should know, in sentences.
    """

    object: ObjectId
    how: How
    ref: str
    moved_ref: bool
    size_bytes: int
    num_tensors: int
    copied_bytes: int
    saved_bytes: int
    seconds: float
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ImportTerms:
    """How to import.

    Attributes:
        who: for people, shown to those that wait; host and process if empty.
        deadline_s: how long to wait for others. A day: a terabyte over a slow link.
        chunk_bytes: length of the chunks that are hashed and repaired.
        stretch_bytes: of one transfer.
        pace: of claims; the same for all that import into a store.
    """

    who: str = ""
    deadline_s: float = 86400.0
    chunk_bytes: int = CHUNK_BYTES
    stretch_bytes: int = STRETCH_BYTES
    pace: Pace = DEFAULT_PACE
