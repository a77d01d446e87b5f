"""What every part of the object floor stands on, handed around as one."""

from dataclasses import dataclass, field

from ebbtide.storage.durable import Disk
from ebbtide.storage.leases import Leases
from ebbtide.storage.limits import Budget
from ebbtide.storage.paths import StorePaths
from ebbtide.storage.transport import Transport


@dataclass(frozen=True, slots=True)
class StorePorts:
    """One store as one process reaches it; ``budget``: what the store may take."""

    paths: StorePaths
    transport: Transport
    leases: Leases
    disk: Disk
    budget: Budget = field(default_factory=Budget)
