"""The port of what moves ranges of files into device memory; ``staged_transport`` and ``gds_transport`` implement it.

Not guaranteed: what is in the memory after an error. It holds any mixture of old bytes and right new ones; bytes that
were not checked are never copied. After `TransferTimeout` a thread that hangs may have one more copy under way: use
the memory again only if its content does not matter until the device is idle.
"""

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch

from ebbtide.storage.device.placements import Placement
from ebbtide.storage.errors import TransferFailed
from ebbtide.storage.integrity.chunk_verification import Checked
from ebbtide.storage.transport.transfer_report import TransferReport

# A file that can be checked, or a path of which nothing is known.
Source = Checked | Path


class DeviceTransport(Protocol):
    """Moves ranges of files into the memory of one device. May be shared by threads.

    Attributes:
        device: with its index.
    """

    @property
    def device(self) -> torch.device:
        """Whose memory it serves."""

    def read_device(
        self, source: Source, placements: Iterable[Placement], *, verify: bool = True, deadline_s: float
    ) -> TransferReport:
        """Read what is wanted of a file to where it is wanted; when this returns, all bytes are there.

        Args:
            source: which file. Where it can be checked, whole chunks are read, even if less is wanted.
            placements: in any order.
            verify: turn it off only if the bytes are checked in another way. A path cannot be checked.
            deadline_s: seconds for the whole transfer.

        Raises:
            Corrupt: bytes are not those that were published.
            TransferFailed: with errno, path and offset; TransferTimeout and FileTruncated are kinds of it. What the
                device refuses has the action ``copy``.
            Refused: placements that cannot be, or that are not in the file.
        """


@contextmanager
def device_errors(path: Path, offset: int | None) -> Iterator[None]:
    """Within it, what torch raises for its device (RuntimeError, also for want of memory) names file and place.

    Raises:
        TransferFailed: of the action ``copy``.
    """
    try:
        yield
    except RuntimeError as error:
        hint = f"the device refuses: {' '.join(str(error).split())}"
        raise TransferFailed("copy", path, errno=errno.EIO, offset=offset, hint=hint) from error
