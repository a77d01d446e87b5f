"""What a transfer really did, since what was asked for is often not what ran (cuFile falls back in silence)."""

from dataclasses import dataclass
from enum import Enum


class Mode(Enum):
    """How bytes moved."""

    GDS = "gds"  # storage to device memory by DMA
    COMPAT = "gds compat"  # cuFile asked, but it went through host memory
    DIRECT = "posix direct"  # O_DIRECT, past the page cache
    BUFFERED = "posix buffered"  # through the page cache: resident files, or a filesystem that refuses O_DIRECT


@dataclass(frozen=True, slots=True)
class TransferReport:
    """One transfer, or several added up.

    Attributes:
        bytes_by_mode: bytes moved in each mode that ran.
        seconds: wall time from the first request to the last answer; of added reports, the sum.
        retries: requests that had to be asked again (short, interrupted, transient errors).
        why_not_better: why a faster mode did not run, in words; empty if the best one did.
    """

    bytes_by_mode: dict[Mode, int]
    seconds: float
    retries: int = 0
    why_not_better: str = ""

    @property
    def bytes(self) -> int:
        """All bytes moved."""
        return sum(self.bytes_by_mode.values())

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes per second; 0 for an empty transfer."""
        return self.bytes / self.seconds / 1e9 if self.seconds > 0 else 0.0

    @property
    def mode(self) -> Mode | None:
        """The mode that moved most bytes."""
        return max(self.bytes_by_mode, key=self.bytes_by_mode.__getitem__, default=None)

    def __add__(self, other: "TransferReport") -> "TransferReport":
        modes = self.bytes_by_mode | {
            mode: self.bytes_by_mode.get(mode, 0) + count for mode, count in other.bytes_by_mode.items()
        }
        return TransferReport(
            modes,
            self.seconds + other.seconds,
            self.retries + other.retries,
            self.why_not_better or other.why_not_better,
        )
