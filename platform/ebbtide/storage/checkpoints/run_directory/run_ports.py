"""What all parts of this package stand on, handed around as one; and how much a run may keep."""

from dataclasses import dataclass, field

from ebbtide.storage.checkpoints.run_directory.checkpoint_retention import Retention
from ebbtide.storage.checkpoints.run_directory.run_paths import RunPaths
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.leases.object_leases import Leases, SharedLeases
from ebbtide.storage.objects.store_limits import Budget
from ebbtide.storage.transport.transport import Transport

# The unit of hashing, and so the least that is read. A rank that resumes on another number of workers wants a third or
# a half of each tensor, and reads one chunk too much for it: of 1 MiB that is 5 % for a matrix of 4096 x 8192 bf16 cut
# into three; of 16 MiB it would be 75 %. Smaller ones cost more: 48 bytes of hashes each, and a step of Python each.
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TrainingPorts:
    """How one process reaches the checkpoints.

    Attributes:
        transport: moves the bytes of large files, in pieces of whole chunks, in the class that it was made for.
        disk: makes the small changes.
        leases: who reads what, for slow readers such as exports; None: nobody says.
        chunk_bytes: of checkpoints that are written; see `CHUNK_BYTES`.
    """

    transport: Transport
    disk: Disk = field(default_factory=Disk)
    leases: Leases | None = None
    chunk_bytes: int = CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a run may keep.

    Attributes:
        retention: which checkpoints stay.
        budget: how much space all of them may take, and how much of the filesystem must stay free.
        grace_s: how old something half written must be before it is removed. 15 minutes without a change: longer than
            any server fails over, and a gang of an older epoch has nothing to write anyway.
    """

    retention: Retention = field(default_factory=Retention)
    budget: Budget = field(default_factory=Budget)
    grace_s: float = 900.0


def run_leases(paths: RunPaths) -> SharedLeases:
    """By which slow readers, such as exports, keep a checkpoint from being removed meanwhile."""
    return SharedLeases(paths.leases)


def gang_leases(paths: RunPaths) -> SharedLeases:
    """By which others see that a gang runs; its subject is `GANG`."""
    return SharedLeases(paths.gang)
