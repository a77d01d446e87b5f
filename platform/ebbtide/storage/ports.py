"""What every part of the object floor stands on, handed around as one."""

from dataclasses import dataclass

from ebbtide.storage.durable import Disk
from ebbtide.storage.leases import Leases
from ebbtide.storage.paths import StorePaths
from ebbtide.storage.transport import Transport


@dataclass(frozen=True, slots=True)
class StorePorts:
    """One store as one process reaches it."""

    paths: StorePaths
    transport: Transport
    leases: Leases
    disk: Disk
