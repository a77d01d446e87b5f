"""What every part of the object floor stands on, handed around as one."""

from dataclasses import dataclass, field

from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.leases.object_leases import Leases
from ebbtide.storage.objects.store_limits import Budget
from ebbtide.storage.objects.store_paths import StorePaths
from ebbtide.storage.transport.transport import Transport


@dataclass(frozen=True, slots=True)
class StorePorts:
    """One store as one process reaches it; ``space_reservation``: what the store may take."""

    paths: StorePaths
    transport: Transport
    leases: Leases
    disk: Disk
    budget: Budget = field(default_factory=Budget)
