"""What a pool allows itself of its shared directory, written down there: whoever uses the directory finds it.

The arbiter leaves it when it puts a file into force (``pool.storage``). Replicas and commands look when they open the
store, a job at each checkpoint; how fast a node may go counts for processes that start from then on. So those who share
a filesystem keep the same limits, and nobody has to be told.

Not guaranteed: anything where no pool was brought up; then the defaults count. A file that makes no sense, as one of a
newer version may be, is logged and counts as none: what runs goes on.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from ebbtide.config.sections.storage_section import StorageSection
from ebbtide.storage.files.durable_files import Disk, telling

LIMITS = "limits.json"  # in the shared directory
GIB = 1 << 30

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Budget:
    """How much space something may take.

    Attributes:
        max_bytes: of all of it; None for no bound but the filesystem's.
        keep_free_bytes: what must stay free on the filesystem for others, such as logs and the ledger.
    """

    max_bytes: int | None = None
    keep_free_bytes: int = GIB


@dataclass(frozen=True, slots=True)
class Limits:
    """What a pool allows itself.

    Attributes:
        models: all that is in its store.
        checkpoints: those of one job.
        bytes_per_s: of one node, all that it moves; None: whatever it gets.
    """

    models: Budget = field(default_factory=Budget)
    checkpoints: Budget = field(default_factory=Budget)
    bytes_per_s: int | None = None

    @classmethod
    def of(cls, section: StorageSection) -> "Limits":
        """Those of a pool's file."""
        return cls(
            Budget(section.models_max, section.keep_free),
            Budget(section.checkpoints_max_per_job, section.keep_free),
            section.bytes_per_s_per_node,
        )


def limits_of(shared_dir: Path) -> Limits:
    """Those that are in force in a shared directory.

    Raises:
        TransferFailed: it cannot be told.
    """
    path = shared_dir / LIMITS
    with telling("read", path):
        try:
            found = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return Limits()
    try:
        return Limits.of(StorageSection.model_validate_json(found))
    except ValidationError as error:
        _logger.warning("%s makes no sense here, and the defaults count (ebbtide up writes it anew): %s", path, error)
        return Limits()


def leave_limits(shared_dir: Path, section: StorageSection) -> None:
    """Put those of a pool's file into force.

    Raises:
        NoRoom, TransferFailed: they cannot be written; those before count.
    """
    Disk().replace(shared_dir / LIMITS, section.model_dump_json().encode())
