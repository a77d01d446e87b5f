"""How fast state moves on a node: measured where somebody measured, else a default with its origin. Pure.

The defaults are what was seen on one machine or told by one vendor; they are there so that an estimate can be made at
all, and a report always says which of its numbers rest on them. ``ebbtide probe --rehearse`` replaces them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Lane(Enum):
    """A way that bytes take, in one direction."""

    MEMCPY_OUT = "memcpy_out"  # tracked storages of a CPU worker to the host pool
    MEMCPY_BACK = "memcpy_back"
    PCIE_OUT = "pcie_out"  # tracked storages of one GPU to registered host memory
    PCIE_BACK = "pcie_back"
    DRIVER_OUT = "driver_out"  # whatever a process holds on its GPU, by CUDA checkpoint, to pageable memory
    DRIVER_BACK = "driver_back"
    STORAGE_OUT = "storage_out"  # host memory to the shared directory, durable
    STORAGE_BACK = "storage_back"
    CRIU_OUT = "criu_out"  # a process's own memory to an image on the shared directory
    CRIU_BACK = "criu_back"


@dataclass(frozen=True, slots=True)
class Rate:
    """Bytes per second on one path of one node, and where the number comes from."""

    bytes_per_s: float
    origin: str
    measured: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.bytes_per_s < math.inf:
            raise ValueError(f"a rate of {self.bytes_per_s} bytes/s ({self.origin}) is none; measure it again")


_DEFAULTS: Mapping[Lane, Rate] = {
    Lane.MEMCPY_OUT: Rate(10e9, "assumed: 10-14 GB/s were seen on one core of one virtual machine"),
    Lane.MEMCPY_BACK: Rate(12e9, "assumed: 12-15 GB/s were seen on one core of one virtual machine"),
    Lane.PCIE_OUT: Rate(24e9, "assumed: pinned copies of torch_memory_saver on PCIe 4 (its issue 111)"),
    Lane.PCIE_BACK: Rate(24e9, "assumed: as the way out"),
    Lane.DRIVER_OUT: Rate(5e9, "assumed: 15 s for an H100's 80 GB, both ways (cuda-checkpoint issue 29)"),
    Lane.DRIVER_BACK: Rate(8e9, "assumed: NVIDIA's restore of 145 GB on a B200 in 17.9 s"),
    Lane.STORAGE_OUT: Rate(1.5e9, "assumed: a checkpoint of two workers on one virtual machine's disk"),
    Lane.STORAGE_BACK: Rate(2.2e9, "assumed: direct reads with one thread on one virtual machine's disk"),
    Lane.CRIU_OUT: Rate(0.24e9, "assumed: CRIU 4.2 wrote an image of 4.2 GB in 17.7 s"),
    Lane.CRIU_BACK: Rate(0.65e9, "assumed: CRIU 4.2 read an image of 1.2 GB in 1.8 s"),
}


@dataclass(frozen=True, slots=True)
class Rates:
    """What was measured on a node; every other path has its default."""

    measured: Mapping[Lane, Rate] = field(default_factory=dict)

    def of(self, path: Lane) -> Rate:
        """The rate to reckon with."""
        return self.measured.get(path) or _DEFAULTS[path]

    def seconds(self, path: Lane, size_bytes: float) -> float:
        """How long so many bytes take."""
        return size_bytes / self.of(path).bytes_per_s
